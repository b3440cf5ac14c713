"""Every analysis, from specs to a figure; and what embeddings, probes and prototypes are measured with."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import rbf_kernel

from support.analyses import ALARMS, choices, subject
from support.errors import refused
from testdg.methods.testdg import TestDG
from testdg.report.analyses import draw_analysis
from testdg.runs.session import RunSession
from testdg.studies import Grid, expand
from testdg.studies.analyses import ANALYSES, find_analysis
from testdg.studies.analyses.prototypes import Selection, distances, images_at, places, random_mmd2, watch
from testdg.studies.analyses.spaces import chamfer, gaps, learnt_half, probe, project, total_variance
from testdg.studies.analyses.subject import replay, spaced, warm_run

POINTS = arrays(np.float64, st.tuples(st.integers(1, 6), st.just(3)), elements=st.floats(-9, 9, width=32))


@pytest.fixture
def values(model: Path) -> dict[str, Any]:
    return choices(model)


# Every analysis, from specs to a figure


@pytest.mark.parametrize("name", [name for name in ANALYSES if name not in ("attention", "overview")])
def test_every_analysis_gives_numbers_and_a_figure(name: str, values: dict[str, Any], tmp_path: Path) -> None:
    found = subject(name, values, tmp_path / "runs")
    numbers = find_analysis(name).compute(found)
    about = found.describe()
    assert about["method"]["settings"]["prototypes"] == 3
    assert about["protocol"]["domains"] == values["domains"]
    shown = draw_analysis(name, numbers, tmp_path / "figure.svg", "the title", "the note").read_text(encoding="utf-8")
    assert "the title" in shown
    assert "the note" in shown


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".PDF", b"%PDF"), (".svg", b"<?xml")])
def test_the_suffix_chooses_the_format_and_the_same_numbers_give_the_same_file(
    suffix: str, start: bytes, tmp_path: Path
) -> None:
    found = {"distance": [[0.0, 1.0], [1.0, 0.0]], "mean": 1.0, "mean_relative": 0.5}
    numbers = {"space": "features", "domains": ["fog", "snow"], "before": found, "after": found}
    paths = [draw_analysis("gap", numbers, tmp_path / f"{name}{suffix}", "title") for name in "ab"]
    assert paths[0].read_bytes().startswith(start)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a{suffix}", f"b{suffix}"]
    with refused("figure-format", "a.jpg", ".png, .pdf or .svg"):
        draw_analysis("gap", numbers, Path("a.jpg"), "title")


def test_a_model_that_does_not_learn_has_the_same_gaps_before_and_after(values: dict[str, Any], tmp_path: Path) -> None:
    still = {"learning_rate": 0.0, "amplifier": False}
    values["settings"] = {"testdg": {**ALARMS, **still}}
    numbers = find_analysis("gap").compute(subject("gap", values, tmp_path))
    assert numbers["before"] == numbers["after"]
    matrix = np.array(numbers["before"]["distance"])
    assert numbers["before"]["mean"] == pytest.approx(matrix.sum() / 6)
    assert np.array_equal(matrix, matrix.T)


def test_features_are_of_any_method_and_embeddings_of_testdg_alone(values: dict[str, Any]) -> None:
    tent = expand(Grid({**values, "method": "tent", "settings": {}}))
    assert [spec.method for spec in find_analysis("gap").choose(tent, "features")] == ["tent"]
    with refused("no-embeddings", "tent", "--space features"):
        find_analysis("gap").choose(tent)
    with refused("no-prototypes", "drift", "tent"):
        find_analysis("drift").choose(tent)
    with refused("several-runs", "gap", 2):
        find_analysis("gap").choose([*tent, msgspec.structs.replace(tent[1], seed=1)])


def test_features_of_a_method_that_is_not_one_model_are_those_of_its_network(
    values: dict[str, Any], tmp_path: Path
) -> None:
    values |= {"method": "roid", "settings": {"roid": {"learning_rate": 0.0}}}
    numbers = find_analysis("gap").compute(subject("gap", values, tmp_path, "features"))
    assert numbers["before"] == numbers["after"]


# gap, embeddings


@given(POINTS, POINTS)
def test_chamfer_is_that_of_scipy_and_symmetric(x: Any, y: Any) -> None:
    pairs = cdist(x, y, "sqeuclidean")
    assert chamfer(x, y) == pytest.approx(pairs.min(1).mean() + pairs.min(0).mean(), abs=1e-9)
    assert chamfer(x, y) == pytest.approx(chamfer(y, x))
    assert chamfer(x, x) == 0


def test_gaps_and_their_scale() -> None:
    points = {"a": np.zeros((2, 2)), "b": np.array([[3.0, 4.0], [3.0, 4.0]])}
    assert gaps(points).tolist() == [[0, 50], [50, 0]]
    assert total_variance(points) == 2.5**2  # every point is 2.5 from the centre


def test_a_projection_is_always_the_same_and_keeps_far_groups_apart() -> None:
    generator = np.random.default_rng(0)
    points = np.concatenate([generator.normal(0, 0.1, (12, 5)), generator.normal(9, 0.1, (12, 5))])
    found = project(points)
    assert np.array_equal(found, project(points))
    within = cdist(found[:12], found[:12]).max()
    assert cdist(found[:12], found[12:]).min() > within / 2
    assert project(points[:2]).shape == (2, 2)


# probes


def test_a_probe_is_tested_on_other_pictures() -> None:
    generator = np.random.default_rng(0)
    pictures = np.tile(np.arange(40), 3)  # in three domains
    domains = np.repeat(np.arange(3), 40)
    classes = np.tile(generator.integers(0, 2, 40), 3)
    readable = np.stack([domains == 0, domains == 1, classes], 1) + generator.normal(0, 0.01, (120, 3))
    learnt = learnt_half(pictures, classes)
    assert probe(readable, domains, pictures, learnt) == (100, 0)
    assert probe(readable, classes, pictures, learnt) == (100, 0)
    by_heart = np.eye(40)[pictures]  # says which picture it is, and no more
    accuracy = probe(by_heart, classes, pictures, learnt)
    assert accuracy.mean < 75
    assert accuracy.error > 5  # over 20 pictures, not over 60 images


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 3))
def test_both_halves_have_every_class_and_no_picture_in_common(classes: list[int], domains: int) -> None:
    pictures = np.tile(np.arange(len(classes)), domains)
    labels = np.tile(classes, domains)
    learnt = learnt_half(pictures, labels)
    assert not set(pictures[learnt]) & set(pictures[~learnt])
    for one in set(classes):
        share = [int((labels[half] == one).sum()) // domains for half in (learnt, ~learnt)]
        assert abs(share[0] - share[1]) <= 1


def test_probes_need_several_classes_or_domains(values: dict[str, Any], tmp_path: Path) -> None:
    values |= {"images": 1, "domains": ["fog"]}
    with refused("too-few-domains", "--domains", "--images"):
        find_analysis("probes").compute(subject("probes", values, tmp_path))


def test_an_analysis_without_runs_has_the_record_of_a_run(values: dict[str, Any], tmp_path: Path) -> None:
    found = subject("stream", values, tmp_path).complete()[-1][1]
    about = subject("probes", values, tmp_path).describe()
    assert about["protocol"] == found.record
    assert about["method"] == found.method


@pytest.mark.parametrize("name", ["probes", "drift", "prototypes", "gap", "cost"])
def test_half_precision_gives_finite_numbers(name: str, values: dict[str, Any], tmp_path: Path) -> None:
    found = find_analysis(name).compute(subject(name, {**values, "precision": "bf16"}, tmp_path))
    json.dumps(found, allow_nan=False)


# drift, prototypes


def opened(values: dict[str, Any]) -> tuple[RunSession, TestDG]:
    session = warm_run(expand(Grid(values))[1])
    assert isinstance(session.adapter, TestDG)
    return session, session.adapter


def test_selections_are_seen_with_the_images_that_they_stand_for(values: dict[str, Any]) -> None:
    found, adapter = opened(values)
    selections = watch(adapter)
    seen = [batch.images for batch in replay(found, lambda *_: None)]
    assert [one.batch for one in selections] == [1, 2, 3, 4, 5]
    images = torch.cat(seen)
    for one in selections:
        assert one.queue_positions.tolist() == list(range(4 * one.batch - 4, 4 * one.batch))  # the batch before
        assert torch.equal(one.queue[places(one)], one.prototypes)
        assert torch.equal(one.queue_positions[places(one)], one.positions)
        assert torch.equal(torch.stack(images_at(found.stream, one.positions.tolist())), images[one.positions])


def test_the_target_is_where_the_images_are_now(values: dict[str, Any]) -> None:
    found, adapter = opened(values)
    selections = watch(adapter)
    list(replay(found, lambda *_: None))
    images = torch.stack(images_at(found.stream, selections[-1].positions.tolist()))
    target, original = adapter.embed(images).double().numpy(), selections[-1].prototypes.double().numpy()
    width = 1 / np.sort(cdist(target, target, "sqeuclidean")[np.triu_indices(3, 1)])[1]

    def mmd2(other: Any) -> float:
        kernels = [rbf_kernel(a, b, gamma=width).mean() for a, b in ((target, target), (other, other), (target, other))]
        return float(kernels[0] + kernels[1] - 2 * kernels[2])

    before, after = distances(adapter, images, selections[-1].prototypes)
    assert before == pytest.approx(mmd2(original), rel=1e-3, abs=1e-6)
    assert after == pytest.approx(mmd2(adapter.prototypes.current.double().numpy()), rel=1e-3, abs=1e-6)


def test_resets_forget_prototypes(values: dict[str, Any]) -> None:
    specs = expand(Grid({**values, "protocol": "continual,resets=domain"}))
    for name in ("drift", "prototypes"):
        with refused("not-analyzable", name, "resets"):
            find_analysis(name).choose(specs)
    assert find_analysis("probes").choose(specs) == []


@settings(max_examples=20)
@given(arrays(np.int64, (5, 3), elements=st.integers(-9, 9)))
def test_prototypes_that_are_the_whole_queue_are_at_no_distance(points: Any) -> None:
    queue = torch.from_numpy(points).float()
    selection = Selection(1, queue, torch.arange(5), queue.flip(0), torch.arange(5).flip(0))
    assert torch.equal(queue[places(selection)], selection.prototypes)
    assert 0 <= random_mmd2(selection, None) < 1e-5


def test_a_stream_without_changes_has_no_prototypes(values: dict[str, Any], tmp_path: Path) -> None:
    values["settings"] = {"testdg": {"threshold": 1.0}}
    for name in ("drift", "prototypes"):
        with refused("no-prototypes", "threshold"):
            find_analysis(name).compute(subject(name, values, tmp_path))


@given(st.integers(1, 300), st.integers(1, 50))
def test_spaced_numbers_are_different_and_in_range(length: int, count: int) -> None:
    found = spaced(length, count)
    assert found == sorted(set(found))
    assert len(found) == min(length, count)
    assert found[0] == 0
    assert found[-1] < length
