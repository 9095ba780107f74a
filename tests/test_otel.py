"""
Metrics and spans, as OpenTelemetry's SDK gets them.
"""

import asyncio
import os
import subprocess
import sys
import time

import pytest
from channels.layers import InMemoryChannelLayer
from opentelemetry.context import attach
from opentelemetry.metrics import NoOpMeter, NoOpMeterProvider
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, set_span_in_context

from mcp_channels import otel, signals, telemetry
from mcp_channels.listen import hub as hub_module
from mcp_channels.listen.hub import Hub
from mcp_channels.topics import TOOLS, resource
from tests.listen.test_hub import attached, until
from tests.support.otel import recording
from tests.support.processes import ROOT


@pytest.fixture(autouse=True)
def no_hub_was_there(monkeypatch):
    monkeypatch.setattr(hub_module, "_hubs", {})
    monkeypatch.setattr(hub_module, "_delivered", {})


@pytest.fixture
def recorded():
    with recording() as made:
        yield made


async def test_what_is_open_and_delivered_is_read_from_the_hubs(recorded):
    assert recorded.values("mcp_channels.layer.up") == {}
    hub = Hub.current(InMemoryChannelLayer())
    async with attached(hub, TOOLS), attached(hub, TOOLS) as (stream, _):
        hub._missed(None)
        await until(lambda: stream.delivered)
        assert recorded.values("mcp_channels.stream.count") == {("test",): 2}
        assert recorded.values("mcp_channels.notification.delivered") == {("test",): 2}
        assert recorded.values("mcp_channels.layer.up") == {(): 1}
        hub._membership._fail(OSError())
        assert recorded.values("mcp_channels.layer.up") == {(): 0}
    assert recorded.values("mcp_channels.stream.count") == {("test",): 0}
    assert recorded.values("mcp_channels.notification.delivered") == {("test",): 2}
    await hub.close()


async def test_a_stream_is_a_span_from_its_acknowledgment_to_its_end(recorded):
    def careless(sender, **kwargs):
        # The span of somebody else, left behind in the receivers' thread.
        attach(set_span_in_context(NonRecordingSpan(SpanContext(1, 1, is_remote=False))))

    signals.stream_started.connect(careless)
    hub = Hub.current(InMemoryChannelLayer())
    before = time.time_ns()
    async with attached(hub, TOOLS) as (stream, _):
        begun = time.time_ns()
        await asyncio.sleep(0.05)
        assert telemetry.flush(5)
        assert recorded.spans == [], "an open stream holds no span"
        stopping = time.time_ns()
        stream.end("superseded")
    async with attached(hub, TOOLS, resource("note://1")) as (stream, _):
        stream.end("server_error")
    await hub.close()
    assert telemetry.flush(5)
    first, second = recorded.spans
    # The clocks of the loop and of the day differ by less.
    slack = 5_000_000
    assert before - slack <= first.start_time <= begun + slack
    assert stopping - slack <= first.end_time <= time.time_ns()
    assert (first.name, first.kind, first.parent) == ("subscriptions/listen", SpanKind.SERVER, None)
    assert first.status.status_code is StatusCode.UNSET
    assert dict(first.attributes) == {
        "mcp.method.name": "subscriptions/listen",
        "mcp.protocol.version": "2026-07-28",
        "network.protocol.name": "http",
        "network.transport": "tcp",
        "mcp_channels.endpoint": "test",
        "mcp_channels.stream.kinds": ("toolsListChanged",),
        "mcp_channels.stream.reason": "superseded",
        "mcp_channels.stream.delivered": 0,
    }
    assert second.status.status_code is StatusCode.ERROR
    assert second.attributes["error.type"] == "server_error"
    assert second.attributes["mcp_channels.stream.kinds"] == ("toolsListChanged", "resourceSubscriptions")
    assert recorded.values("mcp_channels.stream.started") == {("test",): 2}
    ended = {("test", "superseded"): 1, ("server_error", "test", "server_error"): 1}
    assert recorded.values("mcp_channels.stream.ended") == ended
    durations = recorded.metrics()["mcp_channels.stream.duration"]
    [long] = [point for point in durations.data.data_points if "error.type" not in point.attributes]
    assert (durations.unit, long.explicit_bounds, long.count) == ("s", otel.DURATIONS, 1)
    assert 0.05 <= long.sum < 5
    operations = recorded.metrics()["mcp.server.operation.duration"]
    assert [dict(point.attributes) for point in operations.data.data_points] == [
        otel.REQUEST,
        {**otel.REQUEST, "error.type": "server_error"},
    ]
    assert operations.data.data_points[0].explicit_bounds == otel.OPERATION_DURATIONS


def test_notifications_are_counted_by_kind(recorded):
    published, dropped = signals.notification_published, signals.notification_dropped
    for _ in range(2):
        telemetry.emit(published, None, kinds=("resource", "tools"), count=4, counts={"resource": 3, "tools": 1})
    telemetry.emit(dropped, None, endpoint="test", kind="resource")
    assert telemetry.flush(5)
    assert recorded.values("mcp_channels.notification.published") == {("resource",): 6, ("tools",): 2}
    assert recorded.values("mcp_channels.notification.dropped") == {("test", "resource"): 1}


def test_units_are_those_of_the_conventions(recorded):
    telemetry.emit(signals.notification_dropped, None, endpoint="test", kind="resource")
    assert telemetry.flush(5)
    for name, metric in recorded.metrics().items():
        assert name.startswith("mcp_channels.")
        assert metric.unit in ("s", "1", "{stream}", "{notification}")
        assert metric.description


def test_an_api_that_knows_no_boundaries_is_taken_too():
    class Old(NoOpMeter):
        def create_histogram(self, name, unit="", description=""):
            return super().create_histogram(name, unit, description)

    class OldProvider(NoOpMeterProvider):
        def get_meter(self, name, version=None, schema_url=None, attributes=None):
            return Old(name)

    otel.Recorder(meter_provider=OldProvider())


PROCESS = """
import sys
import django
django.setup()
from mcp_channels import signals, telemetry

def emit():
    telemetry.emit(signals.notification_dropped, None, endpoint="test", kind="tools")
    assert telemetry.flush(5)

if "without" in sys.argv:
    emit()
    assert "mcp_channels.otel" not in sys.modules and not telemetry._unconnected
    sys.exit()

emit()
assert not signals.notification_dropped.receivers
assert telemetry._dispatcher._thread is None
telemetry.LOOK_INTERVAL = 0

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
emit()
names = [m.name for r in reader.get_metrics_data().resource_metrics for s in r.scope_metrics for m in s.metrics]
assert names == ["mcp_channels.notification.dropped"], names
assert not telemetry._unconnected
"""

WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


@pytest.mark.parametrize("preface", ["", WITHOUT], ids=["late", "missing"])
def test_the_app_records_from_when_a_provider_is_set_and_does_without_opentelemetry(preface):
    # An app without MCP servers: the SDK of MCP imports OpenTelemetry itself.
    settings = "from django.conf import settings\nsettings.configure(INSTALLED_APPS=['django.contrib.auth', "
    settings += "'django.contrib.contenttypes', 'mcp_channels'], USE_TZ=True)\n"
    command = [sys.executable, "-c", preface + settings + PROCESS, *(["without"] if preface else [])]
    env = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
