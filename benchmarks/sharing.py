"""What two processes that share a stream tell each other about a batch: messages, and bytes that each hands over.

    python benchmarks/sharing.py

The numbers are counted, not timed: they depend on the model and on the method, and on no machine.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import testdg.methods
from testdg import distributed, load_benchmark
from testdg.data.stream import to_float
from testdg.distributed import group, sharing
from testdg.evaluation import source_model

METHODS = ("source", "tent", "align", "testdg_aligned")
BATCH, BATCHES = 20, 10


def count(rank: int, meeting: str) -> None:
    """Let every method live through some batches, and print what a batch took."""
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    distributed.join("cpu")
    sent: list[int] = []
    call = group.collect

    def counted(collective: Any, *inputs: Any, **options: Any) -> None:
        sent.append(inputs[-1].nbytes)
        call(collective, *inputs, **options)

    group.collect = sharing.collect = counted
    bench = load_benchmark("digits-c", images=BATCH * BATCHES, domains=["snow"])
    clean, labels = to_float(bench.train().read(0, 256)), bench.train().labels[:256]
    (domain,) = bench.domains()
    model = source_model(bench)
    for method in METHODS:
        adapter = testdg.adapt(model, method, **testdg.methods.find_method(method).presets.get("digits-c", {}))
        if adapter.awaits_source:
            adapter.warm_up([(clean, labels)])
        sent.clear()
        for start in range(0, BATCH * BATCHES, BATCH):
            adapter(domain.read(start, start + BATCH)[0])
        moved = sum(parameter.numel() for parameter in adapter.trainable().values())
        if rank == 0:
            told = f"{len(sent) / BATCHES:.0f} messages, {sum(sent) / BATCHES:,.0f} bytes"
            print(f"{method}: {moved:,} parameters move; {told} a batch")
    group.collect = sharing.collect = call
    distributed.leave()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    source_model(load_benchmark("digits-c"))  # trained once, here
    with tempfile.TemporaryDirectory() as folder:
        spawn(count, (str(Path(folder) / "meeting"),), nprocs=2)
