"""Counters for Prometheus. No label has a text, an address or a key."""

import weakref
from collections.abc import Iterator
from typing import Any

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from transformer_jax.extras.serving.service import Service
from transformer_jax.translator import scheduler
from transformer_jax.translator.scheduler import BatchReport

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
_PREFIX = "transformer_jax"


class Metrics:
    """The metrics of a server. Batches are those of the process.

    Args:
      service: whose programs and tokens are counted.
    """

    def __init__(self, service: Service):
        self._registry = CollectorRegistry()
        self._registry.register(_ServiceCounters(service))

        def named(kind: Any, name: str, text: str, **options: Any) -> Any:
            return kind(f"{_PREFIX}_{name}", text, registry=self._registry, **options)

        queue = named(Gauge, "queue_texts", "Texts that wait for the device.")
        queue.set_function(lambda: scheduler.of_process().num_waiting)
        ready = named(Gauge, "ready", "1 if texts are accepted.")
        ready.set_function(lambda: service.is_ready)
        self._requests = named(Counter, "requests", "Requests.", labelnames=("route", "status"))
        self._refusals = named(Counter, "refusals", "Errors.", labelnames=("reason",))
        self._seconds = named(
            Histogram,
            "seconds",
            "Latency: queue, before a text's batch; compute, a batch; total, a request.",
            labelnames=("stage",),
            buckets=_SECONDS,
        )
        self._fill = named(
            Histogram, "batch_fill", "Rows of a batch that are texts.", buckets=_SHARES
        )
        self._padding = named(
            Histogram, "batch_padding", "Positions of a batch that are padding.", buckets=_SHARES
        )
        self._texts = named(Counter, "texts", "Texts that were computed.")
        self._source_tokens = named(Counter, "source_tokens", "Tokens that were read.")
        scheduler.of_process().add_listener(weakref.WeakMethod(self.on_batch))

    def on_batch(self, report: BatchReport) -> None:
        """Counts a batch."""
        num_tokens = sum(report.sizes)
        self._seconds.labels("compute").observe(report.seconds)
        self._fill.observe(len(report.sizes) / report.rows)
        self._padding.observe(1 - num_tokens / (report.rows * report.length))
        self._texts.inc(len(report.sizes))
        self._source_tokens.inc(num_tokens)
        for seconds in report.waited:
            self._seconds.labels("queue").observe(seconds)

    def on_request(self, route: str, status: int, seconds: float) -> None:
        """Counts a request by its route, never by its path."""
        self._requests.labels(route, status).inc()
        if not route.startswith(("/healthz", "/readyz", "/metrics")):
            self._seconds.labels("total").observe(seconds)

    def on_refusal(self, reason: str) -> None:
        """Counts an error by its reason, which is one of a few words."""
        self._refusals.labels(reason).inc()

    def page(self) -> bytes:
        """What Prometheus reads."""
        return prometheus_client.generate_latest(self._registry)


class _ServiceCounters(Collector):
    """What the models of a service count themselves."""

    def __init__(self, service: Service):
        self._service = service

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counters, now."""
        for name, text, value in (
            ("compiles", "Programs that were compiled.", self._service.num_compiled),
            ("target_tokens", "Tokens that were written.", self._service.num_tokens),
        ):
            yield CounterMetricFamily(f"{_PREFIX}_{name}", text, value=value)
