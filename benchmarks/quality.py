"""Quality of adaptation on CIFAR-10-C, many configurations side by side on one GPU.

    python benchmarks/quality.py corrupt --data DIR --arrays DIR       # writes <corruption>_<severity>.npy once
    python benchmarks/quality.py run GRID.toml --arrays DIR --model DIR --out FILE.jsonl --jobs 14
    python benchmarks/quality.py best FILE.jsonl --defaults GRID.toml --out GRID.toml  # the best run of every title

DIR of `--data` holds `cifar-10-batches-py/` and, if there are photographs of frost, `frost/`. A grid is a list of
`[[run]]` tables: name, method, preset, settings, domains, images, seeds, rounds, batch, sampling ("sorted" by class, or
"dirichlet"), severities (in each domain one after the other; 5 if left out), guard (true for one, whose probe are 100
training images), and `fork`: after that many domains the adapter
is frozen and tested on the domains that follow (the held-out protocol; `alone`: each image by itself, too), then it
goes on adapting. Each line of the result is one run, with its error per domain in percent.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing as mp
import os
import sys
import time
import tomllib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

EXTRA_ORDERS = {
    "standard": None,
    "extra": ["speckle_noise", "gaussian_blur", "spatter", "saturate"],
    "extra-reversed": ["saturate", "spatter", "gaussian_blur", "speckle_noise"],
}


def corrupt_one(job: tuple[str, int, Path, Path]) -> str:
    """Write one corrupted test set as (10000, 3, 32, 32) uint8."""
    import numpy as np
    import torch

    from testdg.data.corruptions import FrostTextures, corrupt_uint8

    torch.set_num_threads(1)
    name, severity, data, arrays = job
    target = arrays / f"{name}_{severity}.npy"
    if not target.exists():
        images = torch.from_numpy(np.load(arrays / "clean.npy"))
        frost = FrostTextures.from_folder(data / "frost") if (data / "frost").is_dir() else None
        made = corrupt_uint8(images, name, severity, indices=range(len(images)), parameters="cifar", frost=frost)
        np.save(target, made.numpy())
    return name


def corrupt_all(data: Path, arrays: Path, severities: list[int], jobs: int) -> None:
    import numpy as np

    from testdg.data.cifar import read_test, read_train
    from testdg.data.corruptions import EXTRA, STANDARD_ORDER

    arrays.mkdir(parents=True, exist_ok=True)
    test = read_test(data)
    np.save(arrays / "clean.npy", test.images.numpy())
    np.save(arrays / "labels.npy", test.labels.numpy())
    if (data / "cifar-10-batches-py" / "data_batch_1").exists():
        train = read_train(data)
        np.save(arrays / "train.npy", train.images.numpy())
        np.save(arrays / "train_labels.npy", train.labels.numpy())
    work = [(name, severity, data, arrays) for severity in severities for name in (*STANDARD_ORDER, *EXTRA)]
    with mp.get_context("spawn").Pool(jobs) as pool:
        for name in pool.imap_unordered(corrupt_one, work):
            print(name, flush=True)


def expand(grid: dict[str, Any]) -> list[dict[str, Any]]:
    """One entry per seed and per combination of the settings given as lists under `sweep`."""
    from testdg.methods import find_method

    entries = []
    defaults = {"method": "testdg", "settings": {}, "domains": "standard", "images": 10_000, "seeds": [0], "fork": 0}
    common = dict(grid.get("defaults", {}))
    shared = common.pop("settings", {})
    for run in grid["run"]:
        run = {**defaults, **common, **run}
        known = {field.name for field in fields(find_method(run["method"]).Settings)}
        run["settings"] = {**{key: value for key, value in shared.items() if key in known}, **run["settings"]}
        sweep = run.pop("sweep", {})
        for values in itertools.product(*sweep.values()):
            chosen = dict(zip(sweep, values, strict=True))
            label = " ".join([run["name"], *(f"{key}={value}" for key, value in chosen.items())])
            given = {**run["settings"], **chosen}
            precision = {"precision": run["precision"]} if "precision" in run else {}
            for order in run["domains"] if isinstance(run["domains"], list) else [run["domains"]]:
                for seed in run["seeds"]:
                    settings = {key: None if v == "none" else v for key, v in given.items()}
                    own = {"settings": {**precision, **settings}, "domains": order, "seed": seed, "given": given}
                    entries.append({**run, "name": label, "title": run["name"], **own})
    return entries


class Worker:
    """One process: the data on the GPU, one configuration after the other."""

    def __init__(self, arrays: Path, model: str, precision: str) -> None:
        import torch

        from testdg import load_model

        torch.set_num_threads(1)
        torch.set_float32_matmul_precision(precision)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.arrays, self.cache = arrays, {}
        self.labels = self.load("labels")
        self.model = load_model(model).to(self.device)

    def load(self, name: str) -> Any:
        """One array of the folder, kept on the device."""
        import numpy as np
        import torch

        if name not in self.cache:
            self.cache[name] = torch.from_numpy(np.load(self.arrays / f"{name}.npy")).to(self.device)
        return self.cache[name]

    def errors(self, call: Any, domain: str, entry: dict[str, Any]) -> tuple[float, int]:
        """Error in percent over the first images of a domain, and the number of changes that were detected."""
        import torch

        data = self.load(domain)
        order = self.order(entry)
        wrong, changes = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        for rows in torch.split(order, entry.get("batch", 40)):
            logits = call(data[rows].float() / 255)
            wrong += (logits.argmax(1) != self.labels[rows]).sum()
            told = getattr(call, "diagnostics", {})
            changes += told.get("change", 0)
        return 100 * float(wrong) / len(order), int(changes)

    def order(self, entry: dict[str, Any]) -> Any:
        """In which order the images of a domain come."""
        import torch

        from testdg.data.sampling import Sampling

        labels, kind = self.labels[: entry["images"]].cpu(), entry.get("sampling", "file")
        if kind == "sorted":
            return labels.sort(stable=True).indices.to(self.device)
        return Sampling(kind).order(labels, 0).to(self.device) if kind != "file" else torch.arange(len(labels))

    def run(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Adapt along the stream; at the fork, test what is not yet seen with the adapter frozen."""
        from testdg import adapt, guard
        from testdg.data.corruptions import STANDARD_ORDER

        order = EXTRA_ORDERS[entry["domains"]] or list(STANDARD_ORDER)
        order = [f"{domain}_{level}" for domain in order for level in entry.get("severities", [5])]
        order = order * entry.get("rounds", 1)
        preset = entry.get("preset")
        adapter = adapt(self.model, entry["method"], preset=preset, seed=entry["seed"], **entry["settings"])
        if adapter.awaits_source:
            adapter.warm_up(self.source(adapter.source_images(), entry["seed"]))
        if entry.get("guard"):
            adapter = guard(adapter, next(iter(self.source(100, 0, at_once=100)))[0])
        began, domains, changes, after = time.time(), [], [], {}
        for k, domain in enumerate(order):
            error, seen = self.errors(adapter, domain, entry)
            domains.append(round(error, 3))
            print(f"  {entry['name']} seed {entry['seed']}: {domain} {domains[-1]}", file=sys.stderr, flush=True)
            changes.append(seen)
            if k + 1 == entry["fork"]:
                after = self.frozen(adapter, order[k + 1 :], entry)
        mean = sum(domains) / len(domains)
        result = {k: entry[k] for k in ("name", "method", "domains", "images", "seed", "fork")}
        result["settings"] = asdict(adapter.settings)
        wanted = ("title", "preset", "given", "rounds", "batch", "sampling", "severities", "guard")
        result |= {key: entry[key] for key in wanted if key in entry}
        result |= {"order": result.pop("domains"), "domains": domains, "mean": round(mean, 3), "changes": changes}
        for name, errors in after.items():
            result |= {name: errors, f"{name}_mean": round(sum(errors) / len(errors), 3)}
        if entry.get("guard"):
            result["guard"] = dict(adapter.counts)
            told = [d for d in adapter.decisions if d.action != "skip"]
            result["undone"] = [f"batch {decision.batch}: {decision.reason}" for decision in told]
        return result | {"skipped": adapter.skipped, "seconds": round(time.time() - began, 1)}

    def frozen(self, adapter: Any, order: list[str], entry: dict[str, Any]) -> dict[str, list[float]]:
        """Errors on domains without learning: as the adapter predicts, and each image by itself."""
        import torch

        found = {"held_out": [round(self.errors(adapter.predict, d, entry)[0], 3) for d in order]}
        model = adapter.adapted_model()
        if model.alignment is not None:
            model.alignment.reads = "image"

            @torch.no_grad()
            def call(images: torch.Tensor) -> torch.Tensor:
                with adapter.autocast():
                    return model(model.prepare(images)).logits

            found["alone"] = [round(self.errors(call, d, entry)[0], 3) for d in order]
        return found

    def source(self, count: int, seed: int, at_once: int = 64) -> Any:
        """Batches of clean training images and their labels, drawn by a seed, in rounds where there are too few."""
        import torch

        images, labels = self.load("train"), self.load("train_labels")
        generator = torch.Generator().manual_seed(seed)
        rounds = -(-count // len(images))
        order = torch.cat([torch.randperm(len(images), generator=generator) for _ in range(rounds)])[:count]
        parts = torch.split(order.to(self.device), at_once)
        return ((images[part].float() / 255, labels[part]) for part in parts)

    def clean_up(self) -> None:
        """Give the memory of the last adapter back."""
        import gc

        import torch

        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def serve(arguments: argparse.Namespace, todo: Any, done: Any) -> None:
    worker = Worker(arguments.arrays, arguments.model, arguments.matmul)
    while (entry := todo.get()) is not None:
        try:
            done.put(worker.run(entry))
        except Exception as error:
            done.put({"name": entry["name"], "error": f"{type(error).__name__}: {error}"[:200]})
        worker.clean_up()


def run_all(arguments: argparse.Namespace) -> None:
    entries = expand(tomllib.loads(arguments.grid.read_text()))
    context = mp.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    jobs = min(arguments.jobs, len(entries))
    for entry in [*entries, *[None] * jobs]:
        todo.put(entry)
    workers = [context.Process(target=serve, args=(arguments, todo, done)) for _ in range(jobs)]
    for process in workers:
        process.start()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("a") as file:
        for _ in entries:
            result = done.get()
            file.write(json.dumps(result) + "\n")
            file.flush()
            keys = ("error", "mean", "held_out_mean", "alone_mean", "seconds")
            shown = " ".join(f"{key}={result[key]}" for key in keys if key in result)
            print(f"{result['name']} [{result.get('order')} seed {result.get('seed')}] {shown}", flush=True)


def choose_best(arguments: argparse.Namespace) -> None:
    """Write a grid with the settings of every title that had the lowest mean error over their runs."""
    import tomli_w

    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for line in arguments.results.read_text().splitlines():
        row = json.loads(line)
        if "error" not in row:
            groups.setdefault(row["title"], {}).setdefault(row["name"], []).append(row)
    best = [min(candidates.values(), key=mean_error) for candidates in groups.values()]
    runs = []
    for rows in sorted(best, key=mean_error)[: arguments.top]:
        known = {key: rows[0][key] for key in ("title", "method", "preset", "given") if key in rows[0]}
        runs.append({"name": known.pop("title"), "settings": known.pop("given"), **known})
    defaults = tomllib.loads(arguments.defaults.read_text()).get("defaults", {})
    arguments.out.write_text(tomli_w.dumps({"defaults": {**defaults, "seeds": arguments.seeds}, "run": runs}))


def mean_error(rows: list[dict[str, Any]]) -> float:
    return sum(row["mean"] for row in rows) / len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("corrupt")
    one.add_argument("--data", type=Path, required=True)
    one.add_argument("--severities", type=int, nargs="+", default=[5])
    two = verbs.add_parser("run")
    two.add_argument("grid", type=Path)
    two.add_argument("--model", required=True)
    two.add_argument("--out", type=Path, required=True)
    two.add_argument("--matmul", default="high", choices=["highest", "high", "medium"])
    three = verbs.add_parser("best")
    three.add_argument("results", type=Path)
    three.add_argument("--defaults", type=Path, required=True, help="a grid whose defaults the new one takes")
    three.add_argument("--seeds", type=int, nargs="+", default=[0])
    three.add_argument("--top", type=int, help="the best titles only")
    three.add_argument("--out", type=Path, required=True)
    for verb in (one, two):
        verb.add_argument("--arrays", type=Path, required=True)
        verb.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    if arguments.verb == "corrupt":
        corrupt_all(arguments.data, arguments.arrays, arguments.severities, arguments.jobs)
    elif arguments.verb == "best":
        choose_best(arguments)
    else:
        run_all(arguments)


if __name__ == "__main__":
    main()
