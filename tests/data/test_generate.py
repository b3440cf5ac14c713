import json
import os
import signal
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from support.errors import refused
from testdg.data.benchmarks import load_benchmark
from testdg.data.benchmarks.imagenet_c import IMAGENET
from testdg.data.corruptions import EXTRA, STANDARD_ORDER, FrostTextures, corrupt_uint8
from testdg.data.generate import CorruptOptions, write_arrays, write_pictures
from testdg.data.picture_sets import MANIFEST
from testdg.data.pictures import fit
from testdg.data.stream import LabelledImages

Call = tuple[str, int, int]


def quiet(*_: Any) -> None:
    pass


@pytest.fixture
def clean() -> LabelledImages:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (7, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return LabelledImages(images, torch.arange(7))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Four pictures of two classes, of different sizes and kinds; the first one is grey."""
    shapes: dict[str, tuple[int, ...]] = {"cat/b.JPEG": (300, 260), "cat/a.png": (256, 256, 3)}
    shapes |= {"owl/d.jpg": (40, 90, 3), "owl/c.JPEG": (224, 224, 3)}
    for name, shape in shapes.items():
        path = tmp_path / "val" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)).save(path)
    return tmp_path


def manifest(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    return content


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its time and content, without the manifest and the lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in (MANIFEST, ".lock")]
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_arrays_are_what_a_benchmark_makes_as_numpy_writes_them(tmp_path: Path) -> None:
    bench = load_benchmark("digits-c", images=6, corruption_seed=3)
    options = CorruptOptions(("glass_blur", "frost", "shot_noise"), seed=3)
    clean = bench.test().first(6)
    write_arrays(tmp_path / "X-C", clean, None, options, quiet)
    for name in (*options.corruptions, "labels"):
        content, array = BytesIO(), np.load(tmp_path / "X-C" / f"{name}.npy", allow_pickle=False)
        np.save(content, array)
        assert (tmp_path / "X-C" / f"{name}.npy").read_bytes() == content.getvalue()
        assert array.dtype == np.uint8
        if name == "labels":
            assert array.tolist() == 5 * clean.labels.tolist()
            continue
        assert array.shape == (30, 32, 32, 3)
        for severity in range(1, 6):
            made = bench.domain(name, severity).source.read(0, 6).permute(0, 2, 3, 1).numpy()
            assert np.array_equal(array[6 * (severity - 1) : 6 * severity], made)


def test_several_processes_make_the_same(clean: LabelledImages, tmp_path: Path) -> None:
    photographs = FrostTextures((torch.arange(3 * 60 * 60).view(3, 60, 60).to(torch.uint8),), "photographs from here")
    for jobs in (1, 2):
        write_arrays(tmp_path / str(jobs), clean, photographs, CorruptOptions(("frost", "snow"), jobs=jobs), quiet)
    for name in ("frost", "snow", "labels"):
        assert (tmp_path / "1" / f"{name}.npy").read_bytes() == (tmp_path / "2" / f"{name}.npy").read_bytes()
    assert manifest(tmp_path / "1")["frost"].startswith("photographs from here (")


def test_the_manifest_lists_what_is_complete_and_is_not_made_again(clean: LabelledImages, tmp_path: Path) -> None:
    write_arrays(tmp_path, clean, None, CorruptOptions(("fog",), seed=4), quiet)
    before = snapshot(tmp_path)["fog.npy"]
    calls: list[Call] = []
    options = CorruptOptions(("fog", "contrast"), seed=4)
    write_arrays(tmp_path, clean, None, options, lambda *call: calls.append(call))
    assert snapshot(tmp_path)["fog.npy"] == before
    assert {name for name, _, _ in calls} == {"contrast"}
    assert calls[-1] == ("contrast", 35, 35)
    found = manifest(tmp_path)
    assert len(found.pop("source_fingerprint")) == 12
    assert found.pop("version")
    assert found == {
        "generator": "testdg", "seed": 4, "frost": "procedural", "images": 7, "severities": [1, 2, 3, 4, 5],
        "corruptions": ["fog", "contrast"], "parameters": "cifar",
    }  # fmt: skip


@pytest.mark.parametrize("at", [1, 4, 7, 9])
def test_an_interrupted_write_leaves_nothing_that_looks_whole(clean: LabelledImages, tmp_path: Path, at: int) -> None:
    options, calls = CorruptOptions(("fog", "contrast")), 0

    def interrupt(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_arrays(tmp_path / "cut", clean, None, options, interrupt)
    there = [name for name in ("fog", "contrast") if (tmp_path / "cut" / f"{name}.npy").exists()]
    assert manifest(tmp_path / "cut")["corruptions"] == there == (["fog"] if at > 5 else [])
    write_arrays(tmp_path / "cut", clean, None, options, quiet)
    write_arrays(tmp_path / "whole", clean, None, options, quiet)
    contents = [{k: v for k, (_, v) in snapshot(tmp_path / name).items()} for name in ("cut", "whole")]
    assert contents[0] == contents[1]
    assert contents[0].keys() == {"fog.npy", "contrast.npy", "labels.npy"}


SCRIPT = """
import sys
from pathlib import Path
from testdg.data.benchmarks import load_benchmark
from testdg.data.generate import CorruptOptions, write_arrays
if __name__ == "__main__":
    clean = load_benchmark("digits-c").test()
    options = CorruptOptions(("contrast", "glass_blur", "shot_noise"), jobs=2)
    write_arrays(Path(sys.argv[1]), clean, None, options, lambda *_: None)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_killed_command_goes_on_and_its_workers_end(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "X-C")]
    reader, writer = os.pipe()  # the workers inherit the writing end: it closes when the last of them is gone
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=writer)
    os.close(writer)
    while process.poll() is None:
        if (tmp_path / "X-C" / "contrast.npy").exists():
            process.send_signal(signal.SIGKILL)
        time.sleep(0.001)
    assert process.returncode == -signal.SIGKILL
    with os.fdopen(reader, "rb") as errors:
        assert b"Traceback" not in errors.read()  # and the end of the file was reached
    assert not (tmp_path / "X-C" / "shot_noise.npy").exists()
    before = snapshot(tmp_path / "X-C")["contrast.npy"]
    clean, options = load_benchmark("digits-c").test(), CorruptOptions(("contrast", "glass_blur"))
    write_arrays(tmp_path / "X-C", clean, None, options, quiet)
    assert snapshot(tmp_path / "X-C")["contrast.npy"] == before
    expected = corrupt_uint8(clean.images[-9:], "glass_blur", 5, indices=range(len(clean) - 9, len(clean)))
    found = np.load(tmp_path / "X-C" / "glass_blur.npy", allow_pickle=False)[-9:]
    assert np.array_equal(found, expected.permute(0, 2, 3, 1).numpy())


