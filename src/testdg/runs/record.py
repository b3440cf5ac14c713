"""Record: a value that says everything a number depends on."""

from dataclasses import asdict, dataclass
from typing import Any

from testdg.data.benchmarks import Benchmark
from testdg.data.stream import Stream
from testdg.methods import Adapter
from testdg.runs.protocol import Protocol, Severity, Visit, make_visits
from testdg.schema import plain

RESETS = {"once": "once at the start", "domain": "at every domain"}
OWN_ORDERS = ("the benchmark's", "the protocol's own")


@dataclass(frozen=True, kw_only=True)
class Record:
    """How a number was made; stored and printed with it."""

    kind: str
    benchmark: str
    task: str
    data: str
    data_fingerprint: str
    order: str
    domains: tuple[str, ...]
    held_out: tuple[str, ...]
    severity: Severity
    rounds: int
    images_per_domain: int | tuple[int, ...]
    sampling: str
    concentration: float | None
    sampling_seed: int | None
    batch_size: int
    resets: str
    views: str
    model: str
    model_fingerprint: str
    preprocessing: dict[str, Any]
    precision: str
    device: str
    seed: int
    tuning: str

    def visits(self) -> list[Visit]:
        """Every visit of the stream, in order."""
        return make_visits(self.domains, self.held_out, self.severity, self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Give the values as plain JSON; only predictions of pixels are made on views."""
        values = {key: value for key, value in asdict(self).items() if key != "views" or self.task == "segmentation"}
        found: dict[str, Any] = plain(values)
        return found


def make_record(protocol: Protocol, benchmark: Benchmark, stream: Stream, adapter: Adapter, tuning: str) -> Record:
    """Gather everything that the number of a run depends on."""
    about = benchmark.describe()
    adapted, held_out = protocol.split(benchmark)
    images = {segment.domain.name: len(segment.domain) for segment in stream.segments}
    sizes = [images[name] for name in dict.fromkeys((*adapted, *held_out))]
    numbered = isinstance(protocol.order, int)
    chosen = {
        "kind": protocol.name,
        "task": benchmark.task,
        "order": f"order {protocol.order}" if numbered else OWN_ORDERS[protocol.order != "benchmark"],
        "domains": adapted,
        "held_out": held_out,
        "severity": protocol.levels(benchmark),
        "rounds": protocol.rounds,
        "images_per_domain": sizes[0] if len(set(sizes)) == 1 else tuple(sizes),
        "sampling": protocol.sampling,
        "concentration": protocol.concentration if protocol.sampling == "dirichlet" else None,
        "sampling_seed": protocol.seed if protocol.sampling in ("mixed", "dirichlet") else None,
        "batch_size": stream.batch_size,
        "resets": RESETS[protocol.resets],
        "views": protocol.make_views().describe(),
        "model": adapter.model.name,
        "model_fingerprint": adapter.origin["fingerprint"],
        "preprocessing": adapter.model.preprocessing.describe(),
        "precision": adapter.settings.precision,
        "device": adapter.model.device.type,
        "seed": adapter.settings.seed,
        "tuning": tuning,
    }
    return Record(**{**about, **chosen})
