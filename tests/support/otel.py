"""
OpenTelemetry's own SDK, with exporters in memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mcp_channels.otel import Recorder


class Recorded:
    """
    What was recorded for OpenTelemetry.
    """

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._exporter = InMemorySpanExporter()
        self.meter_provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[Any]:
        return list(self._exporter.get_finished_spans())

    def metrics(self) -> dict[str, Any]:
        """
        The metrics by name, as they are at this moment.
        """
        data = self._reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def values(self, name: str) -> dict[tuple[Any, ...], Any]:
        """
        The points of a metric: their values by the values of their attributes, in the order of the attributes' names.
        """
        metric = self.metrics().get(name)
        points = metric.data.data_points if metric else []
        return {
            tuple(point.attributes[key] for key in sorted(point.attributes)): getattr(point, "value", None)
            for point in points
        }

    def serialised(self) -> str:
        """
        All of it, as exporters would see it.
        """
        data = self._reader.get_metrics_data()
        return "\n".join([data.to_json() if data else "", *(span.to_json() for span in self.spans)])


@contextmanager
def recording() -> Iterator[Recorded]:
    """
    Record what happens meanwhile.
    """
    recorded = Recorded()
    recorder = Recorder(meter_provider=recorded.meter_provider, tracer_provider=recorded.tracer_provider)
    recorder.connect()
    try:
        yield recorded
    finally:
        recorder.disconnect()
        recorded.meter_provider.shutdown()
        recorded.tracer_provider.shutdown()
