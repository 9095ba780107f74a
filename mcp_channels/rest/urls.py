"""
Where the API's views are: ``path("api/mcp/", include("mcp_channels.rest.urls"))``.
"""

from django.urls import path
from rest_framework.routers import SimpleRouter

from mcp_channels.rest.views import NotifyView, PrincipalViewSet, ScopeViewSet, StreamViewSet, TokenViewSet

app_name = "mcp_channels"

router = SimpleRouter()
router.register("principals", PrincipalViewSet, basename="principal")
router.register("scopes", ScopeViewSet, basename="scope")
router.register("tokens", TokenViewSet, basename="token")
router.register("streams", StreamViewSet, basename="stream")

urlpatterns = [*router.urls, path("notify/", NotifyView.as_view(), name="notify")]
