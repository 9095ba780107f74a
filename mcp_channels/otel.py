"""
The signals as OpenTelemetry metrics and spans.

What counts open streams and deliveries reads the hubs whenever it is asked, so it is exact. The rest hears the
signals. No attribute holds a URI, an id or a principal: of the attributes for MCP spans (OpenTelemetry's semantic
conventions for generative AI, "Model Context Protocol"), those that would are left out.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider

from mcp_channels import __version__, signals, telemetry
from mcp_channels.listen import hub

NAME: Final = "mcp_channels"
"""The instrumentation scope, and what the names of metrics and attributes begin with."""

ENDPOINT: Final = "mcp_channels.endpoint"
REASON: Final = "mcp_channels.stream.reason"
KINDS: Final = "mcp_channels.stream.kinds"
DELIVERED: Final = "mcp_channels.stream.delivered"
KIND: Final = "mcp_channels.notification.kind"

METHOD: Final = "subscriptions/listen"

FAILED: Final = "server_error"
"""The one reason to end that is an error."""

REQUEST: Final = {
    "mcp.method.name": METHOD,
    "mcp.protocol.version": "2026-07-28",
    "network.protocol.name": "http",
    "network.transport": "tcp",
}

OPERATION_DURATIONS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""The boundaries, in seconds, that the conventions ask for the histogram of all MCP requests."""

DURATIONS: Final = (0.1, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 86400.0)
"""The boundaries, in seconds, of the histogram of streams."""


class Recorder:
    """
    Turns the signals into metrics and spans, for one pair of providers.
    """

    def __init__(
        self, *, meter_provider: MeterProvider | None = None, tracer_provider: TracerProvider | None = None
    ) -> None:
        """
        Args:
            meter_provider: gets the metrics; None: the process's, whenever it is set.
            tracer_provider: gets the spans; None: the process's, whenever it is set.
        """
        self._tracer = trace.get_tracer(NAME, __version__, tracer_provider)
        meter = metrics.get_meter(NAME, __version__, meter_provider)
        self._started = meter.create_counter(
            "mcp_channels.stream.started", "{stream}", "Streams whose acknowledgment was written."
        )
        self._ended = meter.create_counter("mcp_channels.stream.ended", "{stream}", "Streams that ended, by reason.")
        self._durations = _histogram(
            meter, "mcp_channels.stream.duration", "How long streams were open.", boundaries=DURATIONS
        )
        self._operations = _histogram(
            meter,
            "mcp.server.operation.duration",
            "MCP request or notification duration as observed on the receiver.",
            boundaries=OPERATION_DURATIONS,
        )
        self._published = meter.create_counter(
            "mcp_channels.notification.published", "{notification}", "Notifications handed to the channel layer."
        )
        self._dropped = meter.create_counter(
            "mcp_channels.notification.dropped", "{notification}", "Notifications that one stream skipped."
        )
        meter.create_observable_up_down_counter(
            "mcp_channels.stream.count", [_count_streams], "{stream}", "Streams that this process holds."
        )
        meter.create_observable_counter(
            "mcp_channels.notification.delivered",
            [_count_delivered],
            "{notification}",
            "Notifications written to streams.",
        )
        meter.create_observable_gauge(
            "mcp_channels.layer.up", [_look_at_layer], "1", "1 while the channel layer is up, 0 while it is down."
        )

    def connect(self) -> None:
        """
        Hear the signals from here on.
        """
        for signal, receiver in self._receivers():
            signal.connect(receiver, weak=False, dispatch_uid=(NAME, id(self)))

    def disconnect(self) -> None:
        """
        Hear them no more.
        """
        for signal, _ in self._receivers():
            signal.disconnect(dispatch_uid=(NAME, id(self)))

    def _receivers(self) -> Iterator[tuple[Any, Any]]:
        yield signals.stream_started, self._stream_started
        yield signals.stream_stopped, self._stream_stopped
        yield signals.notification_published, self._notification_published
        yield signals.notification_dropped, self._notification_dropped

    def _stream_started(self, endpoint: str, **kwargs: Any) -> None:
        self._started.add(1, {ENDPOINT: endpoint})

    def _stream_stopped(
        self,
        *,
        endpoint: str,
        kinds: tuple[str, ...],
        reason: str,
        duration: float,
        delivered: int,
        at: float,
        **kwargs: Any,
    ) -> None:
        failure = {"error.type": FAILED} if reason == FAILED else {}
        attributes = {ENDPOINT: endpoint, REASON: reason, **failure}
        self._ended.add(1, attributes)
        self._durations.record(duration, attributes)
        self._operations.record(duration, {**REQUEST, **failure})
        # Made when it is over, so that an open stream holds none; and of no trace, whatever runs in this thread.
        span = self._tracer.start_span(
            METHOD,
            context=Context(),
            kind=SpanKind.SERVER,
            attributes={**REQUEST, **attributes, KINDS: kinds, DELIVERED: delivered},
            start_time=_nanoseconds(at - duration),
        )
        if reason == FAILED:
            span.set_status(Status(StatusCode.ERROR))
        span.end(_nanoseconds(at))

    def _notification_published(self, counts: dict[str, int], **kwargs: Any) -> None:
        for kind, count in counts.items():
            self._published.add(count, {KIND: kind})

    def _notification_dropped(self, endpoint: str, kind: str, **kwargs: Any) -> None:
        self._dropped.add(1, {ENDPOINT: endpoint, KIND: kind})


def _histogram(meter: Meter, name: str, description: str, *, boundaries: Sequence[float]) -> Histogram:
    try:
        return meter.create_histogram(name, "s", description, explicit_bucket_boundaries_advisory=boundaries)
    except TypeError:  # of opentelemetry-api before 1.30, which the MCP SDK takes too
        return meter.create_histogram(name, "s", description)


def _count_streams(options: CallbackOptions) -> Iterable[Observation]:
    for endpoint, tally in hub.tallies().items():
        yield Observation(tally.streams, {ENDPOINT: endpoint})


def _count_delivered(options: CallbackOptions) -> Iterable[Observation]:
    for endpoint, tally in hub.tallies().items():
        yield Observation(tally.delivered, {ENDPOINT: endpoint})


def _look_at_layer(options: CallbackOptions) -> Iterable[Observation]:
    state = hub.status().layer
    if state != "unused":
        yield Observation(int(state == "up"))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1_000_000_000)


def connect() -> None:
    """
    Record with the process's providers, from when the project sets them. The app calls this; a process that sets none
    pays a look from time to time.
    """
    recorder = Recorder()

    def connect_if_set() -> bool:
        if _is_set():
            recorder.connect()
            return True
        return False

    if not connect_if_set():
        telemetry.connect_when_ready(connect_if_set)


def _is_set() -> bool:
    """
    Whether there is a provider that isn't one of the API's own, which do nothing.
    """
    providers = (metrics.get_meter_provider(), trace.get_tracer_provider())
    return not all(
        type(provider).__module__.startswith(("opentelemetry.metrics", "opentelemetry.trace")) for provider in providers
    )
