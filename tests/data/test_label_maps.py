from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from support.errors import refused
from support.image_sets import pixels_of, write_acdc, write_cityscapes, write_folder, write_image, write_mask
from testdg.data.benchmarks import load_benchmark
from testdg.data.segmentation.classes import CITYSCAPES, IGNORED, cityscapes_table, plain_table, read_class_names
from testdg.data.segmentation.files import PairFiles, read_picture, room
from testdg.data.segmentation.layouts import complete, find_folders, list_acdc, list_cityscapes
from testdg.data.stream import Domain, Sampling, Stream
from testdg.models import Preprocessing


def camvid(root: Path, count: int = 3) -> PairFiles:
    write_folder(root / "test", root / "testannot", count)
    folders = find_folders(root, "test")
    assert folders is not None
    return PairFiles(complete(folders.listed()))


def test_the_public_ids_of_cityscapes_become_train_ids() -> None:
    ids = dict(zip(CITYSCAPES, [7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33], strict=True))
    stored = np.arange(34, dtype=np.uint8)
    found = cityscapes_table().apply(stored, Path("map.png")).tolist()
    assert [found[number] for number in ids.values()] == list(range(19))
    assert {found[number] for number in range(34) if number not in ids.values()} == {IGNORED}


def test_acdc_is_read_in_sorted_order_without_references(tmp_path: Path) -> None:
    write_acdc(tmp_path, ["fog"])
    pairs = complete(list_acdc(tmp_path, "fog"))
    assert [pair.name.split("/")[0] for pair in pairs] == ["GOPR0475", "GP010476", "GP010476"]
    assert [pair.name for pair in pairs] == sorted(pair.name for pair in pairs)
    assert all(pair.mask.name == pair.image.name.replace("rgb_anon", "gt_labelTrainIds") for pair in pairs)


def test_an_archives_own_folder_may_be_in_between(tmp_path: Path) -> None:
    write_acdc(tmp_path / "both", ["fog"])
    (tmp_path / "rgb_anon_trainvaltest").mkdir()
    (tmp_path / "gt_trainval").mkdir()
    (tmp_path / "both" / "rgb_anon").rename(tmp_path / "rgb_anon_trainvaltest" / "rgb_anon")
    (tmp_path / "both" / "gt").rename(tmp_path / "gt_trainval" / "gt")
    assert len(complete(list_acdc(tmp_path, "fog"))) == 3


@pytest.mark.parametrize("kind", ["labelTrainIds", "labelIds"])
def test_cityscapes_is_read_from_either_kind_of_label_map(tmp_path: Path, kind: str) -> None:
    write_cityscapes(tmp_path, "val", kind)
    files = PairFiles(complete(list_cityscapes(tmp_path, "val")))
    assert [pair.name.split("/")[0] for pair in files.pairs] == ["aachen", "aachen", "ulm", "ulm"]
    stored, found = pixels_of(files.pairs[3].mask), files.masks.read(3, 4)[0]
    meaning = {0: 0, 13: 13, 18: 18, 255: 255} if kind == "labelTrainIds" else {0: 255, 7: 0, 26: 13, 33: 18}
    assert all((found[stored == number] == label).all() for number, label in meaning.items())
    assert found.dtype == torch.uint8


def test_camvids_void_is_ignored(tmp_path: Path) -> None:
    files = camvid(tmp_path)
    stored = torch.stack([pixels_of(pair.mask) for pair in files.pairs])
    assert (stored == 11).any()
    assert torch.equal(files.masks.read(0, 3), torch.where(stored == 11, 255, stored))
    assert torch.equal(files.images.read(0, 3)[1], pixels_of(files.pairs[1].image).permute(2, 0, 1))


def test_pictures_are_resized_without_antialiasing(tmp_path: Path) -> None:
    write_folder(tmp_path / "test", tmp_path / "testannot", 1, (64, 48))
    folders = find_folders(tmp_path, "test")
    assert folders is not None
    with Image.open(complete(folders.listed())[0].image) as picture:
        for height, width in ((24, 32), (18, 40), (96, 100)):
            files = PairFiles(complete(folders.listed()), (height, width), (height, width))
            scale = (64 / width, 0, 0, 0, 48 / height, 0)
            expected = picture.transform((width, height), Image.Transform.AFFINE, scale, Image.Resampling.BILINEAR)
            found = files.images.read(0, 1)[0].permute(1, 2, 0)
            assert (found.int() - torch.from_numpy(np.array(expected)).int()).abs().max() <= 1
            assert set(files.masks.read(0, 1).unique().tolist()) <= {0, 1, 2, 255}


