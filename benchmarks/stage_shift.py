"""The mIoU if a condition looked like another one to a stage of the encoder: an upper bound for L_inv.

    python benchmarks/stage_shift.py --data camvid-val --model camvid-segformer --out results/camvid/stage-shift.csv

The source model is not adapted (its decoder takes the statistics of the picture, as TestDG's does). The mean of every
channel at the end of a stage, over pictures and places of a condition, is moved to where another condition has it.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from testdg import load_model
from testdg.data.benchmarks import load_benchmark
from testdg.methods.parts.normalisation import use_batch_statistics
from testdg.models import VisionModel
from testdg.runs.scores import find_score

CONDITIONS = ("fog", "night", "rain", "snow")
STAGES = ((1,), (2,), (3,), (4,), (1, 2, 3), (1, 2, 3, 4))
Pictures = Sequence[tuple[Tensor, Tensor]]


def ends(model: VisionModel) -> list[nn.Module]:
    """The norms that the stages of a SegFormer end with."""
    pattern = re.compile(r"(stages\.\d\.layer_norm|encoder\.layer_norm\.\d)$")
    return [module for name, module in model.named_modules() if pattern.search(name)]


@torch.inference_mode()
def miou(model: VisionModel, pictures: Pictures) -> float:
    score, total = find_score("segmentation"), torch.zeros(())
    for image, labels in pictures:
        rows = score.rows(model(model.prepare(image)).logits, labels, torch.zeros(1, dtype=torch.bool))
        total = total + rows.sum(0)
    return float(score.metrics(total.double().numpy(), len(pictures))["miou"])


def with_hooks(model: VisionModel, hooks: dict[int, Callable[..., Any]], pictures: Pictures) -> float:
    """The mIoU while these hooks see the ends of some stages, counted from 1."""
    handles = [ends(model)[stage - 1].register_forward_hook(hook) for stage, hook in hooks.items()]
    try:
        return miou(model, pictures)
    finally:
        for handle in handles:
            handle.remove()


def measure(model: VisionModel, pictures: Pictures) -> tuple[float, dict[int, Tensor]]:
    """The mIoU as it is, and the mean of every channel at the end of every stage."""
    seen: dict[int, list[Tensor]] = {stage: [] for stage in range(1, 5)}

    def remember(stage: int) -> Callable[..., None]:
        return lambda module, inputs, output: seen[stage].append(output.flatten(0, -2).mean(0))

    found = with_hooks(model, {stage: remember(stage) for stage in seen}, pictures)
    return found, {stage: torch.stack(means).mean(0) for stage, means in seen.items()}


def _move(gap: Tensor) -> Callable[..., Tensor]:
    return lambda module, inputs, output: output + gap


def main() -> None:
    arguments = _parse()
    benchmark, model = load_benchmark("folder-weather", data=arguments.data), load_model(arguments.model).eval()
    use_batch_statistics(model)
    places = range(0, len(benchmark.test()), arguments.every)
    domains = {name: benchmark.domain(name) for name in CONDITIONS}
    pictures = {name: [domain.take([place]) for place in places] for name, domain in domains.items()}
    known = {name: measure(model, pictures[name]) for name in CONDITIONS}
    rows: list[list[Any]] = [[name, "", "", round(found, 2)] for name, (found, _) in known.items()]
    for name, (_, here) in known.items():
        for other in (one for one in CONDITIONS if one != name):
            for stages in STAGES:
                gaps = {stage: known[other][1][stage] - here[stage] for stage in stages}
                moved = with_hooks(model, {stage: _move(gap) for stage, gap in gaps.items()}, pictures[name])
                rows.append([name, other, " ".join(map(str, stages)), round(moved, 2)])
                print(*rows[-1], flush=True)
    with arguments.out.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerows([["condition", "moved to", "stages", "miou"], *rows])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of pictures and label maps")
    parser.add_argument("--model", required=True, help="folder of a SegFormer")
    parser.add_argument("--every", type=int, default=6, help="take every so many pictures (6)")
    parser.add_argument("--out", type=Path, required=True, help="CSV to write")
    return parser.parse_args()


if __name__ == "__main__":
    main()
