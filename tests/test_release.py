"""The parts of a release agree: versions, changes, citation, what the workflow and the container run."""

import re
import tomllib
from pathlib import Path

import pytest

import testdg

ROOT = Path(__file__).parents[1]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_versions_agree() -> None:
    assert tomllib.loads(text("pyproject.toml"))["project"]["version"] == testdg.__version__
    assert re.search(r"^version: (.+)$", text("CITATION.cff"), re.MULTILINE)[1] == testdg.__version__
    assert re.search(rf"^## {re.escape(testdg.__version__)}\b", text("CHANGELOG.md"), re.MULTILINE)
    assert f"testdg-{testdg.__version__}-py3-none-any.whl" in text("README.md")


def test_every_python_that_is_announced_is_tested() -> None:
    yaml = pytest.importorskip("yaml")
    classifiers = tomllib.loads(text("pyproject.toml"))["project"]["classifiers"]
    announced = [name.rpartition(" ")[2] for name in classifiers if re.search(r"Python :: 3\.\d+$", name)]
    job = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == announced
    assert any(".ci/run" in step.get("run", "") for step in job["steps"])


@pytest.mark.parametrize("file", [".ci/run", "CONTRIBUTING.md", "README.md"])
def test_every_make_target_that_is_named_exists(file: str) -> None:
    targets = set(re.findall(r"^([a-z./]+):", text("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z./]+)", text(file), re.MULTILINE))
    assert named
    assert named <= targets


def test_everything_that_the_container_is_made_of_is_there() -> None:
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text("Dockerfile"), re.MULTILINE):
        for name in line.split():
            assert (ROOT / name).exists(), name
    assert 'ENTRYPOINT ["testdg", "adapt"]' in text("Dockerfile")


def test_pages_have_no_long_lines() -> None:
    """Apart from tables and code."""
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        long = [line for line in prose.splitlines() if len(line) > 120 and not line.startswith(("|", "    "))]
        assert not long, f"{page.name}: {long[0]} (python scripts/wrap.py docs/{page.name} wraps it)"
