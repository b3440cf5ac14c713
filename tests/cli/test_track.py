from pathlib import Path

import pytest

from testdg.cli.app import execute

reader = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator",
    reason="tensorboard is not installed (pip install 'testdg[track]')",
)


@pytest.mark.parametrize("command", [["run", "--method", "tent"], ["bench", "--methods", "tent"]])
def test_every_run_of_a_command_is_tracked(command: list[str], model: Path, tmp_path: Path) -> None:
    place = ["--model", str(model), "--out", str(tmp_path), "--device", "cpu", "--images", "4", "--domains", "fog"]
    assert execute([*command, *place, "--track", "tensorboard"]) == 0
    folders = sorted(tmp_path.glob("*/tensorboard"))
    assert [folder.parent.name.rpartition("-")[0] for folder in folders] == ["digits-c-source", "digits-c-tent"]
    for folder in folders:
        found = reader.EventAccumulator(str(folder))
        found.Reload()
        assert set(found.Tags()["scalars"]) == {"error/batch", "error/window", "domains/fog"}
