"""
The example project's pages.
"""

from django.contrib import admin
from django.urls import path

from example_project.notes import views
from example_project.notes.mcp import server
from mcp_channels.endpoint.views import ProtectedResourceView

urlpatterns = [
    path("", views.index, name="index"),
    path(".well-known/oauth-protected-resource/mcp", ProtectedResourceView.as_view(server=server)),
    path("admin/", admin.site.urls),
]
