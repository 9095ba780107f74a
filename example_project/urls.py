"""
The example project's pages, the REST API, and what watches the process.
"""

from django.contrib import admin
from django.urls import include, path

from example_project.notes import views
from example_project.notes.mcp import server
from mcp_channels.endpoint.health import LivenessView, ReadinessView
from mcp_channels.endpoint.views import ProtectedResourceView

urlpatterns = [
    path("", views.index, name="index"),
    path(".well-known/oauth-protected-resource/mcp", ProtectedResourceView.as_view(server=server)),
    path("health/live", LivenessView.as_view()),
    path("health/ready", ReadinessView.as_view()),
    path("admin/", admin.site.urls),
    path("api/mcp/", include("mcp_channels.rest.urls")),
]