def test_label_maps_make_a_stream_in_any_order(tmp_path: Path) -> None:
    files = camvid(tmp_path, 5)
    domains = [Domain(name, None, files.images, files.masks) for name in ("fog", "rain")]
    masks, images = files.masks.take(range(5)), files.images.take(range(5))
    for kind in ("file", "mixed"):
        seen = []
        for batch in Stream(domains, 2, Sampling(kind)):  # type: ignore[arg-type]
            assert torch.equal(batch.labels, masks[batch.indices])
            assert torch.equal((batch.images * 255).round().byte(), images[batch.indices])
            seen += list(zip(batch.segments.tolist(), batch.indices.tolist(), strict=True))
        assert sorted(seen) == [(segment, index) for segment in range(2) for index in range(5)]


def test_a_list_of_classes_may_end_with_void(tmp_path: Path) -> None:
    path = tmp_path / "classes.txt"
    path.write_text("traffic light\nroad\nvoid\n")
    names, table = read_class_names(path)
    assert names == ("traffic light", "road")
    assert table.apply(np.array([0, 1, 2, 255], np.uint8), path).tolist() == [0, 1, 255, 255]
    path.write_text("road\nroad\n")
    with refused("wrong-classes", "classes.txt"):
        read_class_names(path)


def test_numbers_that_mean_nothing_are_named() -> None:
    with refused("wrong-labels", "map.png", 3):
        plain_table(3).apply(np.array([0, 3], np.uint8), Path("map.png"))
    with refused("wrong-labels", "labelIds", 34):
        cityscapes_table().apply(np.array([34], np.uint8), Path("map.png"))


def replace(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


SPOILT = {
    "depth": (lambda image, _: Image.fromarray(np.full((12, 16), 300, np.uint16)).save(image), "picture-kind", "I;16"),
    "link": (lambda image, _: replace(image, image.parent / "nowhere.png"), "unreadable-picture", "test/scene_1.png"),
    "image": (lambda image, _: image.write_bytes(image.read_bytes()[:-40]), "unreadable-picture", "truncated"),
    "size": (lambda _, mask: write_mask(mask, 0, (8, 6)), "picture-size", "8 x 6 px"),
    "labels": (lambda _, mask: write_mask(mask, 0, labels=(0, 12)), "wrong-labels", "12"),
    "kind": (lambda _, mask: write_image(mask, 0, (16, 12)), "picture-kind", "RGB"),
    "mask": (lambda _, mask: mask.write_bytes(b"no picture"), "unreadable-picture", "testannot/scene_1.png"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_bad_file_is_named_when_it_is_read_or_left_out(tmp_path: Path, name: str) -> None:
    spoil, code, value = SPOILT[name]
    write_folder(tmp_path / "test", tmp_path / "testannot")
    spoil(tmp_path / "test" / "scene_1.png", tmp_path / "testannot" / "scene_1.png")
    with refused(code, "scene_1.png", value):
        list(load_benchmark("folder-weather", tmp_path).stream(1))
    bench = load_benchmark("folder-weather", tmp_path, skip_unreadable=True)
    assert [len(batch.labels) for batch in bench.stream(2)] == [2] * 4
    assert bench.unreadable() == ["test/scene_1.png"]


@pytest.mark.parametrize(
    ("name", "first"),
    [("acdc", "fog/GOPR0475/GOPR0475_frame_000000_rgb_anon.png"), ("folder-weather", "test/scene_0.png")],
)
def test_the_first_picture_may_be_one_that_is_left_out(tmp_path: Path, name: str, first: str) -> None:
    write_acdc(tmp_path, ["fog"]) if name == "acdc" else write_folder(tmp_path / "test", tmp_path / "testannot")
    next(tmp_path.rglob(Path(first).name)).write_bytes(b"no picture")
    bench = load_benchmark(name, tmp_path, skip_unreadable=True, domains=["fog"])
    assert [len(batch.labels) for batch in bench.stream(2)] == [2]
    assert bench.unreadable() == [first]
    for path in tmp_path.rglob("*_anon.png" if name == "acdc" else "test/*.png"):
        path.write_bytes(b"no picture")
    with refused("unreadable-picture", 3):
        load_benchmark(name, tmp_path, skip_unreadable=True, domains=["fog"]).domains()


def test_a_picture_without_a_label_map_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "test", tmp_path / "testannot")
    (tmp_path / "testannot" / "scene_2.png").unlink()
    with refused("no-label-map", "test/scene_2.png", "testannot/scene_2.png"):
        load_benchmark("folder-weather", tmp_path).domains()


def test_pictures_that_would_share_a_label_map_are_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "test", tmp_path / "testannot")
    write_image(tmp_path / "test" / "scene_2.jpg", 0, (16, 12))
    with refused("duplicate", "scene_2.jpg", "scene_2.png"):
        load_benchmark("folder-weather", tmp_path).domains()


def test_pictures_that_do_not_fit_in_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = camvid(tmp_path)
    monkeypatch.setattr("testdg.data.segmentation.files.room", lambda: 2 * 16 * 12 * 4)
    with refused("too-many-images", 3, 2):
        files.load()


def test_there_is_room_for_half_of_the_memory_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2 << 20}
    monkeypatch.setattr("os.sysconf", pages.__getitem__, raising=False)
    assert room() == 4 << 30
    pages["SC_PHYS_PAGES"] = 1 << 28  # a machine with a terabyte
    assert room() == 16 << 30
    monkeypatch.delattr("os.sysconf")
    assert room() == 4 << 30


