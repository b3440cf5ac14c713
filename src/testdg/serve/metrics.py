"""The numbers of a server in the text format of Prometheus."""

from collections.abc import Iterator

from testdg.core.guard import Guard
from testdg.serve.service import Service

_COUNTERS = {
    "pictures": "Pictures that were predicted.",
    "changed_by_adaptation": "Predictions that adaptation changed; of segmentations, shares of pixels.",
    "learnt": "Pictures that were learnt from.",
    "not_learnt": "Pictures that the guard kept from being learnt.",
    "dropped": "Pictures that were not learnt from, as the queue was full.",
    "steps": "Batches that were learnt from.",
    "changes": "Changes of conditions that were noticed.",
    "failures": "Batches at which learning failed.",
}


def metrics(service: Service) -> str:
    """Everything, line by line; streams that are on disk are left out."""
    return "\n".join(_lines(service)) + "\n"


def _lines(service: Service) -> Iterator[str]:
    streams = service.streams.resident()
    for key, about in _COUNTERS.items():
        yield from _head(f"{key}_total", "counter", about)
        for stream in streams:
            yield f'testdg_{key}_total{{stream="{stream.name}"}} {getattr(stream.counts, key):.10g}'
    yield from _head("guard_decisions_total", "counter", "What guards did.")
    for stream in streams:
        if isinstance(stream.adapter, Guard):
            for action, count in stream.adapter.counts.items():
                yield f'testdg_guard_decisions_total{{stream="{stream.name}",action="{action}"}} {count}'
    gauges = {
        "queue_pictures": ("Pictures that wait to be learnt from.", len(service.learner)),
        "requests_waiting": ("Requests that are not answered yet.", service.batcher.coming),
        "streams_in_memory": ("Streams in memory.", len(streams)),
        "streams": ("Streams.", len(service.streams.names())),
        "healthy": ("1 where nothing is wrong, else 0.", int(not service.problems())),
        "begun_timestamp_seconds": ("When the server began.", service.begun),
    }
    for key, (about, value) in gauges.items():
        yield from _head(key, "gauge", about)
        yield f"testdg_{key} {value:.10g}" if isinstance(value, int) else f"testdg_{key} {value:.3f}"
    yield from _head("requests_refused_total", "counter", "Requests that were told to come again.")
    yield f"testdg_requests_refused_total {service.refused}"


def _head(key: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP testdg_{key} {about}"
    yield f"# TYPE testdg_{key} {kind}"
