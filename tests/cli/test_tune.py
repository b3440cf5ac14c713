import json
import shutil
from pathlib import Path

import pytest

from testdg.cli import bench_progress
from testdg.cli.app import execute
from testdg.cli.options import TuneOptions
from testdg.cli.tune import Tuning
from testdg.data.corruptions import EXTRA
from testdg.runs import Result
from testdg.studies import News, Running
from testdg.studies.variants import Tuned


@pytest.fixture
def small(model: Path, tmp_path: Path) -> list[str]:
    place = ["--model", str(model), "--out", str(tmp_path / "runs"), "--device", "cpu"]
    return [*place, "--images", "4", "--domains", "fog", "--batch-size", "4", "--write", str(tmp_path / "tuned.toml")]


def test_a_choice_is_written_and_bench_takes_it(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        "--csv",
        str(tmp_path / "t.csv"),
        "--markdown",
        str(tmp_path / "t.md"),
        "--jsonl",
        str(tmp_path / "t.jsonl"),
    ]
    assert execute(["tune", "neo", *small, *files]) == 0
    shown = capsys.readouterr().out
    assert "domains            fog\n" in shown
    assert shown.count("chosen: ") == 1
    assert (tmp_path / "t.csv").read_text(encoding="utf-8").count("\n") == 13
    assert "## NEO, Source" in (tmp_path / "t.md").read_text(encoding="utf-8")
    assert (tmp_path / "t.jsonl").read_text(encoding="utf-8").count("\n") == 13
    bench = [*small[:-2], "--methods", "neo", "--tuned", str(tmp_path / "tuned.toml")]
    assert execute(["bench", *bench]) == 0
    settings = capsys.readouterr().out.partition("settings ")[2]
    assert "the method's defaults; chosen in tuned.toml: anchor, share\n" in settings


def test_settings_are_chosen_on_the_extra_corruptions_in_both_orders_method_by_method() -> None:
    tuning = Tuning(TuneOptions(["tent", "source", "neo"]), {"benchmark": ["digits-c"]}, [])
    tried, cells = tuning.tried, tuning.cells
    assert [cell.name for cell in cells[:2]] == ["Source", "Source"]
    assert {dict(cell.options)["images"] for cell in cells} == {4000}
    ways = [dict(cell.options)["domains"] for cell in cells[2:26]]
    assert ways == 12 * [EXTRA] + 12 * [EXTRA[::-1]]
    assert [cell.method for cell in cells[2:]] == 24 * ["tent"] + 24 * ["neo"]
    assert [cell.name for cell in cells[2:14]] == [one.name for one in tried[:12]]


def test_what_is_complete_is_chosen_when_a_tuning_is_stopped_and_another_adds_to_it(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = 0

    def tell(display: bench_progress.BenchDisplay, news: News) -> None:
        nonlocal ended
        ended += not isinstance(news, Running)
        if ended == 16:  # Source and all of T3A are complete, of NEO some
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bench_progress.BenchDisplay, "tell", tell)
        assert execute(["tune", "t3a", "neo", *small]) == 130
    assert "not chosen yet: neo" in capsys.readouterr().err
    assert "[rows.t3a]" in (tmp_path / "tuned.toml").read_text(encoding="utf-8")
    assert execute(["tune", "neo", *small, "--json"]) == 0
    shown = capsys.readouterr()
    (found,) = json.loads(shown.out)["choices"]
    assert (found["row"], len(found["tried"])) == ("neo", 12)
    assert "(read back)" in shown.err
    assert "[rows.t3a]" in (tmp_path / "tuned.toml").read_text(encoding="utf-8")


def test_what_the_user_gave_to_all_configurations_is_in_the_file(small: list[str], tmp_path: Path) -> None:
    assert execute(["tune", "neo", *small, "--set", "after=2"]) == 0
    assert Tuned.read(tmp_path / "tuned.toml").rows["neo"].settings["after"] == 2


