"""
Views for whoever watches a process from outside: an orchestrator, or a load balancer.

They read what the process knows and ask neither the database nor the channel layer, so that a probe costs nothing and
can't hang.
"""

from typing import Final

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import cache_control

from mcp_channels.conf import settings
from mcp_channels.endpoint.request import RETRY_AFTER
from mcp_channels.listen import hub

_never_stored: Final = method_decorator(cache_control(no_store=True), name="dispatch")


@_never_stored
class LivenessView(View):
    """
    Answers 200 for as long as the process answers: ``path("health/live", LivenessView.as_view())``.
    """

    http_method_names = ["get", "head"]

    def get(self, request: HttpRequest) -> HttpResponse:
        """
        Say that the process lives.
        """
        return JsonResponse({"status": "ok"})


@_never_stored
class ReadinessView(View):
    """
    Answers 200 where one more stream would be let in, else 503 with ``Retry-After``:
    ``path("health/ready", ReadinessView.as_view())``.

    The body is a JSON object: ``status`` (``ok``, ``draining``, ``full``, ``layer_down`` or ``database_down``),
    ``streams``, ``max_streams``, ``draining``, and for ``layer`` and ``database`` one of ``up``, ``down`` and
    ``unused``: no stream needed it lately.

    A process whose layer or database is down stays ready, since its streams stay open; and as a rule all processes lose
    it together, so that to take them all out would make it worse.
    """

    http_method_names = ["get", "head"]

    layer_required = False
    """Whether a process that doesn't reach its channel layer is not ready."""

    database_required = False
    """Whether a process that doesn't reach its database is not ready."""

    def get(self, request: HttpRequest) -> HttpResponse:
        """
        Say whether the process takes streams.
        """
        found, max_streams = hub.status(), settings.max_streams
        if found.draining:
            status = "draining"
        elif found.streams >= max_streams:
            status = "full"
        elif self.layer_required and found.layer == "down":
            status = "layer_down"
        elif self.database_required and found.database == "down":
            status = "database_down"
        else:
            status = "ok"
        content = {
            "status": status,
            "streams": found.streams,
            "max_streams": max_streams,
            "draining": found.draining,
            "layer": found.layer,
            "database": found.database,
        }
        if status == "ok":
            return JsonResponse(content)
        return JsonResponse(content, status=503, headers={"Retry-After": str(RETRY_AFTER)})
