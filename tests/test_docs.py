"""What the documents show really runs: code, commands, links and names."""

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import typer
from PIL import Image

from testdg.cli.app import app
from testdg.core import registry
from testdg.methods import methods
from testdg.models import Preprocessing, TinyCNN, TinyViT, VisionModel, load_model
from testdg.testing import CHECKS, check_adapter

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS.rglob("*.md")])
}
END_OF_COMMAND = ("|", "&&", ";", ">")


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The method of docs/adding-a-method.md, as a module; it is forgotten after the test."""
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "adding-a-method.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code.count("\n") < 100
    (tmp_path / "head_bias_example.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry._METHODS, "known", methods())
    monkeypatch.delitem(sys.modules, "head_bias_example", raising=False)
    return importlib.import_module("head_bias_example")


def models() -> list[VisionModel]:
    torch.manual_seed(0)
    networks = [TinyViT(width=16, depth=1, patch=8), TinyCNN(width=4)]
    return [load_model(network, preprocessing=Preprocessing((32, 32))) for network in networks]


def test_the_example_method_keeps_every_law(example: ModuleType) -> None:
    for model in models():
        assert check_adapter(lambda model=model, **settings: example.HeadBias(model, **settings)) == list(CHECKS)


def test_the_example_method_learns_and_is_known(example: ModuleType) -> None:
    assert methods()["head_bias"] is example.HeadBias
    adapter = example.HeadBias(models()[0], learning_rate=0.1)
    before = adapter.model.get_parameter("network.head.bias").clone()
    for _ in range(8):
        adapter(torch.rand(6, 3, 32, 32))
    assert not torch.equal(adapter.model.get_parameter("network.head.bias"), before)
    assert adapter.diagnostics["learnt_from"] > 0


def test_the_links_of_the_documents_lead_somewhere() -> None:
    for page, text in PAGES.items():
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
            assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


def test_the_example_of_the_readme_runs(shared_cache: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGES["README.md"], re.DOTALL)
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"error \d+\.\d %\n", done.stdout)


def test_the_example_of_own_pictures_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "adapt.md").read_text(encoding="utf-8"), re.DOTALL)
    models()[0].save(tmp_path / "models" / "mine")
    for folder in ("frames", "clean"):
        (tmp_path / folder).mkdir()
        for number, pixels in enumerate(torch.randint(0, 256, (64, 20, 20, 3), dtype=torch.uint8)):
            Image.fromarray(pixels.numpy()).save(tmp_path / folder / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "adapt.md", "exec"), {})
    assert (tmp_path / "state" / "state.json").is_file()


def shell_commands(text: str) -> Iterator[list[str]]:
    """The arguments of every `testdg` command in blocks of shell code, fenced or indented."""
    fenced = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    indented = "".join(re.findall(r"^    testdg .*\n", text, re.MULTILINE))
    for line in (fenced + indented).replace("\\\n", " ").splitlines():
        words = [word for word in shlex.split(line, comments=True) if word != "..."]
        while "testdg" in words and words[0] != "docker":
            words = words[words.index("testdg") + 1 :]
            end = next((number for number, word in enumerate(words) if word in END_OF_COMMAND), len(words))
            yield words[:end]
            words = words[end:]


def inline_commands(text: str) -> Iterator[list[str]]:
    """The arguments of every `testdg` command in running text and tables; what is in brackets is optional."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    for command in re.findall(r"`testdg (\S[^`]*)`", prose):
        yield [word.strip("[]") for word in shlex.split(command) if word != "..."]


def usage_error(arguments: list[str], *, complete: bool) -> str | None:
    """The error of the command line for arguments, without running them; None if it accepts them.

    Unless they must be `complete`, arguments and values of options may be missing.
    """
    words = list(arguments)
    while "--plugin" in words:  # the command line removes it before it parses commands
        place = words.index("--plugin")
        del words[place : place + 2]
    if words == ["--install-completion"]:  # parsing it would change the user's shell
        return None
    group = typer.main.get_command(app)
    try:
        context = group.make_context("testdg", words)
        words = [*context._protected_args, *context.args]
        if words:
            name, command, rest = group.resolve_command(context, words)
            command.make_context(name, rest, parent=context)
    except typer.Exit:  # --version and the like
        return None
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        missing = type(error).__name__ in ("MissingParameter", "BadOptionUsage")
        return None if missing and not complete else error.format_message()
    return None


@pytest.mark.parametrize("page", PAGES)
def test_the_command_line_takes_every_command(page: str) -> None:
    commands = [(words, True) for words in shell_commands(PAGES[page])]
    commands += [(words, False) for words in inline_commands(PAGES[page])]
    errors = {shlex.join(words): usage_error(words, complete=complete) for words, complete in commands}
    assert not {words: error for words, error in errors.items() if error}


def test_wrong_commands_are_reported() -> None:
    text = "```sh\ntestdg frames --model m  # no command\nls | testdg run --metod tent && testdg methods\n```\n"
    words = list(shell_commands(text))
    assert words == [["frames", "--model", "m"], ["run", "--metod", "tent"], ["methods"]]
    assert "frames" in (usage_error(words[0], complete=True) or "")
    assert "--metod" in (usage_error(words[1], complete=True) or "")
    assert usage_error(words[2], complete=True) is None
    assert usage_error(["adapt"], complete=True)
    assert usage_error(["adapt"], complete=False) is None


@pytest.mark.parametrize("page", PAGES)
def test_names_of_the_package_exist(page: str) -> None:
    """Dotted names such as `testdg.runs.run`, imports in code, and paths of source files."""
    text = PAGES[page]
    names = set(re.findall(r"`(testdg(?:\.[a-zA-Z_]\w*)+)", text))
    for module, imported in re.findall(r"^from (testdg[.\w]*) import (.+)$", text, re.MULTILINE):
        names |= {f"{module}.{name.partition(' as ')[0].strip()}" for name in imported.partition("#")[0].split(",")}
    missing = sorted(name for name in names if not exists(name))
    rooms = "|".join(path.name for path in (ROOT / "src/testdg").iterdir() if path.is_dir())
    files = set(re.findall(rf"`(?:src/testdg/)?((?:{rooms})/[\w/]+\.py)`", text)) - {"methods/head_bias.py"}
    missing += sorted(file for file in files if not (ROOT / "src/testdg" / file).exists())
    assert not missing


def exists(name: str) -> bool:
    module, _, attribute = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ImportError:
        if not module:
            return False
        try:
            return hasattr(importlib.import_module(module), attribute)
        except ImportError:
            outer, _, kind = module.rpartition(".")
            return hasattr(getattr(importlib.import_module(outer), kind, None), attribute)
    return True
