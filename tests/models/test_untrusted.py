"""Hostile model folders: each is refused in one sentence by a process with little memory, which does not hang."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.errors import refused
from support.models import BICUBIC, KINDS
from testdg.models import Preprocessing, TinyViT, load_model
from testdg.models.alignment import Alignment
from testdg.models.preprocessing import write_preprocessor

LOAD = """
import resource, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import transformers
from testdg.errors import UserError
from testdg.models import load_model
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
for path in sorted(Path(sys.argv[1]).glob("[0-9]*")):
    try:
        load_model(path)
        print("loaded", flush=True)
    except UserError as error:
        print(repr(f"{error.code} {error}"), flush=True)
    except BaseException as error:
        print(f"{type(error).__name__} {error!r}", flush=True)
status = Path("/proc/self/status")  # of this process alone; ru_maxrss begins with that of its parent
lines = status.read_text().splitlines() if status.exists() else []
print(next((line.split()[1] for line in lines if line.startswith("VmHWM")), 0), flush=True)
"""


class Evil:
    def __reduce__(self) -> Any:
        return print, ("executed",)


def change(name: str, **values: Any) -> Callable[[Path], None]:
    """Write other values into a JSON file of the folder."""

    def apply(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**found, **values}))

    return apply


def replace(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def pipe(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return apply


def device(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("/dev/zero")

    return apply


def index(*files: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "extra.safetensors")
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
        (folder.parent / "outside.safetensors").write_bytes(b"")
        weights = {f"weight {number}": file for number, file in enumerate(files)}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))

    return apply


def sparse(name: str) -> Callable[[Path], None]:
    """A file of a terabyte that takes no room on the disk."""
    return lambda folder: os.truncate(folder / name, 1 << 40)


def poisoned(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    first = next(name for name, value in weights.items() if value.is_floating_point())
    weights[first].view(-1)[0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def align(folder: Path) -> None:
    model = load_model(folder)
    Alignment(model, ["blocks.0"], prefix=1, class_token=True, memory=100.0)
    model.save(folder)


CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
TINY = {"model_type": "testdg-tiny-vit"}
HOSTILE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "depth of a tiny network": ("tiny", change(CONFIG, depth=10**8), "bad-config: depth 100000000"),
    "many layers": ("tiny", change(CONFIG, depth=10**6), "bad-config"),
    "a wide network": ("tiny", change(CONFIG, width=10**5), "bad-config"),
    "a large image": ("tiny", change(CONFIG, size=10**6, patch=1), "bad-config"),
    "heads that do not divide": ("tiny", change(CONFIG, heads=3), "bad-config: 32 x 32"),
    "no heads": ("tiny", change(CONFIG, heads=0), "bad-config: 32 x 32"),
    "a negative depth": ("tiny", change(CONFIG, depth=-5), "wrong-weights"),
    "a negative width": ("tiny", change(CONFIG, width=-16), "bad-config: TinyViT"),
    "a patch of 0": ("tiny", change(CONFIG, patch=0), "bad-config: TinyViT"),
    "an unknown key": ("tiny", change(CONFIG, clases=10), "bad-config: config.json TinyViT"),
    "a width that is a text": ("tiny", change(CONFIG, width="wide"), "bad-config: TinyViT"),
    "half a configuration": ("vit", replace(CONFIG, b"{"), "no-config: config.json"),
    "a configuration that is a list": ("vit", replace(CONFIG, b"[]"), "no-config: config.json"),
    "a configuration that is no text": ("vit", replace(CONFIG, b"\xff\xfe\x00"), "no-config: config.json"),
    "a configuration of nothing": ("vit", replace(CONFIG, b"null"), "no-config: config.json"),
    "cut weights": ("vit", lambda folder: os.truncate(folder / "model.safetensors", 3000), "damaged-model"),
    "a depth that is a list": ("tiny", change(CONFIG, depth=[1]), "bad-config: TinyViT"),
    "another size than the network's": (
        "tiny", change(PREPROCESSOR, size={"height": 64, "width": 64}), "bad-config: 64 x 64",
    ),
    "depth of a vit": ("vit", change(CONFIG, num_hidden_layers=10**8), "bad-config: num_hidden_layers 100000000"),
    "layers of a vit": ("vit", change(CONFIG, num_hidden_layers=10**5), "bad-config"),
    "width of a vit": ("vit", change(CONFIG, hidden_size=2**19), "bad-config"),
    "classes of a vit": ("vit", change(CONFIG, num_labels=10**9, id2label=None), "bad-config: num_labels 1000000000"),
    "more classes": ("vit", change(CONFIG, num_labels=10**6, id2label=None), "bad-config"),
    "images of a vit": ("vit", change(CONFIG, image_size=10**5), "bad-config"),
    "heads of a vit": ("vit", change(CONFIG, num_attention_heads=3), "bad-config"),
    "size of a vit": ("vit", change(PREPROCESSOR, size={"height": 64, "width": 64}), "bad-config: 64 x 64"),
    "depths of a segformer": ("segformer", change(CONFIG, depths=[10**7] * 4), "bad-config: depths 10000000"),
    "stages of a segformer": ("segformer", change(CONFIG, depths=[16384] * 4), "bad-config"),
    "many stages": ("segformer", change(CONFIG, depths=[1] * 10**5), "bad-config: depths 100000 256"),
    "a type that is a number": ("vit", change(CONFIG, model_type=7), "bad-config: model_type 7"),
    "a type that is a list": ("tiny", change(CONFIG, model_type=["x"]), "bad-config: model_type ['x']"),
    "architectures that are a number": ("vit", change(CONFIG, architectures=7), "bad-config: architectures 7"),
    "architectures of numbers": ("vit", change(CONFIG, architectures=[7]), "bad-config: architectures [7]"),
    "a text for a number": ("vit", change(CONFIG, hidden_size="wide"), "bad-config"),
    "an epsilon without end": ("vit", change(CONFIG, layer_norm_eps=float("inf")), "bad-config: layer_norm_eps"),
    "attention from elsewhere": ("vit", change(CONFIG, attn_implementation="evil/kernel"), "bad-config: evil"),
    "hidden attention": (
        "vit", change(CONFIG, x={"_attn_implementation": "evil/kernel"}), "bad-config: evil/kernel",
    ),
    "weights of another name": ("vit", change(CONFIG, transformers_weights="../x"), "bad-config: transformers_weights"),
    "another precision": ("vit", change(CONFIG, quantization_config={"a": 1}), "bad-config: quantization_config"),
    "code that comes along": (
        "vit", change(CONFIG, model_type="mine", auto_map={"AutoConfig": "code.Mine"}), "bad-config",
    ),
    "a model in place of this one": (
        "vit", replace("adapter_config.json", b'{"base_model_name_or_path": "x"}'), "no-weights",
    ),
    "weights in another form": (
        "vit", replace("shard-00000-model-00001-of-00001.safetensors", b"x"), "no-weights",
    ),
    "nested configuration": ("vit", replace(CONFIG, b'{"a":' * 100_000), "no-config: config.json"),
    "lists in lists": ("vit", replace(CONFIG, b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"), ""),
    "nested preprocessor": ("vit", replace(PREPROCESSOR, b"[" * 100_000), "preprocessing"),
    "a configuration of a terabyte": ("vit", sparse(CONFIG), "no-config: 16777216"),
    "a configuration from a pipe": ("vit", pipe(CONFIG), "not-a-file: config.json"),
    "a configuration from a device": ("vit", device(CONFIG), "not-a-file: config.json"),
    "a preprocessor from a pipe": ("vit", pipe(PREPROCESSOR), "not-a-file: preprocessor_config.json"),
    "weights from a pipe": ("vit", pipe("model.safetensors"), "not-a-file: model.safetensors"),
    "weights from a device": ("tiny", device("model.safetensors"), "not-a-file: model.safetensors"),
    "other files from a pipe": ("vit", pipe("generation_config.json"), "not-a-file: generation_config.json"),
    "an index that names a pickle": ("vit", index("pytorch_model.bin"), "damaged-model: pytorch_model.bin"),
    "an index that leads outside": ("vit", index("../outside.safetensors"), "damaged-model: ../outside.safetensors"),
    "an index of numbers": ("vit", index(7), "damaged-model: 7"),  # type: ignore[arg-type]
    "an index of nothing": ("vit", index(), "no-weights"),
    "an index of a file that is not there": ("vit", index("gone.safetensors"), "no-weights: gone.safetensors"),
    "an index without a map": (
        "vit",
        lambda folder: (
            (folder / "model.safetensors").unlink(), (folder / "model.safetensors.index.json").write_text("[]"), None,
        )[-1],
        "damaged-model: index.json",
    ),
    "weights that are not finite": ("vit", poisoned, "damaged-model"),
    "tiny weights that are not finite": ("tiny", poisoned, "damaged-model"),
    "a mean that is not finite": ("vit", change(PREPROCESSOR, image_mean=[float("nan")] * 3), "preprocessing: mean"),
    "a mean beyond all numbers": ("vit", change(PREPROCESSOR, image_mean=[1e300] * 3), "preprocessing: mean"),
    "a mean that is a text": ("vit", change(PREPROCESSOR, image_mean="0.5"), "preprocessing: mean"),
    "a deviation of nothing": ("vit", change(PREPROCESSOR, image_std=[0.0] * 3), "preprocessing: std"),
    "fewer deviations": ("vit", change(PREPROCESSOR, image_std=[0.5]), "preprocessing: std"),
    "an image of gigabytes": ("vit", change(PREPROCESSOR, size=10**6), "preprocessing: size 4096"),
    "an edge without end": (
        "vit", change(PREPROCESSOR, size={"shortest_edge": float("inf")}), "preprocessing",
    ),
    "a crop of gigabytes": (
        "vit", change(PREPROCESSOR, do_center_crop=True, crop_size=10**5), "preprocessing: crop 4096",
    ),
}  # fmt: skip


def write_model(folder: Path, kind: str) -> None:
    torch.manual_seed(0)
    if kind == "tiny":
        load_model(TinyViT(width=16, depth=1, patch=8), preprocessing=Preprocessing((32, 32))).save(folder)
    else:
        KINDS[kind]().save_pretrained(folder)
        write_preprocessor(BICUBIC, folder)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The output of a process for every folder; the last is unharmed, and the process must live to load it."""
    root = tmp_path_factory.mktemp("hostile")
    for number, (kind, harm, _) in enumerate(HOSTILE.values()):
        write_model(root / "models" / f"{number:03d}", kind)
        harm(root / "models" / f"{number:03d}")
    write_model(root / "models" / "999", "vit")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", LOAD, str(root / "models")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip([*HOSTILE, "unharmed", "memory"], done.stdout.splitlines(), strict=True))


