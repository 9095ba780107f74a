"""
What Django serves beside the endpoints: the metadata of ``/mcp``, the admin, the API, and the authorization server.
"""

from django.contrib import admin
from django.urls import include, path

from example_project.notes.mcp import server
from mcp_channels.endpoint.views import MCPView, ProtectedResourceView
from tests.auth.classes import EVERY

urlpatterns = [
    path(".well-known/oauth-protected-resource/mcp", ProtectedResourceView.as_view(server=server)),
    path("view", MCPView.as_view(server=server, authentication_classes=EVERY)),
    path("admin/", admin.site.urls),
    path("api/mcp/", include("mcp_channels.rest.urls")),
    path("", include("oauth2_provider.urls")),
]
