import json
import shutil
from pathlib import Path

import pytest

from support.commands import refuses
from testdg.cli import display
from testdg.cli.app import execute
from testdg.cli.options import TuneOptions
from testdg.cli.tune import SettingsSearch
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
    files = [f"--csv={tmp_path / 't.csv'}", f"--markdown={tmp_path / 't.md'}", f"--jsonl={tmp_path / 't.jsonl'}"]
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
    tuning = SettingsSearch(TuneOptions(["tent", "source", "neo"]), {"benchmark": ["digits-c"]}, [])
    tried, specs = tuning.tried, tuning.specs
    assert [spec.name for spec in specs[:2]] == ["Source", "Source"]
    assert {spec.images for spec in specs} == {4000}
    ways = [spec.domains for spec in specs[2:26]]
    assert ways == 12 * [EXTRA] + 12 * [EXTRA[::-1]]
    assert [spec.method for spec in specs[2:]] == 24 * ["tent"] + 24 * ["neo"]
    assert [spec.name for spec in specs[2:14]] == [one.name for one in tried[:12]]


def test_an_interrupted_tuning_chooses_for_complete_methods_and_another_adds_to_it(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = 0

    def notify(display: display.BenchDisplay, news: News) -> None:
        nonlocal ended
        ended += not isinstance(news, Running)
        if ended == 16:  # Source and all of T3A are complete, of NEO some
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(display.BenchDisplay, "notify", notify)
        assert execute(["tune", "t3a", "neo", *small]) == 130
    assert "neo" in capsys.readouterr().err.splitlines()[-2]
    assert "[rows.t3a]" in (tmp_path / "tuned.toml").read_text(encoding="utf-8")
    assert execute(["tune", "neo", *small, "--json"]) == 0
    shown = capsys.readouterr()
    (found,) = json.loads(shown.out)["choices"]
    assert (found["row"], len(found["tried"])) == ("neo", 12)
    assert "(read back)" in shown.err
    assert "[rows.t3a]" in (tmp_path / "tuned.toml").read_text(encoding="utf-8")


def test_settings_of_all_configurations_are_in_the_file(small: list[str], tmp_path: Path) -> None:
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
        refuses(capsys, ["tune", "t3a", *small, *options], "tuned.toml", f"another {key}:")
    assert not (tmp_path / "runs").exists()
    before = Tuned.read(tmp_path / "tuned.toml")
    conditions = {**before.conditions, "model": "another", "model_fingerprint": "0"}
    Tuned(conditions, before.rows).write(tmp_path / "tuned.toml")
    refuses(capsys, ["tune", "t3a", *small], "tuned.toml", "model, model_fingerprint")


def test_the_same_rates_can_be_tried_for_all_and_the_published_one_is_among_them(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["tune", "tent", *small, "--rates", "1e-2,3e-4"]) == 0
    assert "learning rates 0.01, 0.0003 and the published one, all else as published" in capsys.readouterr().out
    assert set(Tuned.read(tmp_path / "tuned.toml").rows["tent"].settings) == {"learning_rate"}
    tried = SettingsSearch(TuneOptions(["tent", "neo"], rates="1e-2,3e-4"), {"benchmark": ["digits-c"]}, []).tried
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
    refuses(capsys, command, "tuned.toml", "another rule")


@pytest.mark.usefixtures("rising")
def test_a_method_whose_search_is_being_widened_is_not_chosen_yet(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = 0

    def notify(display: display.BenchDisplay, news: News) -> None:
        nonlocal ended
        ended += not isinstance(news, Running)
        if ended == 4:  # Source and two rates are complete
            raise KeyboardInterrupt

    monkeypatch.setattr(display.BenchDisplay, "notify", notify)
    command = ["tune", "tent", *small, "--rates", "3e-4,1e-3", "--preset", "cifar10-c", "--widen", "1"]
    assert execute(command) == 130
    assert "tent" in capsys.readouterr().err.splitlines()[-2]
    assert not (tmp_path / "tuned.toml").exists()
