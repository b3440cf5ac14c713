from dataclasses import replace
from pathlib import Path

import pytest

from support.errors import refused
from testdg.core.settings import Side, next_value
from testdg.methods import find_method
from testdg.report.bench import remarks, summary_table, tuning_csv
from testdg.runs.scores import Classification, Segmentation
from testdg.studies import Grid, expand
from testdg.studies.tuning import VariantChoice, configurations
from testdg.studies.variants import Tuned, TunedRow, find_variant, find_variants

RATES = ("1e-06", "1e-05", "3e-05", "0.0001", "0.0003", "0.001")


def choice(scores: dict[str, float | None], usual: float = 20.0) -> VariantChoice:
    """TENT on cifar10-c; scores by rate and optimiser, as in 1e-05 adam."""
    tried = configurations(find_variant("tent"), "cifar10-c")
    names = [one.described.replace("learning_rate=", "").replace(", optimizer=", " ") for one in tried]
    found = [replace(one, score=scores.get(name, usual)) for name, one in zip(names, tried, strict=True)]
    return VariantChoice(find_variant("tent"), Classification.metric, 19.0, found)


def test_the_best_is_chosen_and_its_neighbours_are_shown() -> None:
    found = choice({"3e-05 adam": 17.0, "1e-05 adam": 17.2, "3e-05 momentum": 19.5, "0.001 adam": 84.6})
    assert found.best.settings == {"learning_rate": 3e-5, "optimizer": "adam"}
    assert found.edges() == {}
    assert {one.described for one in found.neighbours()} == {
        "learning_rate=1e-05, optimizer=adam",
        "learning_rate=0.0001, optimizer=adam",
        "learning_rate=3e-05, optimizer=momentum",
    }
    assert remarks(found)[1:] == ["neighbours are +0.20 to +3.00 behind"]
    assert found.published.score == 84.6
    chosen = found.chosen()
    assert (chosen.score, chosen.published, chosen.preset, chosen.edges) == (17.0, 84.6, "cifar10-c", ())
    row = dict(summary_table([found]).rows)["TENT"]
    assert [entry.value for entry in row[1:4]] == [17.0, 84.6, 2.0]


def test_ties_go_to_the_published_settings_then_to_the_smaller_rate() -> None:
    assert choice({"0.001 adam": 17.0, "1e-05 adam": 16.998}).best.published
    found = choice({"0.0003 adam": 17.0, "1e-05 momentum": 17.0})
    assert found.best.settings["learning_rate"] == 1e-5
    assert len(found.ties) == 2
    assert "tied with 1 more" in remarks(found)[1]
    assert choice({"0.0003 adam": 17.0, "1e-05 momentum": 17.01}).best.settings["learning_rate"] == 3e-4


def test_an_edge_is_shown_and_a_missing_score_is_never_chosen() -> None:
    found = choice({"1e-06 adam": 17.0, "0.001 momentum": None})
    assert found.edges() == {"learning_rate": "least"}
    assert remarks(found)[-2:] == [
        "learning_rate is the least that was tried: widen its search",
        "1 configurations have no score",
    ]
    assert tuning_csv([found]).count("\n") == 13


def test_a_wider_search_adds_the_next_value_beyond_each_edge_with_all_others() -> None:
    found = choice({"1e-06 adam": 17.0})
    wider = found.wider()
    assert [one.described for one in wider] == [
        "learning_rate=1e-07, optimizer=adam",
        "learning_rate=1e-07, optimizer=momentum",
    ]
    assert {(one.widened, one.published) for one in wider} == {(1, False)}
    again = replace(found, tried=[*found.tried, *(replace(one, score=16.0) for one in wider)])
    assert (again.widened, again.edges()) == (1, {"learning_rate": "least"})
    assert [one.settings["learning_rate"] for one in again.wider()] == [1e-8, 1e-8]
    assert {one.settings["learning_rate"] for one in again.neighbours()} == {1e-7, 1e-6}
    assert "search widened once" in remarks(again)
    assert choice({"3e-05 adam": 17.0}).wider() == []


