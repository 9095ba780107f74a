"""
The health views, in pytest's own process.
"""

import json

import pytest
from channels.layers import InMemoryChannelLayer
from django.core.cache import cache
from django.middleware.cache import CacheMiddleware
from django.test import RequestFactory

from mcp_channels.endpoint.health import LivenessView, ReadinessView
from mcp_channels.listen import hub as hub_module
from mcp_channels.listen.beat import Beat
from mcp_channels.listen.hub import Hub
from mcp_channels.listen.places import places
from mcp_channels.topics import TOOLS
from tests.listen.test_hub import attached

READY = {
    "status": "ok",
    "streams": 0,
    "max_streams": 10_000,
    "draining": False,
    "layer": "unused",
    "database": "unused",
}


@pytest.fixture(autouse=True)
def no_hub_was_there(monkeypatch):
    monkeypatch.setattr(hub_module, "_hubs", {})
    monkeypatch.setattr(places, "taken", 0)


@pytest.fixture
async def hub():
    made = Hub.current(InMemoryChannelLayer())
    yield made
    await made.close()


def ask(view=ReadinessView, *, method="get", **options):
    response = view.as_view(**options)(getattr(RequestFactory(), method)("/"))
    assert response["Cache-Control"] == "no-store"
    return response


def ready(status: int, **options) -> dict:
    """
    What the readiness view says, which must answer with this status.
    """
    response = ask(**options)
    assert response.status_code == status
    assert response.has_header("Retry-After") == (status == 503)
    return json.loads(response.content)


def test_without_streams_the_process_lives_and_is_ready():
    assert json.loads(ask(LivenessView).content) == {"status": "ok"}
    assert ready(200) == READY
    for view in (LivenessView, ReadinessView):
        assert ask(view, method="head").status_code == 200
        refused = ask(view, method="post")
        assert (refused.status_code, refused["Allow"]) == (405, "GET, HEAD")
        assert ask(view, method="options").status_code == 405


def test_a_cache_for_the_whole_site_keeps_no_answer():
    middleware = CacheMiddleware(ReadinessView.as_view())
    request = RequestFactory().get("/")
    middleware(request)
    try:
        hub_module._stopping.set()
        assert middleware(request).status_code == 503
    finally:
        hub_module._stopping.clear()
        cache.clear()


async def test_a_process_that_is_full_is_not_ready(hub, settings):
    settings.MCP_CHANNELS = {"MAX_STREAMS": 2}
    async with attached(hub, TOOLS):
        assert ready(200) == {**READY, "streams": 1, "max_streams": 2, "layer": "up"}
        async with attached(hub, TOOLS):
            assert ready(503)["status"] == "full"
        assert ready(200)["streams"] == 1


async def test_a_process_that_drains_is_not_ready_but_lives(hub):
    hub.drain()
    found = ready(503)
    assert (found["status"], found["draining"]) == ("draining", True)
    assert ask(LivenessView).status_code == 200


async def test_a_layer_that_is_down_takes_out_only_a_process_that_is_told_so(hub):
    async with attached(hub, TOOLS):
        hub._membership._fail(OSError())
        assert ready(200)["layer"] == "down"
        assert ready(200, database_required=True)["status"] == "ok"
        assert ready(503, layer_required=True)["status"] == "layer_down"
        assert ask(LivenessView).status_code == 200


async def test_a_database_that_is_down_takes_out_only_a_process_that_is_told_so(hub):
    beat = hub.node._beat = Beat("node")
    assert ready(200)["database"] == "up"
    beat._failures = 1
    assert ready(200, layer_required=True)["database"] == "down"
    assert ready(503, database_required=True)["status"] == "database_down"
    assert ask(LivenessView).status_code == 200
