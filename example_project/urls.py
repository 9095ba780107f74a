"""
The example project's pages, and the REST API.
"""

from django.contrib import admin
from django.urls import include, path

from example_project.notes import views
from example_project.notes.mcp import server
from mcp_channels.endpoint.views import ProtectedResourceView

urlpatterns = [
    path("", views.index, name="index"),
    path(".well-known/oauth-protected-resource/mcp", ProtectedResourceView.as_view(server=server)),
    path("admin/", admin.site.urls),
    path("api/mcp/", include("mcp_channels.rest.urls")),
]
