"""What the README shows really runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from testdg.cli.app import execute

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_python_example_runs(shared_cache: Path, tmp_path: Path) -> None:
    (example,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"error \d+\.\d %\n", done.stdout)


def test_every_command_and_option_shown_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for line in [line for block in blocks("sh") for line in block.splitlines() if line.startswith("testdg ")]:
        words = line.partition("#")[0].split()[1:]
        execute([words[0], "--help"] if not words[0].startswith("-") else ["--help"])
        shown = capsys.readouterr().out
        for option in [word for word in words if word.startswith("--")]:
            assert option in shown, line


def test_the_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / target).exists(), target
