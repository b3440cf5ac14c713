"""A test in the middle of a stream, after which adaptation continues."""

from pathlib import Path
from typing import Any

from testdg.report.record import record_lines
from testdg.report.runs import check_result
from testdg.runs import run


def test_the_stream_is_adapted_to_as_without_it_and_the_test_is_that_of_the_end(model: Path, tmp_path: Path) -> None:
    common: dict[str, Any] = {
        "model": model,
        "device": "cpu",
        "out": tmp_path,
        "images": 30,
        "domains": ["fog", "snow", "contrast"],
    }
    forked, plain, held_out = (
        run("digits-c", "tent", protocol=text, **common)
        for text in ("continual,held_out=2,then=adapt", "continual", "continual,held_out=2")
    )
    assert [visit.error for visit in forked.domains] == [visit.error for visit in plain.domains]
    assert forked.held_out is not None
    assert held_out.held_out is not None
    assert [visit.error for visit in forked.held_out] == [visit.error for visit in held_out.held_out]
    assert "3 domains in order, severity 5; before the last 2, frozen and tested on them" in "\n".join(
        record_lines(forked.record)
    )
    assert check_result(forked) is forked
