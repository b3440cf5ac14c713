"""Each method's own code lies in its file or folder; `parts` holds what several methods share."""

import ast
from pathlib import Path

import pytest

import testdg.methods

ROOT = Path(testdg.methods.__file__).parent


def imported(path: Path) -> set[str]:
    """Names of the modules that a file imports from."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


IMPORTS = {path.relative_to(ROOT): imported(path) for path in ROOT.rglob("*.py")}


def users_of(module: str) -> set[str]:
    """Files and folders of methods that import a module."""
    return {path.parts[0] for path, modules in IMPORTS.items() if module in modules}


@pytest.mark.parametrize("part", sorted(path.stem for path in (ROOT / "parts").glob("[!_]*.py")))
def test_a_part_serves_at_least_two(part: str) -> None:
    name = f"testdg.methods.parts.{part}"
    users = users_of(name) - {"parts"}
    for user in sorted(users):  # methods that build on a user count as well
        users |= users_of(f"testdg.methods.{user.removesuffix('.py')}")
    assert len(users) >= 2, f"{name} serves {users or 'no method'} alone: it belongs there"


def test_a_part_knows_no_method() -> None:
    known = set().union(*(modules for path, modules in IMPORTS.items() if path.parts[0] == "parts"))
    assert [name for name in known if name.startswith("testdg.methods.") and ".parts." not in name] == []