def test_pictures_are_the_corrupted_pixels_as_jpeg(pictures: Path) -> None:
    options = CorruptOptions(("pixelate", "gaussian_noise"), (2, 5), seed=1)
    bench = load_benchmark("imagenet-c", pictures, domains=options.corruptions, corruption_seed=1, workers=1)
    on_the_fly = {domain.name: domain.source.read(0, 4) for domain in bench.domains()}
    write_pictures(pictures / "ImageNet-C", IMAGENET, pictures, None, options, quiet)
    names = ["cat/a.png", "cat/b.JPEG", "owl/c.JPEG", "owl/d.jpg"]
    for name in options.corruptions:
        for severity in options.severities:
            folder = pictures / "ImageNet-C" / name / str(severity)
            made = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
            assert made == ["cat/a.JPEG", "cat/b.JPEG", "owl/c.JPEG", "owl/d.JPEG"]
            for index, source in enumerate(names):
                clean = torch.from_numpy(np.array(fit(Image.open(pictures / "val" / source)))).permute(2, 0, 1)
                pixels = corrupt_uint8(clean[None], name, severity, indices=[index], seed=1, parameters="imagenet")
                content = BytesIO()
                Image.fromarray(pixels[0].permute(1, 2, 0).numpy()).save(content, "JPEG", quality=85)
                assert (folder / made[index]).read_bytes() == content.getvalue()
                if severity == 5:
                    assert torch.equal(pixels[0], on_the_fly[name][index])
    assert manifest(pictures / "ImageNet-C")["severities"] == [2, 5]
    assert manifest(pictures / "ImageNet-C")["parameters"] == "imagenet"


def test_a_severity_of_pictures_appears_when_it_is_whole(pictures: Path) -> None:
    out, options = pictures / "out", CorruptOptions(("contrast",), (1, 3))
    bad = pictures / "val" / "owl" / "d.jpg"
    content = bad.read_bytes()
    bad.write_bytes(content[:200].ljust(len(content), b"\0"))
    with refused("unreadable-picture", "d.jpg"):
        write_pictures(out, IMAGENET, pictures, None, options, quiet)
    assert [path.name for path in (out / "contrast").iterdir()] == ["1.part"]
    before = snapshot(out)
    assert manifest(out)["corruptions"] == []
    bad.write_bytes(content)
    write_pictures(out, IMAGENET, pictures, None, options, quiet)
    after = snapshot(out)
    for name, value in before.items():
        assert after[name.replace("1.part", "1")] == value  # reused, not made again
    assert sorted(path.name for path in (out / "contrast").iterdir()) == ["1", "3"]


