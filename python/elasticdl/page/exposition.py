"""A job's figures in the text format that Prometheus reads: https://prometheus.io/docs/instrumenting/exposition_formats/."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from elasticdl.page.recording import LOSS, RATE, WORKERS, Moment

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposed(moment: Moment) -> bytes:
    """Return the figures of a moment as text; what is not known yet is left out."""
    registry = CollectorRegistry()
    registry.register(_Figures(moment))
    return generate_latest(registry)


class _Figures:
    """What `prometheus_client` asks for metrics: figures that are worked out elsewhere, and change only between two scrapes."""

    def __init__(self, moment: Moment) -> None:
        self._moment = moment

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        moment, status = self._moment, self._moment.status
        events = CounterMetricFamily("elasticdl_events", "Events of the job, by kind.", labels=["kind"])
        for kind, number in sorted(moment.events.items()):
            events.add_metric([kind], number)
        yield events
        found = GaugeMetricFamily(
            "elasticdl_validation", "Last value of a metric of the validation data.", labels=["metric"]
        )
        for name, value in sorted(moment.values.items()):
            if name not in (LOSS, RATE, WORKERS):
                found.add_metric([name], value)
        yield found
        yield CounterMetricFamily(
            "elasticdl_evaluation_seconds", "Seconds that evaluations took.", value=moment.shares.evaluating
        )
        if moment.shares.goodput is not None:
            yield GaugeMetricFamily(
                "elasticdl_goodput_ratio",
                "Share of the time since the first step in which steps were made that count, without evaluations.",
                value=moment.shares.goodput,
            )
        if status is None:
            return
        processes = GaugeMetricFamily(
            "elasticdl_processes", "Workers and parameter servers, by state.", labels=["role", "state"]
        )
        counted = Counter((worker.name.partition("-")[0], worker.state) for worker in status.workers)
        for (role, state), number in sorted(counted.items()):
            processes.add_metric([role, state], number)
        yield processes
        wanted = GaugeMetricFamily("elasticdl_wanted_processes", "How many the job wants.", labels=["role"])
        wanted.add_metric(["worker"], status.wanted_workers)
        wanted.add_metric(["ps"], status.wanted_servers)
        yield wanted
        stands = GaugeMetricFamily("elasticdl_state", "1 for the job's state.", labels=["state"])
        stands.add_metric([status.state], 1)
        yield stands
        figures: list[tuple[str, str, float | None]] = [
            ("step", "Last committed step.", status.step),
            ("epoch", "Epoch of the next step, from 0.", status.epoch),
            ("trained_records", "Records trained; a roll-back takes some away.", status.records),
            ("loss", "Mean loss of the last step.", status.loss),
            (
                "records_per_second",
                "Records trained per second, over the last seconds.",
                status.records_per_second,
            ),
            ("done_ratio", "Share of all records that are trained.", status.done),
            ("remaining_seconds", "Estimate of the time left.", status.seconds_left),
        ]
        for name, text, figure in figures:
            if figure is not None:
                yield GaugeMetricFamily(f"elasticdl_{name}", text, value=figure)