@pytest.mark.parametrize(
    ("key", "values", "side", "found"),
    [
        ("learning_rate", (1e-4, 1e-3), "largest", 1e-2),
        ("learning_rate", (3e-4, 1e-3, 1e-2), "least", 9e-5),
        ("learning_rate", (1e-3,), "least", None),
        ("momentum", (0.99, 0.999), "largest", 1.0),  # its bound
        ("momentum", (0.99, 1.0), "largest", None),
        ("momentum", (0.0, 0.5), "least", None),
        ("capacity", (1, 2, 8), "largest", 32),
        ("capacity", (1, 2), "least", None),
    ],
)
def test_the_next_value_has_the_ratio_of_the_last_two_and_stops_at_the_bound(
    key: str, values: tuple[float, ...], side: Side, found: float | None
) -> None:
    assert next_value(find_method("rotta").Settings, key, values, side) == found


def test_of_miou_the_largest_is_chosen() -> None:
    found = replace(choice({"3e-05 adam": 50.0, "1e-05 adam": 10.0}), metric=Segmentation.metric)
    assert found.best.score == 50.0
    assert found.gap_to_best(next(one for one in found.tried if one.score == 10.0)) == 40.0


# The file


def test_a_choice_is_read_back_from_its_file_with_none(tmp_path: Path) -> None:
    rows = {
        "neo": TunedRow("NEO", "neo", "none", {"share": None, "anchor": "zero"}, score=17.0, edges=("share",)),
        "tent": TunedRow("TENT", "tent", "digits-c", {"learning_rate": 1e-5}),
        "tent:come": TunedRow("TENT (come)", "tent", "digits-c", {"learning_rate": 3e-5}, {"loss": "come"}),
    }
    Tuned({"benchmark": "digits-c", "seeds": (0,)}, rows).write(tmp_path / "tuned.toml")
    read = Tuned.read(tmp_path / "tuned.toml")
    assert read.rows["neo"].settings == {"share": "none", "anchor": "zero"}
    assert read.rows["neo"].edges == ("share",)
    grid = Grid(
        {"images": 20, "tuned": str(tmp_path / "tuned.toml")},
        (
            {"method": ["tent", "neo"]},
            {"method": "tent", "name": "COME", "settings": {"loss": "come", "optimizer": "sgd"}},
            {"method": "tent", "name": "own rate", "settings": {"learning_rate": 1e-3}},
        ),
    )
    specs = {spec.name: spec for spec in expand(grid)}
    assert specs["Source"].chosen_in == {}
    assert specs["NEO"].settings == {"share": None, "anchor": "zero"}
    assert (specs["TENT"].preset, specs["TENT"].settings) == ("digits-c", {"learning_rate": 1e-5})
    assert specs["TENT"].chosen_in == {"learning_rate": "tuned.toml"}
    assert specs["COME"].settings == {"loss": "come", "optimizer": "sgd", "learning_rate": 3e-5}
    assert specs["COME"].chosen_in == {"learning_rate": "tuned.toml"}
    assert specs["own rate"].chosen_in == {}


def test_files_of_other_conditions_are_not_joined(tmp_path: Path) -> None:
    one = Tuned({"images_per_domain": 20}, {"tent": TunedRow("TENT", "tent", "none", {"learning_rate": 1e-5})})
    two = Tuned({"images_per_domain": 20}, {"neo": TunedRow("NEO", "neo", "none", {"share": 0.1})})
    assert [*two.joined(one, tmp_path / "t.toml").rows] == ["tent", "neo"]
    with refused("other-tuning", tmp_path / "t.toml", "images_per_domain"):
        Tuned({"images_per_domain": 40}, two.rows).joined(one, tmp_path / "t.toml")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("rows = 3", "damaged-file"),
        ("conditions = {}\n[rows.tent]\nname = 'TENT'", "damaged-file"),
        ("conditions = {}\nrows = {}", "not-tuned"),
        (None, "unreadable-file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(text: str | None, code: str, tmp_path: Path) -> None:
    path = tmp_path / "tuned.toml"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with refused(code, path):
        expand(Grid({"method": "tent", "tuned": str(path), "images": 20}))


def test_unknown_variants_and_source_alone_are_refused() -> None:
    with refused("unknown-variant", "tent", "'com'", "'come'"):
        find_variant("tent:com")
    with refused("no-method", "source"):
        find_variants(["source"], "classification")


def test_source_may_be_named_and_is_not_a_row_of_its_own() -> None:
    assert [one.key for one in find_variants(["source", "tent", "source"], "classification")] == ["tent"]