def test_an_empty_condition_is_named(tmp_path: Path) -> None:
    write_acdc(tmp_path, ["fog"])
    with refused("no-images", "night/train"):
        load_benchmark("acdc", tmp_path).domains()


def test_the_stream_is_the_protocols(tmp_path: Path) -> None:
    write_acdc(tmp_path)
    bench = load_benchmark("acdc", tmp_path)
    assert (bench.task, bench.batch_size, bench.classes) == ("segmentation", 1, CITYSCAPES)
    assert bench.order == ("fog", "night", "rain", "snow")
    batches = list(bench.stream())
    assert [batch.name for batch in batches] == [name for name in bench.order for _ in range(3)]
    assert batches[0].images.shape == (1, 3, 540, 960)
    first = bench.files("fog").pairs[0]
    middle = pixels_of(first.image)[18, 32].int()
    assert ((batches[0].images[0, :, 277, 487] * 255).round().int() - middle).abs().max() <= 1
    assert torch.equal(batches[0].labels[0], pixels_of(first.mask))  # label maps keep their size
    assert bench.domain("fog").severity is None
    assert bench.describe()["images_per_domain"] == 3


def test_halving_averages_four_pixels(tmp_path: Path) -> None:
    write_acdc(tmp_path, ["fog"], 1)
    pair = load_benchmark("acdc", tmp_path).files("fog").pairs[0]  # type: ignore[attr-defined]
    levels = pixels_of(pair.image).permute(2, 0, 1)[None].float()
    assert (read_picture(pair, (18, 32)) - F.avg_pool2d(levels, 2)[0]).abs().max() <= 0.5


def test_the_papers_input_leaves_the_pictures_as_they_are(tmp_path: Path) -> None:
    write_acdc(tmp_path, ["fog"], 1)
    bench = load_benchmark("acdc", tmp_path, domains=["fog"])
    images = bench.stream()[0].images
    assert torch.equal(Preprocessing(**bench.paper).resize(images), images)


def test_options_choose_conditions_and_pictures(tmp_path: Path) -> None:
    write_acdc(tmp_path)
    assert [d.name for d in load_benchmark("acdc", tmp_path, domains=["snow", "fog"]).domains()] == ["snow", "fog"]
    assert len(load_benchmark("acdc", tmp_path, images=2).domain("rain")) == 2
    first = load_benchmark("acdc", tmp_path, subset="first:1")
    assert len(first.domain("rain")) == 2
    assert first.fingerprint() != load_benchmark("acdc", tmp_path).fingerprint()
    with refused("option-conflict", "acdc", 3):
        load_benchmark("acdc", tmp_path, severity=3)
    with refused("unknown-condition", "fogg", "fog"):
        load_benchmark("acdc", tmp_path, domains=["fogg"]).domains()


def test_cityscapes_beside_it_is_the_source(tmp_path: Path) -> None:
    write_acdc(tmp_path, ["fog"])
    bench = load_benchmark("acdc", tmp_path)
    with refused("no-such-data", "leftImg8bit/train/"):
        bench.train()
    write_cityscapes(tmp_path, "train", count=1)
    samples = bench.train()
    assert samples.images.shape == (2, 3, 512, 1024)
    assert samples.labels.shape == (2, 512, 1024)


def test_a_folder_without_acdc_is_refused(tmp_path: Path) -> None:
    with refused("no-such-data", "rgb_anon/fog/train/"):
        load_benchmark("acdc", tmp_path)
    write_acdc(tmp_path, ["fog"])
    (tmp_path / "gt").rename(tmp_path / "elsewhere")
    with refused("no-such-data", "gt/fog/"):
        load_benchmark("acdc", tmp_path).domain("fog")
