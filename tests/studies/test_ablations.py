from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import rbf_kernel

from support.errors import refused
from support.results import make_result
from testdg.methods.testdg.selection import selection_mmd2
from testdg.report.bench import Layout
from testdg.runs import Protocol, Result
from testdg.runs.folder import RunFolder
from testdg.studies import Complete, RunSpec, expand, summarise
from testdg.studies.ablations import ABLATIONS, Ablation, find_ablation

every = pytest.mark.parametrize("ablation", ABLATIONS.values(), ids=ABLATIONS.keys())


@every
def test_every_row_is_a_run_next_to_source(ablation: Ablation) -> None:
    specs = expand(ablation.grid({"images": 20}, {"learning_rate": 1e-5}))
    protocols = ablation.protocols or ("continual",)
    assert [spec.name for spec in specs] == len(protocols) * ["Source", *ablation.rows]
    assert {spec.settings.get("learning_rate") for spec in specs if spec.method == "testdg"} == {1e-5}
    for spec in specs:
        if spec.method == "testdg":
            assert spec.settings == {"learning_rate": 1e-5, **ablation.rows[spec.name]}


@every
def test_published_numbers_belong_to_rows_of_the_ablation(ablation: Ablation) -> None:
    if ablation.published is not None:
        assert ablation.published.rows.keys() <= {"Source", *ablation.rows}
        assert {len(values) for values in ablation.published.rows.values()} == {len(ablation.published.columns)}
        assert "other model, other stream" in ablation.published.heading


def test_components_add_one_part_at_a_time() -> None:
    rows = list(find_ablation("components").rows.values())
    changes = [{key for key in after if after[key] != before[key]} for before, after in pairwise(rows)]
    assert changes == [{"invariance"}, {"discrimination"}, {"selection"}, {"prototype_update"}, {"amplifier"}]
    published = find_ablation("components").published
    assert published is not None
    assert [values[0] for values in published.rows.values()] == [28.2, 18.0, 10.5, 8.3, 8.0, 7.7, 21.9]


def test_what_the_rows_vary_cannot_be_set_for_all() -> None:
    with refused("setting-varied", "queue", "queue_length"):
        find_ablation("queue").grid({}, {"queue_length": 3})
    with refused("unknown-ablation", "threshhold", "'threshold'"):
        find_ablation("threshhold")


def run(name: str, folder: Path, events: list[dict[str, Any]], seed: int = 0) -> tuple[RunSpec, Result]:
    method = "source" if name == "Source" else "testdg"
    shared = {"method": method, "benchmark": "digits-c", "protocol": "continual", "stream": Protocol()}
    spec = RunSpec(name=name, batch_size=4, batches=2, seed=seed, **shared)
    result = make_result(method, {"fog": 50.0}, folder, seed=seed)
    about = {"domain": "fog", "phase": "adapt", "images": 2, "errors": 1, "parts": []}
    log = RunFolder(folder, {})
    with log.open():
        log.append([{"batch": number, **about, "diagnostics": event} for number, event in enumerate(events)])
        log.finish(result)
    return spec, result


def test_more_columns_come_from_the_events_and_published_numbers_stay_apart(tmp_path: Path) -> None:
    first = [{"change": False}, {"change": True, "prototype_mmd2": 0.01}, {"change": True, "prototype_mmd2": 0.03}]
    second = [{"prototype_mmd2": 0.0}, {"change": True, "prototype_mmd2": 0.08}]
    runs = [
        run("Source", tmp_path / "a", [{}, {}]),
        run("selection mmd", tmp_path / "b", first),
        run("selection mmd", tmp_path / "c", second, seed=1),
        run("selection fifo", tmp_path / "d", [{"change": False}]),
    ]
    tables = summarise([spec for spec, _ in runs], [Complete(number, one) for number, (_, one) in enumerate(runs)])
    ablation = find_ablation("selection")
    layout = Layout(ablation.event_columns, ablation.published)
    measured, published = layout.text(tables).split("published, ViT-B/16 on CIFAR-10-C: other model, other stream")
    rows = {line.split("  ")[0]: line.split() for line in measured.splitlines() if line.startswith(("S", "selection "))}
    assert measured.splitlines()[-5].split()[-2:] == ["changes", "MMD²"]
    assert rows["selection mmd"][-6:] == ["1.5", "±", "0.7", "0.0300", "±", "0.0141"]  # of 2 and 1; of 0.02 and 0.04
    assert rows["selection fifo"][-1] == "0.0"  # nothing was chosen, so there is no MMD
    assert "0.0216" in published
    assert "0.0216" not in measured
    plain = layout.plain(tables)
    assert plain["tables"][0]["rows"][1]["prototype_mmd2"]["mean"] == pytest.approx(0.03)
    assert plain["published"]["rows"]["selection mmd"] == (7.7, 0.0216)
    assert "prototype_mmd2" in layout.csv(tables)
    assert "0.0216" not in layout.csv(tables)
    assert "## published, ViT-B/16" in layout.markdown(tables)


@pytest.mark.parametrize("gamma", [None, 0.7])
def test_the_quality_of_a_selection_is_the_squared_mmd(gamma: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    x, chosen = torch.randn(30, 4, generator=generator).double(), torch.tensor([3, 8, 21])
    width = gamma if gamma is not None else 1 / float(np.sort(torch.pdist(x).square().numpy())[(30 * 29 // 2 - 1) // 2])
    all_, some = x.numpy(), x[chosen].numpy()
    expected = rbf_kernel(all_, gamma=width).mean() + rbf_kernel(some, gamma=width).mean()
    expected -= 2 * rbf_kernel(all_, some, gamma=width).mean()
    assert float(selection_mmd2(x, chosen, gamma)) == pytest.approx(expected)
    assert float(selection_mmd2(x, torch.arange(30), gamma)) == pytest.approx(0, abs=1e-12)
