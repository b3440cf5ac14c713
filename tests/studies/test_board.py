from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.results import make_result
from testdg.data.benchmarks import load_benchmark
from testdg.report.bench import means_table
from testdg.report.board import board_figures, board_table, outcome, source_words
from testdg.report.record import record_note
from testdg.runs import Result
from testdg.studies.leaderboard import FIRST, HELD_OUT, STREAMS, best_of, find_streams, make_board


def result(method: str, error: float, tested: float | None = None, **record: Any) -> Result:
    where = Path(f"{method}-{record.get('kind', 'continual')}-0")
    held_out = None if tested is None else {"snow": tested}
    return make_result(method, {"fog": error, "frost": error}, where, held_out, batch_size=20, **record)


def runs(**errors: tuple[float, float, float]) -> list[tuple[str, str, Result]]:
    """Errors of each method on the first stream, on its held-out domain, and on a second stream."""
    return [
        run
        for method, (first, tested, second) in errors.items()
        for run in (
            (FIRST, method.title(), result(method, first, tested)),
            ("dirichlet", method.title(), result(method, second, kind="dirichlet")),
        )
    ]


RUNS = runs(source=(20, 22, 20), tent=(10, 25, 21), align=(15, 16, 19), cotta=(80, 85, 20))


def test_rows_stand_by_their_mean_and_the_worst_case_is_the_largest_loss_on_any_stream() -> None:
    board = make_board(RUNS)
    assert board.streams == [FIRST, HELD_OUT, "dirichlet"]
    assert [row.name for row in board.ranked] == ["Align", "Tent", "Source", "Cotta"]
    worst = {row.name: row.worst(board.streams) for row in board.ranked}
    assert worst == {"Align": (1.0, "dirichlet"), "Tent": (-3.0, HELD_OUT), "Source": None, "Cotta": (-63.0, HELD_OUT)}
    assert best_of(board, 2) == ["Tent", "Align"]
    assert outcome(board) == (
        "Of 3 methods on all streams, Align has the best mean (16.67); Align has the best worst case (+1.00 against "
        "Source, dirichlet)."
    )


def test_optional_streams_have_columns_and_no_part_in_the_mean() -> None:
    extra = [("sorted", name, result(name.lower(), 90.0, sampling="sorted")) for name in ("Source", "Tent")]
    board = make_board([*RUNS, *extra])
    assert (board.streams, board.others) == (make_board(RUNS).streams, ["sorted"])
    assert [row.name for row in board.ranked] == ["Align", "Tent", "Source", "Cotta"]
    alone = make_board(extra)
    assert [column.title for column in board_table(alone, {}).columns][:2] == ["mean", "sorted"]
    assert "mean:" not in board_table(alone, {}).note
    assert board_figures(alone, {}) == []


def test_the_record_of_a_sorted_stream_has_the_batch_size() -> None:
    assert "batches of 20, sorted by class" in record_note(result("tent", 20.0, sampling="sorted").record)


@pytest.mark.parametrize(
    ("names", "task", "found"),
    [
        (None, "classification", [stream.name for stream in STREAMS if not stream.optional]),
        ("all", "classification", [stream.name for stream in STREAMS]),
        ("sorted, continual", "classification", [FIRST, "sorted"]),
        ("all", "segmentation", [FIRST, "three rounds", "single images", "five times longer"]),
    ],
)
def test_streams_are_found_by_name(names: str | None, task: str, found: list[str]) -> None:
    benchmark = load_benchmark({"classification": "digits-c", "segmentation": "streets"}[task])
    assert [stream.name for stream in find_streams(names, benchmark)] == found


def test_a_row_that_lacks_a_stream_stands_last_and_has_no_mean() -> None:
    board = make_board([*RUNS, (FIRST, "Eata", result("eata", 5.0, 5.0))])
    assert board.ranked[-1].name == "Eata"
    table = board_table(board, {})
    assert "ms" not in [column.title for column in table.columns]  # what nobody measured has no column
    entries = dict(table.rows)["Eata"]
    assert [entry.value for entry in entries[:4]] == [None, 5.0, 5.0, None]


def test_runs_of_other_conditions_stay_out_of_a_stream() -> None:
    odd = replace(RUNS[2][2], record={**RUNS[2][2].record, "batch_size": 7})
    board = make_board([*RUNS, (FIRST, "Odd", odd)])
    assert "Odd" not in {row.name for row in board.ranked}


def test_a_miou_far_above_that_of_source_is_shown() -> None:
    rows = [
        (name, result(name.lower(), miou, miou, task="segmentation")) for name, miou in (("Source", 20), ("Tent", 50))
    ]
    pictures = board_figures(make_board((FIRST, *row) for row in rows), {})
    assert [picture.name for picture in pictures] == ["held-out"]
    assert "Not shown" not in pictures[0].caption


@pytest.mark.parametrize(("task", "marked"), [("classification", "VDP"), ("segmentation", "VDP, ViDA, Continual-MAE")])
def test_reconstructions_are_named_below_the_table(task: str, marked: str) -> None:
    names = ("source", "tent", "vdp", "vida", "continual_mae")
    board = make_board((FIRST, name, result(name, 30.0, 30.0, task=task)) for name in names)
    sentence = f"reconstructions, without code of the authors: {marked}."
    assert board_table(board, {}).note.endswith(sentence)
    assert means_table(board.tables[FIRST]).note.endswith(sentence)
    without = make_board((FIRST, name, result(name, 30.0, 30.0, task=task)) for name in names[:2])
    assert "reconstruction" not in board_table(without, {}).note


def test_costs_stand_in_the_table_and_far_rows_are_named_below_the_figures() -> None:
    board = make_board(RUNS)
    cost = {"device": "cuda", "batch_size": 20, "ms": 7.0, "memory_mib": 90.0, "parameters": 10, "source_images": 256}
    costs = {f"{name}-continual-0": {**cost, "source_labels": False} for name in ("source", "tent", "cotta")}
    table = board_table(board, costs)
    assert [entry.value for entry in dict(table.rows)["Tent"][-4:-1]] == [7.0, 90.0, 10]
    assert dict(table.rows)["Align"][-1].text == ""
    assert "of a batch of 20 on cuda, alone" in table.note
    pictures = board_figures(board, costs)
    assert [picture.name for picture in pictures] == ["cost", "held-out"]
    assert all("Not shown, far above Source: Cotta (80.0)." in picture.caption for picture in pictures)
    assert "Cotta" not in pictures[0].files["svg"].decode()
    assert source_words({"source_images": 0, "source_labels": False}) == "none"
    assert source_words({"source_images": 9, "source_labels": True}) == "9, labelled"


def test_streams_have_names_of_their_own() -> None:
    assert len({stream.name for stream in STREAMS}) == len(STREAMS)
    assert STREAMS[0].values(2000, 15) == {"protocol": "held-out,held_out=5,then=adapt", "images": 2000}
    assert STREAMS[0].values(2000, 4)["protocol"] == "held-out,held_out=1,then=adapt"
