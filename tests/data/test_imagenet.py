from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from support.errors import refused
from support.image_sets import WNIDS, write_classes, write_image, write_stored
from testdg.data.benchmarks import load_benchmark
from testdg.data.corruptions import corrupt_uint8
from testdg.models import Preprocessing

NAMES = ["gaussian_noise", "fog"]
OPTIONS = {"domains": NAMES, "workers": 1}


@pytest.mark.parametrize("groups", [("", ""), ("noise/", "weather/")])
@pytest.mark.parametrize("inside", [True, False])
def test_the_published_layout_is_read(tmp_path: Path, groups: tuple[str, str], inside: bool) -> None:
    root = tmp_path / "ImageNet-C"
    write_stored(root, [group + name for group, name in zip(groups, NAMES, strict=True)])
    bench = load_benchmark("imagenet-c", root if inside else tmp_path, **OPTIONS)
    assert (bench.batch_size, bench.classes) == (50, WNIDS)
    about = bench.describe()
    assert about["data"] == "published ImageNet-C; subset all; 3 classes by the folders"
    assert (about["domains"], about["images_per_domain"]) == (NAMES, 6)
    (first, *_, last) = bench.stream(4)
    assert first.labels.tolist() == [0, 0, 1, 1]
    assert last.labels.tolist() == [2, 2]
    with Image.open(root / f"{groups[1]}fog" / "5" / WNIDS[2] / "ILSVRC2012_val_00000005.JPEG") as picture:
        expected = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    assert torch.equal((last.images[1] * 255).round().byte(), expected)


def test_the_order_and_the_labels_are_those_of_the_list(tmp_path: Path) -> None:
    write_stored(tmp_path / "ImageNet-C", NAMES)
    required = [f"{WNIDS[2]}/ILSVRC2012_val_00000005.JPEG", f"{WNIDS[0]}/ILSVRC2012_val_00000001.JPEG"]
    (tmp_path / "ids.txt").write_text("\n".join(required))
    bench = load_benchmark("imagenet-c", tmp_path, subset=tmp_path / "ids.txt", **OPTIONS)
    assert bench.domain("fog").labels.tolist() == [2, 0]
    assert "subset ids.txt" in bench.origin()
    (tmp_path / "ImageNet-C" / "fog" / "5" / required[1]).unlink()
    with refused("no-such-file", "ids.txt", "fog/5", required[1]):
        load_benchmark("imagenet-c", tmp_path, subset=tmp_path / "ids.txt", **OPTIONS).domains()


def test_the_data_folder_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_stored(tmp_path / "ImageNet-C", NAMES)
    monkeypatch.chdir(tmp_path)
    for folder in (".", "ImageNet-C"):
        assert len(load_benchmark("imagenet-c", folder, **OPTIONS).stream(4)[1].labels) == 2


def test_images_counts_within_the_subset(tmp_path: Path) -> None:
    write_stored(tmp_path / "ImageNet-C", NAMES)
    bench = load_benchmark("imagenet-c", tmp_path, subset="first:1", images=2, **OPTIONS)
    assert bench.domain("fog").labels.tolist() == [0, 1]


def test_a_list_of_classes_gives_the_labels(tmp_path: Path) -> None:
    write_stored(tmp_path / "ImageNet-C", NAMES)
    (tmp_path / "LOC_synset_mapping.txt").write_text(f"n01 a\n{WNIDS[0]} b\n{WNIDS[1]} c\nn015 d\n{WNIDS[2]} e\n")
    bench = load_benchmark("imagenet-c", tmp_path, **OPTIONS)
    assert len(bench.classes) == 5
    assert bench.domain("fog").labels.tolist() == [1, 1, 2, 2, 4, 4]
    assert "5 classes by LOC_synset_mapping.txt" in bench.origin()
    (tmp_path / "classes.txt").write_text(f"{WNIDS[0]}\n")
    with refused("unknown-class", WNIDS[1], "classes.txt"):
        load_benchmark("imagenet-c", tmp_path, **OPTIONS).domains()


def test_classes_are_those_of_all_folders(tmp_path: Path) -> None:
    write_stored(tmp_path / "ImageNet-C", NAMES)
    write_classes(tmp_path / "val", each=1, wnids=("n00000001", *WNIDS))
    assert load_benchmark("imagenet-c", tmp_path, **OPTIONS).domain("fog").labels.tolist() == [1, 1, 2, 2, 3, 3]


