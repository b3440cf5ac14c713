"""image-folder: pictures of a user's own; and images that are spread over the classes."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from support.errors import refused
from testdg import Preprocessing, load_model
from testdg.cli.app import execute
from testdg.data.benchmarks import load_benchmark
from testdg.data.corruptions import corrupt_uint8
from testdg.models import TinyCNN
from testdg.runs import run
from testdg.runs.source import source_model

NAMES = ["gaussian_noise", "fog"]


def make_tree(folder: Path, classes: str = "abc", each: int = 4) -> Path:
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for k in range(each):
            Image.new("RGB", (24 + k, 20), (60 * number, 20 * k, 40)).save(folder / name / f"{k}.png")
    return folder


def model(classes: int = 3, side: int = 16) -> TinyCNN:
    torch.manual_seed(0)
    return load_model(TinyCNN(classes, width=4), preprocessing=Preprocessing((side, side)))


def test_pictures_are_shuffled_corrupted_and_read_at_the_size_of_the_model(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "mine")
    bench = load_benchmark("image-folder", tree, domains=NAMES, workers=1)
    source_model(bench, model())
    images, labels = bench.domain("fog").read(0, 12)
    assert images.shape == (12, 3, 16, 16)
    assert labels.tolist() != sorted(labels.tolist())
    assert sorted(labels.tolist()) == [0] * 4 + [1] * 4 + [2] * 4
    clean, places = bench.clean_files, bench._positions
    expected = corrupt_uint8(clean.read(0, 12), "fog", 5, indices=places, parameters="imagenet")
    assert torch.equal((images * 255).round().to(torch.uint8), expected)
    about = bench.describe()["data"]
    assert "3 classes by the folders; shuffled by seed 0; read at 16 x 16 px" in about
    other = load_benchmark("image-folder", tree, domains=NAMES, workers=1, corruption_seed=1)
    assert other.clean_files.names != clean.names
    assert sorted(other.clean_files.names) == sorted(clean.names)


def test_fewer_images_are_spread_over_the_classes(tmp_path: Path) -> None:
    bench = load_benchmark("image-folder", make_tree(tmp_path / "mine"), domains=NAMES, images=7, workers=1)
    labels = bench.domain("fog").image_labels()
    assert sorted(labels.bincount().tolist()) == [2, 2, 3]
    assert "7 images, spread over the classes" in bench.origin()


def test_the_order_of_classes_is_the_models(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "mine", "bc", 2)
    bench = load_benchmark("image-folder", tree, domains=NAMES, workers=1)
    named = load_model(model(4), classes=["c", "x", "b", "y"])
    source_model(bench, named)
    numbers = {
        name.split("/")[0]: int(label)
        for name, label in zip(bench.clean_files.names, bench.domain("fog").labels, strict=True)
    }
    assert numbers == {"b": 2, "c": 0}
    strange = load_benchmark("image-folder", tree, domains=NAMES, workers=1)
    with refused("wrong-classes", "image-folder", 4, 2):
        source_model(strange, model(4))


def test_a_run_from_a_tree_and_from_what_corrupt_made_of_it(tmp_path: Path) -> None:
    tree, made = make_tree(tmp_path / "mine"), tmp_path / "made"
    settings = {"domains": NAMES, "workers": 1, "batch_size": 6, "device": "cpu", "out": tmp_path / "runs"}
    first = run("image-folder", "tent", model=model(), data=tree, **settings)
    assert [domain.images for domain in first.domains] == [12, 12]
    assert first.record["data"].endswith("read at 16 x 16 px")
    words = ["corrupt", "--benchmark", "image-folder", "--data", str(tree), "--out", str(made), "--severities", "5"]
    assert execute([*words, "--corruptions", ",".join(NAMES)]) == 0
    stored = load_benchmark("image-folder", made, domains=NAMES, workers=1)
    assert stored.describe()["images_per_domain"] == 12
    assert stored.classes == ("a", "b", "c")
    second = run("image-folder", "source", model=model(), data=made, **settings)
    assert [domain.images for domain in second.domains] == [12, 12]


@pytest.mark.parametrize("plain", [False, True])
def test_imagenet_c_spreads_its_images_and_describes_it(plain: bool, tmp_path: Path) -> None:
    make_tree(tmp_path / "mine" if plain else tmp_path / "mine" / "val")
    bench = load_benchmark("imagenet-c", tmp_path / "mine", domains=NAMES, images=5, workers=1)
    assert bench.clean_files.names == ("a/0.png", "b/0.png", "c/0.png", "a/1.png", "b/1.png")  # type: ignore[attr-defined]
    assert bench.origin().endswith("5 images, spread over the classes, one of each in turn")
    whole = load_benchmark("imagenet-c", tmp_path / "mine", domains=NAMES, workers=1)
    same = whole.domain("gaussian_noise").take([0, 4, 8, 1, 5])[0]
    assert torch.equal(bench.domain("gaussian_noise").read(0, 5)[0], same)
    (tmp_path / "list.txt").write_text("b/3.png\na/1.png\nb/0.png\n")
    listed = load_benchmark("imagenet-c", tmp_path / "mine", subset=tmp_path / "list.txt", images=2, workers=1)
    assert listed.clean_files.names == ("b/3.png", "a/1.png")  # type: ignore[attr-defined]
    assert listed.origin().endswith("2 images, the first of the list")


def test_a_folder_without_pictures_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with refused("no-such-data"):
        load_benchmark("image-folder", tmp_path)
