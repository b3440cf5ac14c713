"""Analyses of the stream, of cost, of many runs, and of attention."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from support.analyses import choices, subject
from support.errors import refused
from testdg.models import Preprocessing, TinyViT, VisionModel, load_model
from testdg.report.analyses import draw_analysis
from testdg.runs.events import rolling_scores, visit_spans
from testdg.runs.scores import Classification, Segmentation
from testdg.runs.session import open_run
from testdg.studies.analyses import Numbers, Subject, find_analysis
from testdg.studies.analyses.cost import comparable_groups, last_images, peak_bytes, read_runs
from testdg.studies.analyses.spaces import attention_maps, check_model, entropy
from testdg.studies.analyses.stream import detections


@pytest.fixture
def values(model: Path) -> dict[str, Any]:
    return choices(model)


# stream


def event(number: int, domain: str, errors: int, change: bool = False, images: int = 4) -> dict[str, Any]:
    part = {"segment": 0, "images": images, "errors": errors, "nll": 0.0, "early": [0, 0], "gaps": {}}
    about = {"batch": number, "domain": domain, "severity": 5, "round": 1, "phase": "adapt", "images": images}
    return {**about, "errors": errors, "diagnostics": {"change": change}, "parts": [part]}


def test_the_rolling_error_starts_again_with_every_domain() -> None:
    events = [event(n, "fog" if n < 3 else "snow", errors) for n, errors in enumerate([4, 2, 0, 1, 3])]
    assert visit_spans(events) == [(0, 3), (3, 5)]
    assert rolling_scores(events, Classification(), 2) == [100, 75, 25, 25, 50]


def test_the_curve_of_a_segmentation_run_is_its_miou() -> None:
    maps = [("fog", [[2, 0], [0, 2]]), ("fog", [[0, 2], [0, 2]]), ("snow", [[1, 1], [1, 1]])]
    events = []
    for number, (domain, confusion) in enumerate(maps):
        one = event(number, domain, 0, images=1)
        events.append({**one, "parts": [{**one["parts"][0], "confusion": confusion}]})
    fog = (100 * 2 / 4 + 100 * 4 / 6) / 2  # both batches: 2 of 4 right, 4 of 6
    assert rolling_scores(events, Segmentation(), 3) == pytest.approx([100.0, fog, 100 / 3])


def test_alarms_are_real_late_or_false() -> None:
    alarms = {1, 4, 5, 8}
    names = ["a"] * 3 + ["b"] * 3 + ["c"] * 3 + ["d"] * 3
    events = [event(n, name, 0, n in alarms) for n, name in enumerate(names)]
    assert detections(events) == {
        "batches": [1, 4, 5, 8], "real_changes": 3, "noticed": 2, "false_alarms": 2, "mean_delay_batches": 1.5,
    }  # fmt: skip
    silent = [{**one, "diagnostics": {}} for one in events]
    assert detections(silent) is None


# cost, parameters


def test_memory_is_that_of_tensors_alive_at_one_time() -> None:
    def one_after_the_other() -> None:
        first = torch.ones(1000)  # 4,000 bytes
        first.view(10, 100).add_(1)  # neither a view nor a change in place needs any
        del first
        torch.ones(3000).sum()

    def together() -> Any:
        return torch.ones(1000), torch.ones(3000)

    assert peak_bytes(one_after_the_other) == 12_000 + 4  # and the sum
    assert peak_bytes(together) == 16_000


def test_memory_counts_what_a_backward_needs() -> None:
    weight, images = torch.ones(100, 100, requires_grad=True), torch.ones(50, 100)

    def learn() -> None:
        (images @ weight).relu().sum().backward()

    with torch.no_grad():
        assert peak_bytes(lambda: (images @ weight).relu().sum()) == 2 * 20_000  # before and after relu
    assert peak_bytes(learn) == 20_000 + 40_000 + 8  # gradients before relu and of the weight; the sum and its own


def test_cost_is_that_of_a_method_at_the_end_of_its_stream(values: dict[str, Any], tmp_path: Path) -> None:
    found = subject("cost", values, tmp_path)
    stream = open_run(found.specs[1]).stream
    assert [images.tolist() for images in last_images(stream, 2)] == [stream[n].images.tolist() for n in (4, 5)]
    assert torch.equal(last_images(stream, 7)[0], stream[5].images)  # it is shorter than that
    shutil.rmtree(found.complete()[1][1].folder / "state")
    with refused("no-state"):
        find_analysis("cost").compute(found)


def test_parameters_are_those_that_move(values: dict[str, Any], tmp_path: Path) -> None:
    values |= {"method": ["tent", "testdg"], "settings": {}}
    rows = find_analysis("parameters").compute(subject("parameters", values, tmp_path))["rows"]
    found = {row["name"]: row["parameters"] for row in rows}
    network = TinyViT(patch=8, width=16, depth=1, heads=2)
    norms = sum(p.numel() for m in network.modules() if isinstance(m, torch.nn.LayerNorm) for p in m.parameters())
    heads = (16 * 128 + 128) + (128 * 16 + 16)  # the extractor
    assert (found["Source"], found["TENT"]) == (0, norms)
    assert found["TestDG"] > sum(p.numel() for p in network.parameters()) + heads


# overview


def test_overview_groups_runs_that_can_be_compared(values: dict[str, Any], tmp_path: Path) -> None:
    for more in ({"seeds": [0, 1]}, {"batch_size": 8}):
        subject("stream", {**values, **more}, tmp_path)
    numbers: Numbers = find_analysis("overview").compute(Subject([], [], runs=tmp_path))
    sizes = [
        (group["batch_size"], [(row["name"], row["runs"]) for row in group["rows"]]) for group in numbers["groups"]
    ]
    assert sorted(sizes[0][1]) == [("Source", 1), ("TestDG", 2)]
    assert sizes[0][0] == 4
    assert sorted(sizes[1][1]) == [("Source", 1), ("TestDG", 1)]
    results, damaged = read_runs(tmp_path)
    assert ([len(group) for group in comparable_groups(results)], damaged) == ([3, 2], [])
    (results[0].folder / "result.json").write_text("{")
    assert [len(left) for left in read_runs(tmp_path)] == [4, 1]
    draw_analysis("overview", numbers, tmp_path / "overview.svg", "title")
    assert "digits-c, continual" in (tmp_path / "overview.svg").read_text(encoding="utf-8")
    with refused("no-runs", tmp_path / "none", "--runs"):
        read_runs(tmp_path / "none")


def test_of_many_variants_an_overview_shows_the_most_usual(values: dict[str, Any], tmp_path: Path) -> None:
    for learning_rate, steps in [(1e-3, 1), (1e-3, 2), (1e-3, 3), (1e-3, 4), (1e-4, 1), (2e-4, 1), (3e-4, 1)]:
        chosen = {"tent": {"learning_rate": learning_rate, "steps": steps}}
        subject("stream", {**values, "method": "tent", "settings": chosen}, tmp_path)
    (group,) = find_analysis("overview").compute(Subject([], [], runs=tmp_path))["groups"]
    assert {row["name"] for row in group["rows"]} == {"Source", "TENT, of 7 variants"}


# attention


@pytest.fixture
def transformer(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    network = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=10, **small))
    load_model(network, preprocessing=Preprocessing((32, 32))).save(tmp_path / "vit")
    return tmp_path / "vit"


def test_attention_is_that_of_the_last_layer(transformer: Path) -> None:
    model, images = load_model(str(transformer)), torch.rand(3, 3, 32, 32)
    inputs: dict[str, torch.Tensor] = {}
    linears = {name.rsplit(".", 1)[1]: module for name, module in model.named_modules() if "layers.1.attention" in name}
    names = [
        next(key for key in linears if key in (short, long)) for short, long in (("q_proj", "query"), ("k_proj", "key"))
    ]
    handles = [
        linears[name].register_forward_hook(lambda _, __, output, name=name: inputs.update({name: output}))
        for name in names
    ]
    maps = attention_maps(model, images)
    for handle in handles:
        handle.remove()
    query, key = (inputs[name].view(3, 17, 2, 8).transpose(1, 2) for name in names)
    expected = (query @ key.transpose(2, 3) / math.sqrt(8)).softmax(3).mean(1)[:, 0, 1:]
    torch.testing.assert_close(maps.flatten(1), expected / expected.sum(1, keepdim=True))
    assert entropy(torch.full((1, 4, 4), 1 / 16)).item() == pytest.approx(math.log(16))
    assert entropy(torch.eye(2)[None, :1]).item() == 0


def test_attention_with_and_without_the_amplifier(transformer: Path, values: dict[str, Any], tmp_path: Path) -> None:
    values |= {"model": str(transformer)}
    numbers = find_analysis("attention").compute(subject("attention", values, tmp_path / "runs"))
    assert [list(row["maps"]) for row in numbers["rows"]] == 3 * [["without amplifier", "with amplifier"]]
    draw_analysis("attention", numbers, tmp_path / "a.png", "title")


def test_variants_are_testdgs(values: dict[str, Any]) -> None:
    with refused("not-analyzable", "attention", "tent", "--methods"):
        find_analysis("attention").grid({**values, "method": "tent"})


def test_a_model_without_attention_maps_is_refused() -> None:
    model = VisionModel(TinyViT(width=16, depth=1, patch=8), "head", Preprocessing((32, 32)), "tiny")
    with refused("no-attention-maps", "tiny"):
        check_model(model)