def test_clean_images_are_corrupted_on_the_fly(tmp_path: Path) -> None:
    write_classes(tmp_path / "val", size=(300, 260))
    bench = load_benchmark("imagenet-c", tmp_path, severity=3, **OPTIONS)
    assert bench.describe()["data"].startswith("generated on the fly, seed 0, frost procedural; subset all; 3 classes")
    clean = bench.test()
    assert clean.images.shape == (6, 3, 224, 224)
    expected = corrupt_uint8(clean.images, "fog", 3, indices=range(6), parameters="imagenet")
    assert torch.equal(bench.domain("fog").source.read(0, 6), expected)
    one = load_benchmark("imagenet-c", tmp_path, severity=3, subset="first:1", **OPTIONS)
    assert torch.equal(one.domain("fog").source.read(0, 3), expected[::2])
    assert one.fingerprint() != bench.fingerprint()


def test_training_images_are_read_whatever_the_list(tmp_path: Path) -> None:
    for part in ("train", "val"):
        write_classes(tmp_path / part)
    (tmp_path / "ids.txt").write_text(f"{WNIDS[1]}/ILSVRC2012_val_00000003.JPEG")
    bench = load_benchmark("imagenet-c", tmp_path, subset=tmp_path / "ids.txt", workers=1)
    assert (bench.train().labels.tolist(), bench.test().labels.tolist()) == ([0, 0, 1, 1, 2, 2], [1])
    assert load_benchmark("imagenet-c", tmp_path, subset="first:1", workers=1).train().labels.tolist() == [0, 1, 2]


def test_unreadable_files_are_skipped_and_counted(tmp_path: Path) -> None:
    write_stored(tmp_path / "ImageNet-C", NAMES)
    bad = "ImageNet-C/fog/5/n01443537/ILSVRC2012_val_00000002.JPEG"
    (tmp_path / bad).write_bytes(b"no picture")
    strict = load_benchmark("imagenet-c", tmp_path, **OPTIONS)
    with refused("unreadable-picture", bad):
        list(strict.stream(4))
    assert strict.unreadable() == []
    bench = load_benchmark("imagenet-c", tmp_path, skip_unreadable=True, **OPTIONS)
    about = bench.describe()
    assert (about["images_per_domain"], bench.unreadable()) == ([6, 5], [bad])
    assert about["data"].endswith("; unreadable files skipped")
    assert about["data_fingerprint"] != strict.fingerprint()
    assert [len(batch.labels) for batch in bench.stream(4)] == [4, 2, 4, 1]


def test_the_papers_input_is_the_published_one(tmp_path: Path) -> None:
    write_stored(tmp_path / "ImageNet-C", NAMES)
    bench = load_benchmark("imagenet-c", tmp_path, **OPTIONS)
    path = tmp_path / "ImageNet-C" / "fog" / "5" / WNIDS[0] / "ILSVRC2012_val_00000000.JPEG"
    with Image.open(path) as picture:
        zoomed = picture.resize((256, 256), Image.Resampling.BILINEAR).crop((16, 16, 240, 240))
    found = Preprocessing(**bench.paper).resize(bench.domain("fog").read(0, 1)[0])[0]
    assert (found * 255 - torch.from_numpy(np.array(zoomed)).permute(2, 0, 1)).abs().max() <= 1
    assert (bench.paper["mean"], bench.paper["std"]) == ((0, 0, 0), (1, 1, 1))
    assert load_benchmark("cifar10-c", tmp_path).paper["size"] == (384, 384)


def test_a_folder_without_imagenet_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "frost" / "frost1.png", 0)  # photographs of frost, not the corruption
    with refused("no-such-data", "ImageNet-C/gaussian_noise/5"):
        load_benchmark("imagenet-c", tmp_path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    write_stored(tmp_path / "ImageNet-C", NAMES, severities=(3, 5))
    bench = load_benchmark("imagenet-c", tmp_path, workers=1)
    with refused("no-such-data", "fog", 4, "3, 5"):
        bench.domain("fog", 4)
    with refused("no-such-data", "ImageNet-C/shot_noise"):
        bench.domains()
    with refused("no-such-data", "val"):
        bench.test()
    with refused("unknown-corruption", "gausian_noise", "gaussian_noise"):
        bench.domain("gausian_noise")