def test_a_file_of_other_conditions_is_refused_before_anything_runs(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["tune", "neo", *small]) == 0
    shutil.rmtree(tmp_path / "runs")
    others = {
        "rule": ["--widen", "1"],
        "domains": ["--domains", "frost"],
        "severity": ["--severity", "3"],
        "images_per_domain": ["--images", "8"],
        "batch_size": ["--batch-size", "2"],
        "precision": ["--precision", "bf16"],
        "seeds": ["--seed", "1"],
        "protocol": ["--protocol", "dirichlet"],
    }
    for key, options in others.items():
        assert execute(["tune", "t3a", *small, *options]) == 2
        assert f"tuned.toml was chosen with another {key}: choose another file" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    before = Tuned.read(tmp_path / "tuned.toml")
    conditions = {**before.conditions, "model": "another", "model_fingerprint": "0"}
    Tuned(conditions, before.rows).write(tmp_path / "tuned.toml")
    assert execute(["tune", "t3a", *small]) == 2
    assert "tuned.toml was chosen with another model, model_fingerprint:" in capsys.readouterr().err


def test_the_same_rates_can_be_tried_for_all_and_the_published_one_is_among_them(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["tune", "tent", *small, "--rates", "1e-2,3e-4"]) == 0
    assert "learning rates 0.01, 0.0003 and the published one, all else as published" in capsys.readouterr().out
    assert set(Tuned.read(tmp_path / "tuned.toml").rows["tent"].settings) == {"learning_rate"}
    tried = Tuning(TuneOptions(["tent", "neo"], rates="1e-2,3e-4"), {"benchmark": ["digits-c"]}, []).tried
    published = [one for one in tried if one.published and one.variant.method == "tent"]
    rates = [one.settings["learning_rate"] for one in tried if one.variant.method == "tent"]
    assert rates == sorted([3e-4, 1e-2, published[0].settings["learning_rate"]])
    assert len([one for one in tried if one.variant.method == "neo"]) == 12  # it has no rate


@pytest.fixture
def rising(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores are better at higher rates, up to 0.00333."""
    scores = {"0.0003": 30.0, "0.001": 20.0, "0.00333": 10.0}

    def score(result: Result) -> float:
        return scores.get(f"{result.method['settings'].get('learning_rate', 0):g}", 40.0)

    monkeypatch.setattr(Result, "mean_score", property(score))


@pytest.mark.usefixtures("rising")
def test_a_search_whose_choice_lies_at_the_edge_is_widened_there(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["tune", "tent", *small, "--rates", "3e-4,1e-3", "--preset", "cifar10-c"]
    assert execute([*command, "--widen", "3"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("widening the search of tent: 1 more configurations") == 2
    assert "search widened 2 times" in shown
    tuned = Tuned.read(tmp_path / "tuned.toml")
    row = tuned.rows["tent"]
    assert (row.settings["learning_rate"], row.widened, row.edges) == (0.00333, 2, ())
    assert tuned.conditions["rule"].endswith("by the ratio of the last two, up to 3 times")
    assert execute(command) == 2
    assert "tuned.toml was chosen with another rule: choose another file" in capsys.readouterr().err


@pytest.mark.usefixtures("rising")
def test_a_method_whose_search_is_being_widened_is_not_chosen_yet(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = 0

    def tell(display: bench_progress.BenchDisplay, news: News) -> None:
        nonlocal ended
        ended += not isinstance(news, Running)
        if ended == 4:  # Source and two rates are complete
            raise KeyboardInterrupt

    monkeypatch.setattr(bench_progress.BenchDisplay, "tell", tell)
    command = ["tune", "tent", *small, "--rates", "3e-4,1e-3", "--preset", "cifar10-c", "--widen", "1"]
    assert execute(command) == 130
    assert "not chosen yet: tent" in capsys.readouterr().err
    assert not (tmp_path / "tuned.toml").exists()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["tent", "--rates", "1e-3,fast"], "--rates takes learning rates above 0, separated by commas"),
        (["tent", "--rates", "0"], "--rates takes learning rates above 0, separated by commas"),
        (["tentt"], "unknown method 'tentt'; did you mean 'tent'?"),
        (["tent", "--benchmark", "streets"], "streets has no extra corruptions: name what settings are chosen on"),
        (["svdp"], "svdp is for segmentation; digits-c is for classification"),
        (["tent", "--set", "learning_rate=0.1"], "tune sets learning_rate of tent by itself: leave it out of --set"),
        (["tent:come", "--set", "loss=hard"], "tune sets loss of tent:come by itself: leave it out of --set"),
        (
            ["tent", "--write", "nowhere/t.toml"],
            "nowhere/t.toml cannot be written: name a file in a folder that exists",
        ),
    ],
)
def test_mistakes_are_told(more: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["tune", *more]) == 2
    assert sentence in capsys.readouterr().err