def test_photographs_of_frost_beside_the_pictures_are_used(pictures: Path) -> None:
    options = CorruptOptions(("frost",), (5,))
    write_pictures(pictures / "grown", IMAGENET, pictures, 1, options, quiet)
    (pictures / "frost").mkdir()
    Image.fromarray(np.full((300, 300, 3), 255, np.uint8)).save(pictures / "frost" / "1.png")
    write_pictures(pictures / "taken", IMAGENET, pictures / "val", 1, options, quiet)  # the folder of classes itself
    files = [pictures / name / "frost" / "5" / "cat" / "a.JPEG" for name in ("grown", "taken")]
    assert files[0].read_bytes() != files[1].read_bytes()
    assert manifest(pictures / "taken")["frost"].startswith("photographs from frost (")
    assert np.array(Image.open(files[1])).min() > 150  # 0.75 of white, and the picture


def test_all_nineteen_are_made_if_none_is_named() -> None:
    assert CorruptOptions().corruptions == (*STANDARD_ORDER, *EXTRA)


@pytest.mark.parametrize(
    ("values", "code", "value"),
    [
        ({"corruptions": ("fogg",)}, "unknown-corruption", "fog"),
        ({"corruptions": ("fog", "fog")}, "wrong-corruptions", "fog, fog"),
        ({"corruptions": ()}, "wrong-corruptions", "none"),
        ({"severities": (0,)}, "wrong-severity", 0),
        ({"severities": (2, 2)}, "wrong-severities", "2, 2"),
        ({"jobs": 0}, "wrong-jobs", 0),
    ],
)
def test_options_are_checked(values: dict[str, Any], code: str, value: object) -> None:
    with refused(code, value):
        CorruptOptions(**values)


def test_arrays_need_all_severities(clean: LabelledImages, tmp_path: Path) -> None:
    with refused("wrong-severities", "1, 3"):
        write_arrays(tmp_path / "X-C", clean, None, CorruptOptions(severities=(1, 3)), quiet)
    assert not (tmp_path / "X-C").exists()


def test_other_values_do_not_mix_in(clean: LabelledImages, pictures: Path, tmp_path: Path) -> None:
    write_arrays(tmp_path / "X-C", clean, None, CorruptOptions(("fog",)), quiet)
    before = snapshot(tmp_path / "X-C")
    with refused("other-data", "X-C", "seed"):
        write_arrays(tmp_path / "X-C", clean, None, CorruptOptions(("fog",), seed=1), quiet)
    with refused("other-data", "X-C", "source_fingerprint"):
        write_arrays(tmp_path / "X-C", clean.first(5), None, CorruptOptions(("snow",)), quiet)
    assert snapshot(tmp_path / "X-C") == before
    write_pictures(tmp_path / "Y-C", IMAGENET, pictures, 1, CorruptOptions(("contrast",), (1,)), quiet)
    with refused("other-data", "Y-C", "[1]", "[2]"):
        write_pictures(tmp_path / "Y-C", IMAGENET, pictures, 1, CorruptOptions(("contrast",), (2,)), quiet)


def test_a_folder_that_something_else_made_is_left_alone(clean: LabelledImages, tmp_path: Path) -> None:
    np.save(tmp_path / "fog.npy", np.zeros(3))
    before = snapshot(tmp_path)
    with refused("folder-in-use", "fog.npy"):
        write_arrays(tmp_path, clean, None, CorruptOptions(("snow",)), quiet)
    assert snapshot(tmp_path) == before
    assert not (tmp_path / ".lock").exists()
    with refused("cannot-write", "fog.npy"):
        write_arrays(tmp_path / "fog.npy", clean, None, CorruptOptions(("snow",)), quiet)
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / MANIFEST).write_text("{")
    with refused("damaged-file", "testdg-corrupt.json"):
        write_arrays(tmp_path / "damaged", clean, None, CorruptOptions(("snow",)), quiet)


def test_a_full_disk_is_a_user_error_and_leaves_nothing_whole(clean: LabelledImages, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", exc_type=ImportError)
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, before[1]))
    try:
        with refused("cannot-write"):
            write_arrays(tmp_path, clean, None, CorruptOptions(("fog",)), quiet)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.glob("fog*"))
    assert manifest(tmp_path)["corruptions"] == []


def test_pictures_whose_names_would_meet_are_refused(pictures: Path) -> None:
    Image.new("RGB", (9, 9)).save(pictures / "val" / "cat" / "b.png")
    with refused("duplicate", "cat/b.JPEG", "cat/b.png"):
        write_pictures(pictures / "out", IMAGENET, pictures, None, CorruptOptions(("contrast",)), quiet)