def check(expected: str, answer: str) -> None:
    """Compare an answer with `code: value value ...`."""
    code, _, values = expected.partition(": ")
    assert answer.partition(" ")[0] == code if code else answer, answer
    for value in values.split():
        assert value in answer, answer


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_folder_is_one_sentence(name: str, answers: dict[str, str]) -> None:
    assert answers[name].startswith(("'", '"')), answers[name]
    check(HOSTILE[name][2], answers[name].strip("'\""))
    assert "\\n" not in answers[name]


def test_nothing_is_executed_and_little_memory_is_taken(answers: dict[str, str]) -> None:
    assert "executed" not in answers.values()
    assert answers["unharmed"] == "loaded"
    assert int(answers["memory"]) << 10 < 2 << 30


def test_weights_in_parts_are_loaded(tmp_path: Path) -> None:
    network = KINDS["vit"]().eval()
    network.save_pretrained(tmp_path / "parts", max_shard_size="4KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    model = load_model(tmp_path / "parts")
    images = torch.rand(1, 3, 32, 32)
    for name, weight in network.state_dict().items():
        assert torch.equal(model.network.state_dict()[name], weight), name
    torch.testing.assert_close(model.network(images).logits, network(images).logits)  # memory lies otherwise


def test_a_network_that_takes_images_as_they_come_is_tried_with_its_own_size(tmp_path: Path) -> None:
    write_model(tmp_path / "vit", "vit")
    write_preprocessor(Preprocessing(), tmp_path / "vit")
    assert load_model(tmp_path / "vit").preprocessing.size is None


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_lone_weights_must_be_an_ordinary_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "resnet20.safetensors")
    with refused("damaged-model", "resnet20.safetensors"):
        load_model(tmp_path / "resnet20.safetensors")


