"""What two processes do in the tests of sharing; each is started afresh and finds this file by its name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor

import testdg
from testdg import Adapter, distributed, load_benchmark
from testdg.data.stream import to_float
from testdg.errors import UserError
from testdg.models import Preprocessing, TinyCNN, TinyViT, VisionModel, load_model

ALIGNED = {"learning_rate": 2e-4, "gather": 16, "momentum": 0.99}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "source": ("source", "vit", {}),
    "tent": ("tent", "vit", {"learning_rate": 1e-3}),
    "tent with BatchNorm": ("tent", "cnn", {"learning_rate": 1e-3, "optimizer": "sgd", "steps": 2}),
    "align": ("align", "vit", {}),
    "align to the stream": ("align", "vit", {"sketch": "stream", "source_images": 64}),
    "align with BatchNorm": ("align", "cnn", {}),
    "testdg_aligned": ("testdg_aligned", "vit", {**ALIGNED, "augmentation": 1.0, "mirror": True}),
    "testdg_aligned with BatchNorm": ("testdg_aligned", "cnn", ALIGNED),
}
SIZES = (20, 7, 1, 13, 32)
"""Batches: even, odd, too small to be shared, and smaller and larger than what TestDG aligned gathers."""
BATCHES = 50


def network(kind: str) -> VisionModel:
    torch.manual_seed(0)
    made = TinyViT(width=32, depth=2, patch=8) if kind == "vit" else TinyCNN(width=8)
    return load_model(made, preprocessing=Preprocessing((32, 32), mean=(0.5,) * 3, std=(0.5,) * 3))


def pictures() -> tuple[Tensor, Tensor]:
    """Clean digits, and a stream of them in two kinds of weather."""
    bench = load_benchmark("digits-c", images=400, domains=["snow", "contrast"])
    stream = [domain.read(0, 400)[0] for domain in bench.domains()]
    return to_float(bench.train().read(0, 128)), torch.cat(stream)


def live(case: str, clean: Tensor, stream: Tensor) -> tuple[Adapter, Tensor, int]:
    """Fifty batches. Gives the adapter, all logits, and the most images that one pass had."""
    method, kind, settings = CASES[case]
    adapter = testdg.adapt(network(kind), method, **settings)
    if adapter.awaits_source:
        adapter.warm_up([(part, torch.zeros(len(part), dtype=torch.long)) for part in torch.split(clean, 64)])
    passed: list[int] = []
    adapter.model.network.register_forward_pre_hook(lambda _, given: passed.append(len(given[0])))
    sizes = [SIZES[number % len(SIZES)] for number in range(BATCHES)]
    logits = [adapter(batch) for batch in torch.split(stream[: sum(sizes)], sizes)]
    return adapter, torch.cat(logits), max(passed, default=0)


def write(folder: Path, case: str, adapter: Adapter, logits: Tensor, most: int) -> None:
    tensors = {name: value.clone().contiguous() for name, value in adapter.tensors().items()}
    told = {name: float(value) for name, value in adapter.diagnostics.items()}
    about = {"values": adapter.values(), "most": most, "told": told, "skipped": adapter.skipped}
    save_file({**tensors, "logits": logits}, folder / f"{case}.safetensors", {"about": json.dumps(about)})


def all_cases(folder: Path) -> None:
    clean, stream = pictures()
    for case in CASES:
        write(folder, case, *live(case, clean, stream))


def refusals(folder: Path) -> None:
    """What is refused, in sentences, and that the next batch passes as if nothing had been."""
    _, stream = pictures()
    other = stream[10:20] if distributed.rank() else stream[:10]
    adapter = testdg.adapt(network("vit"), "tent")
    told = [
        sentence(lambda: testdg.adapt(network("vit"), "cotta")(stream[:10])),
        sentence(lambda: testdg.adapt(network("vit"), "testdg_aligned", cuda_graphs=True, sketch="stream")(stream)),
        sentence(lambda: testdg.guard(adapter)),
        sentence(lambda: adapter(other)),
        sentence(lambda: adapter(2 * stream[:10])),
    ]
    logits = adapter(stream[:10])
    (folder / "refused.json").write_text(json.dumps([told, adapter.batches, logits.tolist()]))


def a_failure(folder: Path) -> None:
    """The second process fails in its third batch, the first one waits for it."""
    _, stream = pictures()
    adapter = testdg.adapt(network("vit"), "tent", learning_rate=1e-2)
    adapter(stream[:10])
    adapter(stream[10:20])
    before = {name: value.clone() for name, value in adapter.tensors().items()}
    if distributed.rank():
        adapter.model.register_forward_pre_hook(fail)
    told = [sentence(lambda: adapter(stream[20:30])), sentence(lambda: adapter(stream[20:30]))]
    same = all(torch.equal(value, before[name]) for name, value in adapter.tensors().items())
    (folder / "failed.json").write_text(json.dumps([told, same]))


def fail(*_: Any) -> None:
    raise MemoryError("no memory is left")


def sentence(work: Callable[[], Any]) -> str:
    try:
        work()
    except (UserError, MemoryError) as error:
        return str(error)
    return "nothing was refused"


def start(rank: int, size: int, folder: Path) -> None:
    """A process of a group that torch.distributed has already; it does everything, since it is slow to start."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    distributed.join("cpu")
    own = folder / str(rank)
    own.mkdir()
    all_cases(own)
    refusals(own)
    a_failure(own)
    distributed.leave()
    dist.destroy_process_group()
