"""Milliseconds and memory of one batch, against one source forward of the same run.

    python benchmarks/step_cost.py                        # ViT-B/16, 384 px, batch 40, random weights, on the GPU
    python benchmarks/step_cost.py --methods cotta vida   # these, too; --methods all for every one
    python benchmarks/step_cost.py --segformer 5          # SegFormer-B5, 960 x 540 px, batch 1
    python benchmarks/step_cost.py --tiny                 # the tiny ViT, on any machine

Every figure is the median over batches after a warm-up. Ratios to the source forward are what carries over to
another machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from testdg import Preprocessing, adapt, load_model
from testdg.core.graphs import Recorded
from testdg.data.segmentation.classes import CITYSCAPES
from testdg.errors import UserError
from testdg.methods import Adapter, find_method, methods
from testdg.methods.align import Align
from testdg.methods.testdg.selection import select_mmd
from testdg.models import TinyViT, VisionModel
from testdg.models.segformer import random_segformer


def vit_base(size: int) -> VisionModel:
    from transformers import ViTConfig, ViTForImageClassification

    network = ViTForImageClassification(ViTConfig(image_size=size, num_labels=10))
    return load_model(network, preprocessing=Preprocessing((size, size)), name=f"ViT-B/16 at {size} px")


def blocks(model: VisionModel) -> nn.ModuleList | nn.Sequential:
    """The transformer blocks: the longest list of modules."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    return max(lists, key=len)


def median_ms(call: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median time of a call, in milliseconds, with the device drained before and after."""
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def measure(name: str, call: Callable[[], object], device: torch.device, repeats: int) -> dict[str, Any]:
    for _ in range(3):
        call()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    row = {"name": name, "ms": round(median_ms(call, device, repeats), 2)}
    if device.type == "cuda":
        row["GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return row


FAR = 1e9
"""Gap to the memory that no batch has: random weights move so fast as they learn that each would be a new domain."""


def ready(model: VisionModel, method: str, images: torch.Tensor, precision: str) -> Adapter:
    """An adapter that has seen a few source images, if it wants some."""
    options = {"threshold": FAR} if issubclass(find_method(method), Align) else {}
    adapter = adapt(model, method, precision=precision, **options)
    if adapter.awaits_source:
        few = images[:8]
        labels = model(few.to(model.device)).logits.argmax(1)
        adapter.warm_up([(few, labels)] * -(-adapter.least_source_images // len(few)))
    return adapter


def steps(model: VisionModel, images: torch.Tensor, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Source forward, TENT, the requested methods, TestDG before and after the first change."""
    device, repeats, precision = images.device, arguments.repeats, arguments.precision
    names = methods() if arguments.methods == ["all"] else arguments.methods
    rows = []
    for method in dict.fromkeys(["source", "tent", *names]):
        try:
            adapter = ready(model, method, images, precision)
        except UserError as error:
            print(error)
            continue
        if method != "testdg":
            name = "source forward" if method == "source" else f"{find_method(method).title} step"
            row = measure(name, lambda adapter=adapter: adapter(images), device, repeats)
            rows.append(row | {"parameters": sum(p.numel() for p in adapter.trainable().values())})
        del adapter
    options: dict[str, Any] = {"amplifier": not arguments.no_amplifier}
    options |= {"threshold": 1.0}  # changes when the benchmark says so
    testdg = adapt(model, "testdg", precision=precision, **options)
    if arguments.compile:
        for part in (testdg.model, testdg.teacher):
            for block in blocks(part):
                block.compile()
    rows.append(measure("TestDG step, first domain", lambda: testdg(images), device, repeats))
    testdg.detector.threshold, testdg.detector.past = -1.0, [0.0]
    testdg(images)
    testdg.detector.threshold = 1.0
    rows.append(measure("TestDG step, after a change", lambda: testdg(images), device, repeats))
    return rows


def selections(device: torch.device, repeats: int) -> list[dict[str, Any]]:
    """Choosing 40 prototypes from queues of several lengths."""
    rows = []
    for n in (256, 2048, 32768):
        x = torch.randn(n, 16, device=device)
        rows.append(measure(f"select 40 of {n}", lambda x=x: select_mmd(x, 40), device, repeats))
        if device.type == "cuda":
            recorded = Recorded(lambda x: {"chosen": select_mmd(x, 40)})
            rows.append(measure(f"select 40 of {n}, recorded", lambda x=x, r=recorded: r(None, x), device, repeats))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--methods", nargs="*", default=[], help="more methods to measure, or all")
    parser.add_argument("--segformer", type=int, choices=range(6), help="a SegFormer of this size at 960 x 540 px")
    parser.add_argument("--model", help="a folder or hub id instead of a ViT-B/16 with random weights")
    parser.add_argument("--no-amplifier", action="store_true", help="TestDG without its amplifier")
    parser.add_argument("--size", type=int, default=384)
    parser.add_argument("--batch", type=int, help="40; 1 for a SegFormer")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16"])
    parser.add_argument("--compile", action="store_true", help="torch.compile each transformer block")
    parser.add_argument("--selection-only", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    small = load_model(TinyViT(), preprocessing=Preprocessing((32, 32)), name="tiny ViT")
    given = load_model(arguments.model) if arguments.model else None
    size = arguments.segformer
    dense = None if size is None else random_segformer(f"segformer-b{size}", CITYSCAPES)
    model = (dense or given or (small if arguments.tiny else vit_base(arguments.size))).to(device)
    batch = arguments.batch or (1 if dense else 40)
    size = (540, 960) if dense else model.preprocessing.input_size or (32, 32)
    images = torch.rand(batch, 3, *size, device=device)
    rows = [] if arguments.selection_only else steps(model, images, arguments)
    rows += selections(device, arguments.repeats)
    source = rows[0]["ms"]
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{model.name}, batch {batch}, {arguments.precision}, {where}, compiled: {arguments.compile}")
    for row in rows:
        if not arguments.selection_only:
            row["source forwards"] = round(row["ms"] / source, 2)
        ratio = f"{row['source forwards']:>7.2f} x" if "source forwards" in row else ""
        print(f"{row['name']:<30} {row['ms']:>9.2f} ms {ratio} {row.get('GiB', 0):>7.2f} GiB")
    if arguments.out:
        about = {"model": model.name, "batch": batch, "device": where, "torch": torch.__version__}
        about |= {"precision": arguments.precision, "compiled": arguments.compile}
        about |= {"amplifier": not arguments.no_amplifier}
        arguments.out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
