"""
What Django serves beside the endpoints: the metadata of ``/mcp``, and the authorization server.
"""

from django.urls import include, path

from example_project.notes.mcp import server
from mcp_channels.endpoint.views import MCPView, ProtectedResourceView
from tests.auth.classes import EVERY

urlpatterns = [
    path(".well-known/oauth-protected-resource/mcp", ProtectedResourceView.as_view(server=server)),
    path("view", MCPView.as_view(server=server, authentication_classes=EVERY)),
    path("", include("oauth2_provider.urls")),
]
