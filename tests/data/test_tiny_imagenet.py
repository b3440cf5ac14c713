import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support.errors import refused
from support.image_sets import write_image
from testdg.cli.app import execute
from testdg.data.benchmarks import load_benchmark
from testdg.data.check import check_folder
from testdg.data.corruptions import EXTRA, STANDARD_ORDER, corrupt_uint8
from testdg.data.corruptions import TINY_IMAGENET as PARAMETERS

WNIDS = ("n02124075", "n01443537", "n03970156")  # in no order, as in the list that comes with the set
NAMES = ["gaussian_noise", "fog"]
OPTIONS = {"domains": NAMES, "workers": 1}
SIZE = (64, 64)


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """Three of the 200 classes, two training and two validation images each."""
    root = tmp_path / "tiny-imagenet-200"
    for row, wnid in enumerate(WNIDS):
        for number in range(2):
            write_image(root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", 10 * row + number, SIZE)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t63\t63\n")
    lines = []
    for number in range(6):  # neighbours are of different classes
        write_image(root / "val" / "images" / f"val_{number}.JPEG", 100 + number, SIZE)
        lines.append(f"val_{number}.JPEG\t{WNIDS[number % 3]}\t0\t32\t44\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    return tmp_path


def write_stored(data: Path, severities: tuple[int, ...] = (5,)) -> Path:
    for name in NAMES:
        for severity in severities:
            for row, wnid in enumerate(WNIDS):
                path = data / "Tiny-ImageNet-C" / name / str(severity) / wnid / f"val_{row}.JPEG"
                write_image(path, row, SIZE)
    return data / "Tiny-ImageNet-C"


def test_every_corruption_has_parameters_for_64_px(tmp_path: Path) -> None:
    picture = np.array(Image.open(write_image(tmp_path / "1.png", 3, SIZE)))
    images = torch.from_numpy(picture).permute(2, 0, 1)[None]
    for name in (*STANDARD_ORDER, *EXTRA):
        mild, strong = (corrupt_uint8(images, name, level, indices=[0], parameters=PARAMETERS) for level in (1, 5))
        assert mild.shape == images.shape
        assert not torch.equal(strong, images)
        assert not torch.equal(strong, mild)


def test_labels_count_the_sorted_names_of_the_list(clean: Path) -> None:
    bench = load_benchmark("tiny-imagenet-c", clean, **OPTIONS)
    assert bench.classes == tuple(sorted(WNIDS))
    samples = bench.test()
    assert (samples.images.shape, samples.labels.tolist()) == ((6, 3, 64, 64), [0, 0, 1, 1, 2, 2])
    first = clean / "tiny-imagenet-200" / "val" / "images" / "val_1.JPEG"  # of the first class by name
    assert torch.equal(samples.images[0], torch.from_numpy(np.array(Image.open(first))).permute(2, 0, 1))
    assert bench.train().labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert "3 classes by wnids.txt" in bench.origin()
    (clean / "tiny-imagenet-200" / "classes.txt").write_text("\n".join(WNIDS))
    assert load_benchmark("tiny-imagenet-c", clean, **OPTIONS).classes == WNIDS


@pytest.mark.parametrize("inside", [True, False])
def test_clean_images_are_corrupted_on_the_fly_for_64_px(clean: Path, inside: bool) -> None:
    data = clean / "tiny-imagenet-200" if inside else clean
    bench = load_benchmark("tiny-imagenet-c", data, severity=3, **OPTIONS)
    expected = corrupt_uint8(bench.test().images, "fog", 3, indices=range(6), parameters=PARAMETERS)
    assert torch.equal(bench.domain("fog").source.read(0, 6), expected)


@pytest.mark.parametrize("inside", [True, False])
def test_the_published_layout_is_read_without_the_clean_images(tmp_path: Path, inside: bool) -> None:
    stored = write_stored(tmp_path)
    bench = load_benchmark("tiny-imagenet-c", stored if inside else tmp_path, **OPTIONS)
    assert bench.describe()["data"] == "published Tiny-ImageNet-C; subset all; 3 classes by the folders"
    images, labels = bench.domain("fog").read(0, 3)
    assert (images.shape, labels.tolist()) == ((3, 3, 64, 64), [0, 1, 2])


@pytest.mark.parametrize(
    ("line", "code", "value"),
    [
        ("val_0.JPEG\n", "wrong-list", "line 1"),
        ("val_0.JPEG\t../../x\n", "wrong-list", "line 1"),
        ("val_0.JPEG\t..\n", "wrong-list", "line 1"),
        (f"val_0.JPEG\t{WNIDS[0]}\n", "wrong-list", "val_1.JPEG"),
        ("val_9.JPEG\tn0\n", "wrong-list", "val_0.JPEG"),
        ("", "empty-list", "val_annotations.txt"),
    ],
)
def test_a_wrong_list_of_annotations_is_refused(clean: Path, line: str, code: str, value: str) -> None:
    (clean / "tiny-imagenet-200" / "val" / "val_annotations.txt").write_text(line)
    with refused(code, value):
        load_benchmark("tiny-imagenet-c", clean, **OPTIONS).test()


def test_what_is_missing_is_named(clean: Path, tmp_path: Path) -> None:
    with refused("no-such-data", "Tiny-ImageNet-C/gaussian_noise/5", "tiny-"):
        load_benchmark("tiny-imagenet-c", tmp_path / "tiny-imagenet-200" / "train")
    (clean / "tiny-imagenet-200" / "val" / "val_annotations.txt").unlink()
    with refused("unreadable-list", "val_annotations.txt"):
        load_benchmark("tiny-imagenet-c", clean, **OPTIONS).test()


@pytest.mark.parametrize("inside", [True, False])
def test_the_clean_images_are_checked_once(clean: Path, inside: bool) -> None:
    root = clean / "tiny-imagenet-200"
    checks = check_folder(root if inside else clean)
    assert [(check.name, check.found, check.problems, check.notes) for check in checks] == [
        ("Tiny ImageNet val", "6 images, 3 classes", [], []),
        ("Tiny ImageNet train", "6 images, 3 classes", [], []),
    ]
    assert [check.folder for check in checks] == [root / "val" / "images", root / "train"]


def test_a_data_folder_may_be_shared_with_other_sets(tmp_path: Path) -> None:
    for part in ("train", "val"):
        write_image(tmp_path / part / WNIDS[0] / "1.JPEG", 0)
    (tmp_path / "classes.txt").write_text("\n".join(reversed(WNIDS)))
    assert [check.name for check in check_folder(tmp_path)] == ["ImageNet val", "ImageNet train"]
    with refused("no-such-data", "Tiny ImageNet"):
        load_benchmark("tiny-imagenet-c", tmp_path)
    write_stored(tmp_path)
    (tmp_path / "train" / "n99999999").mkdir()
    assert load_benchmark("tiny-imagenet-c", tmp_path, **OPTIONS).classes == tuple(sorted(WNIDS))


@pytest.mark.parametrize("inside", [True, False])
def test_the_published_files_are_checked_once(tmp_path: Path, inside: bool) -> None:
    stored = write_stored(tmp_path, (1, 2, 3, 4, 5))
    (check,) = check_folder(stored if inside else tmp_path)
    assert (check.name, check.folder) == ("Tiny-ImageNet-C", stored)
    assert check.found == "2 corruptions, 10 severities in all, 3 images"
    folder = stored.rename(tmp_path / "any")
    assert [check.name for check in check_folder(folder)] == ["ImageNet-C"]  # as any folder of corruptions


def test_a_set_is_made_and_read_again(clean: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load_benchmark("tiny-imagenet-c", clean, severity=2, **OPTIONS).domain("fog").source.read(0, 6)
    command = ["corrupt", "--benchmark", "tiny-imagenet-c", "--data", str(clean), "--out", str(clean), "--json"]
    assert execute([*command, "--corruptions", ",".join(NAMES), "--severities", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == "tiny-imagenet"
    content = BytesIO()
    Image.fromarray(before[0].permute(1, 2, 0).contiguous().numpy()).save(content, "JPEG", quality=85)
    made = clean / "Tiny-ImageNet-C" / "fog" / "2" / sorted(WNIDS)[0] / "val_1.JPEG"
    assert made.read_bytes() == content.getvalue()
    bench = load_benchmark("tiny-imagenet-c", clean, severity=2, **OPTIONS)
    assert bench.origin().startswith("generated by testdg")
    assert bench.domain("fog").labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_run_on_it(clean: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    where = ["--benchmark", "tiny-imagenet-c", "--data", str(clean), "--device", "cpu"]
    assert execute(["train", *where, "--model", "tiny", "--out", str(model), "--epochs", "1"]) == 0
    options = ["--method", "source", "--domains", ",".join(NAMES), "--out", str(tmp_path / "runs"), "--json"]
    assert execute(["run", *where, "--model", str(model), *options]) == 0
    assert "fog" in capsys.readouterr().out
