from pathlib import Path

import torch
import torch.nn.functional as F

from support.errors import refused
from support.image_sets import pixels_of, write_acdc, write_cityscapes
from testdg.data.benchmarks import load_benchmark
from testdg.data.segmentation.classes import CITYSCAPES
from testdg.data.segmentation.files import read_picture
from testdg.models import Preprocessing


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
