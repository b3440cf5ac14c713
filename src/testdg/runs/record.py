"""The record: everything that a number depends on, as plain values; stored and printed with it."""

from typing import Any

from testdg.core.adapter import Adapter
from testdg.data.benchmarks import Benchmark
from testdg.data.stream import Stream
from testdg.runs.protocol import Protocol
from testdg.schema import plain
from testdg.spec import RunSpec

RESETS = {"once": "once at the start", "domain": "at every domain"}
OWN_ORDERS = ("the benchmark's", "the protocol's own")


def make_record(
    protocol: Protocol, benchmark: Benchmark, stream: Stream, adapter: Adapter, tuning: str
) -> dict[str, Any]:
    """Collect everything that the numbers of a run depend on; `tuning` says where its settings come from."""
    about = benchmark.describe()
    adapted, held_out = protocol.split(benchmark)
    images = {segment.domain.name: len(segment.domain) for segment in stream.segments}
    sizes = [images[name] for name in dict.fromkeys((*adapted, *held_out))]
    own_order = OWN_ORDERS[protocol.order != "benchmark"]
    values = {
        "kind": protocol.name,
        "benchmark": about["benchmark"],
        "task": benchmark.task,
        "data": about["data"],
        "data_fingerprint": about["data_fingerprint"],
        "order": f"order {protocol.order}" if isinstance(protocol.order, int) else own_order,
        "domains": adapted,
        "held_out": held_out,
        "severity": protocol.levels(benchmark),
        "rounds": protocol.rounds,
        "images_per_domain": sizes[0] if len(set(sizes)) == 1 else sizes,
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
    if benchmark.task != "segmentation":  # only predictions of pixels are made on views
        del values["views"]
    found: dict[str, Any] = plain(values)
    return found


def settings_origin(spec: RunSpec, preset: str | None) -> str:
    """Where the settings of a run come from, in words."""
    parts = [f"the method's preset for {preset}" if preset else "the method's defaults"]
    for file in dict.fromkeys(spec.chosen_in.values()):
        keys = sorted(key for key, one in spec.chosen_in.items() if one == file)
        parts.append(f"chosen in {file}: {', '.join(keys)}")
    if own := sorted(spec.settings.keys() - spec.chosen_in.keys() - {"seed", "precision"}):
        parts.append(f"chosen by the user: {', '.join(own)}")
    return "; ".join(parts)
