"""Measure the corruptions: seconds each, and in total, on random images.

python benchmarks/corruptions.py --images 10000 --side 32 --severity 5 --threads 2
"""

from __future__ import annotations

import argparse
import time

import torch

from testdg.data.corruptions import EXTRA, SEVERITIES, STANDARD_ORDER, FrostTextures, corrupt_uint8


def main() -> None:
    arguments = _parse()
    torch.set_num_threads(arguments.threads)
    generator = torch.Generator().manual_seed(0)
    shape = (arguments.images, 3, arguments.side, arguments.side)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(arguments.device)
    textures = FrostTextures.procedural()
    names = arguments.only or (STANDARD_ORDER + EXTRA if arguments.extra else STANDARD_ORDER)
    seconds = {name: _measure(images, name, arguments.severity, textures) for name in names}
    print(f"{'total':<18} {sum(seconds.values()):8.2f} s")


def _measure(images: torch.Tensor, name: str, severity: int, textures: FrostTextures) -> float:
    start = time.perf_counter()
    corrupt_uint8(images, name, severity, indices=range(len(images)), frost=textures).cpu()
    elapsed = time.perf_counter() - start
    print(f"{name:<18} {elapsed:8.2f} s", flush=True)
    return elapsed


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--severity", type=int, default=5, choices=SEVERITIES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--extra", action="store_true", help="the four further corruptions too")
    parser.add_argument("--only", nargs="*", choices=STANDARD_ORDER + EXTRA, help="these corruptions alone")
    return parser.parse_args()


if __name__ == "__main__":
    main()
