"""Figures of analyses and of the page: nothing lies over something else, and nothing is cut off."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.stored_runs import groups_of, write_run
from testdg.report import analyses, figures
from testdg.report.figures import draw_curves
from testdg.runs.scores import Classification

METRIC = Classification.metric.describe()


def drawn(figure: Any) -> Any:
    figure.draw_without_rendering()
    return figure


def row(name: str, **more: Any) -> dict[str, Any]:
    about = {"name": name, "method": name.lower(), "runs": 1, "score": 20.0, "deviation": None, "held_out": None}
    return {**about, **more}


def test_the_legend_of_a_stream_is_next_to_its_curves() -> None:
    curve = {"curve": [90.0, 50.0], "low": [80.0, 40.0], "high": [95.0, 60.0], "mean": 70.0, "seeds": [0, 1]}
    rows = [
        {"name": name, "method": name, **curve, "detections": [None, None]}
        for name in ("Source", "TENT", "a long name " * 4)
    ]
    visit = {"domain": "fog", "severity": 5, "round": 1, "phase": "adapt", "start": 0, "stop": 8}
    numbers = {"metric": METRIC, "window": 3, "positions": [4, 8], "visits": [visit], "rows": rows}
    figure = drawn(draw_curves(numbers, "title", "note"))
    (axes,) = figure.axes
    legend = axes.get_legend().get_window_extent()
    assert legend.x0 > axes.get_window_extent().x1
    assert legend.x1 <= figure.bbox.x1


def test_both_panels_of_embeddings_are_equally_large() -> None:
    tall, flat = [[0, 0], [1, 9], [2, 3]], [[0, 0], [9, 1], [3, 2]]
    found = {when: {"points": points, "silhouette": 0.1} for when, points in (("before", tall), ("after", flat))}
    figure = drawn(
        analyses.draw_embeddings({"domains": ["fog", "snow"], "labels": [0, 1, 1], **found}, "title", "note")
    )
    before, after = (axes.get_window_extent() for axes in figure.axes)
    assert abs(before.width - after.width) < 1
    assert abs(before.height - after.height) < 1


def test_numbers_of_parameters_do_not_overlap() -> None:
    rows = [row("Source", parameters=0), row("TENT", parameters=1_100), row("TestDG", parameters=160_000)]
    figure = drawn(
        analyses.draw_parameters({"metric": METRIC, "model_parameters": 150_000, "rows": rows}, "title", "note")
    )
    (axes,) = figure.axes
    left, right = axes.get_xlim()
    ticks = [tick for tick in axes.xaxis.get_major_ticks() if left <= tick.get_loc() <= right]
    boxes = [tick.label1.get_window_extent() for tick in ticks]
    assert len(boxes) > 1
    assert all(first.x1 < second.x0 for first, second in pairwise(boxes))


def test_rows_of_neighbours_in_an_overview_are_equally_high() -> None:
    about = {"benchmark": "b", "kind": "k", "model": "m", "images_per_domain": 4, "batch_size": 2, "metric": METRIC}
    orders = ("the benchmark's", "order 1")
    groups = [
        {**about, "order": order, "rows": [row(f"method {n}") for n in range(count)]}
        for order, count in zip(orders, (8, 2), strict=True)
    ]
    figure = drawn(analyses.draw_overview({"groups": groups, "damaged": []}, "title", ""))
    assert [axes.get_title(loc="left").split("\n")[0] for axes in figure.axes] == ["b, k, m", "b, k, order 1, m"]
    steps = [axes.transData.transform([(0, 0), (0, 1)])[:, 1] for axes in figure.axes]
    assert abs((steps[0][0] - steps[0][1]) - (steps[1][0] - steps[1][1])) < 1


def test_a_long_title_is_wrapped() -> None:
    about = {"maps": {"with": [[1.0]]}, "entropy": {"with": 0.0}, "entropy_error": {"with": 0.0}}
    rows = [{"domain": "fog", "image": 3 * [[[9]]], **about}]
    figure = drawn(analyses.draw_attention({"rows": rows, "uniform_entropy": 0.0}, "a long title " * 9, "note"))
    assert figure._suptitle.get_window_extent().x1 <= figure.bbox.x1


def test_long_names_of_rows_neither_overlap_nor_leave_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "source", "source", {"fog": 30.0})
    for number in range(3):
        settings = {"previous_domains_kept": 1000 + number, "selection": "reservoir", "prototype_updates": number}
        write_run(tmp_path / str(number), "mine", {"fog": 10.0 + number}, settings=settings)
    (group,) = groups_of(tmp_path)
    found: list[Any] = []
    monkeypatch.setattr(figures, "figure_files", lambda figure, *_: found.append(drawn(figure)))
    figures.group_figures(group.table, group.sheets[1], "name")
    stream, heat = found
    labels = [axes.yaxis.label.get_window_extent() for axes in stream.axes]
    names = [label.get_window_extent() for label in heat.axes[0].get_yticklabels()]
    assert all(box.x0 >= 0 for box in [*labels, *names])
    assert all(above.y0 >= below.y1 for above, below in pairwise(names))