FROM_HUB = """
from testdg.errors import UserError
from testdg.models import load_model
for number in range({count}):
    try:
        model = load_model(f"some/vit{{number}}")
        print(model.name, model.classes, model.preprocessing.resample, model.alignment is not None, flush=True)
    except UserError as error:
        print(error.code, str(error).replace("\\n", " "), flush=True)
"""
IN_THE_HUB: list[tuple[str, Callable[[Path], None], str]] = [
    ("vit", lambda folder: None, "some/vit0: 5 bicubic False"),
    ("vit", change(CONFIG, num_labels=10**9, id2label=None), "bad-config: num_labels 1000000000"),
    ("vit", change(CONFIG, num_hidden_layers=10**5), "bad-config"),
    ("vit", change(PREPROCESSOR, image_std=[0.0] * 3), "preprocessing: std"),
    ("vit", lambda folder: (folder / "model.safetensors").unlink(), "bad-config: some/vit4"),
    ("tiny", lambda folder: None, "some/vit5: 10 bilinear False"),
    ("tiny", align, "some/vit6: 10 bilinear True"),
]


def test_models_of_the_hub_are_checked_as_folders_are(tmp_path: Path) -> None:
    for number, (kind, harm, _) in enumerate(IN_THE_HUB):
        place = tmp_path / f"models--some--vit{number}"  # as the hub leaves a model on the disk
        write_model(place / "snapshots" / "0123", kind)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text("0123")
        harm(place / "snapshots" / "0123")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", FROM_HUB.format(count=len(IN_THE_HUB))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    lines = done.stdout.splitlines()
    assert len(lines) == len(IN_THE_HUB), done.stdout + done.stderr[-2000:]
    for line, (_, _, answer) in zip(lines, IN_THE_HUB, strict=True):
        check(answer, line)
