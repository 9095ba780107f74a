"""
The example project's pages, and the REST API.
"""

from django.contrib import admin
from django.urls import include, path

from example_project.notes import views

urlpatterns = [
    path("", views.index, name="index"),
    path("admin/", admin.site.urls),
    path("api/mcp/", include("mcp_channels.rest.urls")),
]
