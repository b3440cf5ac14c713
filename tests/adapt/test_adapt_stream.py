"""`adapt_stream`: the same predictions as by hand, from pictures of every kind."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import testdg
from support.errors import refused
from testdg.data.frames import PictureFolder
from testdg.models import Preprocessing, VisionModel, load_model
from testdg.models.segformer import random_segformer
from testdg.runs import class_names, read_picture
from testdg.runs.source import SourceFolder

pytestmark = pytest.mark.filterwarnings("ignore:no --source")


def pictures(frames: Path) -> list[Path]:
    return [frame.picture for frame in PictureFolder(frames) if frame is not None]


@torch.no_grad()
def by_hand(model: VisionModel, paths: list[Path]) -> list[tuple[int, float]]:
    logits = torch.cat([model(model.prepare(read_picture(path)[None])).logits for path in paths])
    confidences, classes = logits.softmax(1).max(1)
    return list(zip(classes.tolist(), confidences.tolist(), strict=True))


def test_the_source_predicts_as_a_plain_loop(network: Path, frames: Path) -> None:
    paths = pictures(frames)
    expected = by_hand(load_model(network), paths)
    assert len({label for label, _ in expected}) > 2
    found = list(testdg.adapt_stream(network, frames, "source", batch_size=7))
    assert [one.index for one in found] == list(range(60))
    assert [frames / one.file for one in found] == paths
    for one, (label, confidence) in zip(found, expected, strict=True):
        assert (one.class_index, one.source_class_index, one.differs, one.learnt) == (label, label, 0, False)
        assert one.confidence == pytest.approx(confidence, abs=1e-5)


def test_an_adapted_stream_predicts_as_its_adapter(network: Path, frames: Path) -> None:
    model = load_model(network)
    images = torch.stack([model.prepare(read_picture(path)[None])[0] for path in pictures(frames)])
    adapter = testdg.guard(testdg.adapt(model, "tent", learning_rate=1e-3))
    logits = torch.cat([adapter(batch) for batch in images.split(10)])
    stream = testdg.adapt_stream(network, frames, "tent", batch_size=10, learning_rate=1e-3)
    found = list(stream)
    assert [one.class_index for one in found] == logits.argmax(1).tolist()
    assert [one.source_class_index for one in found] == [label for label, _ in by_hand(model, pictures(frames))]
    assert stream.adapter.counts == adapter.counts
    assert any(one.learnt for one in found)
    differing = [one.class_index != one.source_class_index for one in found]
    assert [one.differs for one in found] == differing


def test_pictures_in_memory_give_the_same(network: Path, frames: Path) -> None:
    paths = pictures(frames)[:12]
    expected = [one.class_index for one in testdg.adapt_stream(network, paths, "source", batch_size=5)]
    arrays = [np.array(Image.open(path).convert("RGB")) for path in paths]
    images = [Image.open(path) for path in paths]
    tensors = [read_picture(path) for path in paths]
    for given in (arrays, images, tensors, (path.read_bytes() for path in paths)):
        stream = testdg.adapt_stream(network, given, "source", batch_size=5)
        assert [one.class_index for one in stream] == expected
    whole = torch.rand(6, 3, 24, 24)
    assert len(list(testdg.adapt_stream(network, whole, "source"))) == 6
    assert len(list(testdg.adapt_stream(network, [whole[:4], whole[4:]], "source"))) == 6


def test_an_iterator_is_not_read_ahead_and_may_reuse_its_memory(network: Path) -> None:
    taken, buffer = [], np.zeros((24, 24, 3), np.uint8)
    generator = np.random.default_rng(0)
    pixels = [generator.integers(0, 256, buffer.shape, dtype=np.uint8) for _ in range(9)]

    def camera() -> Iterator[np.ndarray]:
        for number, picture in enumerate(pixels):
            taken.append(number)
            buffer[:] = picture
            yield buffer

    stream = testdg.adapt_stream(network, camera(), "source", batch_size=3)
    assert taken == []
    first = next(stream)
    assert taken == [0, 1, 2]
    found = [first, *stream]
    expected = testdg.adapt_stream(network, pixels, "source", batch_size=3)
    assert [one.confidence for one in found] == [one.confidence for one in expected]


def test_pictures_that_cannot_be_read_are_named_or_refused(network: Path, frames: Path, tmp_path: Path) -> None:
    paths = pictures(frames)[:5]
    (tmp_path / "bad.png").write_bytes(b"bad")
    given = [*paths[:2], tmp_path / "bad.png", np.zeros((4, 4, 7), np.uint8), *paths[2:]]
    stream = testdg.adapt_stream(network, given, "source", batch_size=4)
    assert [one.index for one in stream] == [0, 1, 4, 5, 6]
    assert [(one.index, one.file) for one in stream.skipped] == [(2, str(tmp_path / "bad.png")), (3, "000003")]
    with refused("unreadable-picture", "bad.png"):
        list(testdg.adapt_stream(network, given, "source", strict=True))


def test_a_model_of_any_size_gets_pictures_of_one_size_together(frames: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    model = load_model(module, preprocessing=Preprocessing())
    found = list(testdg.adapt_stream(model, frames, "source", batch_size=16))
    assert [one.index for one in found] == list(range(60))
    expected = by_hand(model, pictures(frames))
    assert [one.class_index for one in found] == [label for label, _ in expected]


def test_source_pictures_are_for_the_alignment_and_the_probe(network: Path, frames: Path, tmp_path: Path) -> None:
    source = tmp_path / "clean"
    source.mkdir()
    for number in range(70):
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (30, 30, 3), dtype=np.uint8)).save(
            source / f"{number}.png"
        )
    (source / "broken.png").write_bytes(b"broken")
    stream = testdg.adapt_stream(network, frames, source=source)
    assert stream.adapter.name == "testdg_aligned"
    assert stream.adapter.settings.sketch == "source"
    assert stream.adapter.probe.origin == "source"
    assert len(list(stream)) == 60
    with refused("option-conflict", "--source", "tent"):
        testdg.adapt_stream(network, frames, "tent", source=source, guard=False)
    assert testdg.adapt_stream(network, frames, "tent", source=source).adapter.probe.origin == "source"


def test_labels_of_source_pictures_are_their_folders(network: Path, frames: Path, tmp_path: Path) -> None:
    picture = Image.new("RGB", (24, 24))
    for number in range(10):
        (tmp_path / f"class{number}").mkdir()
        picture.save(tmp_path / f"class{number}" / "a.png")
    classes = [f"class{number}" for number in range(10)][::-1]
    options: dict[str, Any] = {"source": tmp_path, "classes": classes, "source_images": 20}
    stream = testdg.adapt_stream(network, frames, "ecotta", **options)
    source = stream.session.source
    assert isinstance(source, SourceFolder)
    found = torch.cat([one[1] for one in source.batches(stream.session.adapter)])
    assert sorted(found.tolist()) == sorted(2 * list(range(10)))  # trained on: repeated where there are too few
    assert source._labels()["class0/a.png"] == 9
    assert len(list(stream)) == 60
    picture.save(tmp_path / "loose.png")
    with refused("no-source-labels", "loose.png"):
        testdg.adapt_stream(network, frames, "ecotta", **options)
    with refused("no-source", "ecotta"):
        testdg.adapt_stream(network, frames, "ecotta")


def test_without_source_pictures_the_beginning_of_the_stream_is_used(network: Path, frames: Path) -> None:
    with pytest.warns(UserWarning, match="the first 64 pictures stand for the clean ones"):
        stream = testdg.adapt_stream(network, frames, source_images=64)
    assert stream.adapter.settings.sketch == "stream"


def test_a_segmentation_has_a_class_for_every_pixel(tmp_path: Path) -> None:
    model = random_segformer("tiny", ("sky", "road", "car"))
    for number, size in enumerate([(96, 64), (80, 80), (8, 8), (96, 64)]):
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)).save(
            tmp_path / f"{number}.png"
        )
    stream = testdg.adapt_stream(model, tmp_path, "tent", batch_size=2)
    found = list(stream)
    assert [one.map.shape for one in found if one.map is not None] == [(64, 96), (80, 80), (64, 96)]
    assert [one.file for one in stream.skipped] == ["2.png"]
    assert "at least" in stream.skipped[0].reason
    for one in found:
        assert one.class_name in ("sky", "road", "car")
        assert one.map is not None
        assert np.bincount(one.map.ravel(), minlength=3).argmax() == one.class_index


def test_classes_have_names(network: Path, tmp_path: Path) -> None:
    model = load_model(network)
    assert class_names(model) == [str(number) for number in range(10)]
    assert class_names(random_segformer("tiny", ("sky", "traffic light"))) == ["sky", "traffic light"]
    (tmp_path / "names.txt").write_text("\n".join(f"a class {number}" for number in range(10)) + "\n\n")
    assert class_names(model, tmp_path / "names.txt")[3] == "a class 3"
    model.name_classes([f"name {number}" for number in range(10)])
    assert class_names(model)[3] == "name 3"
    with refused("wrong-classes", 2, "tiny-cnn", 10):
        class_names(model, ["a", "b"])


def test_a_stream_continues_from_a_saved_state(network: Path, frames: Path, tmp_path: Path) -> None:
    whole = list(testdg.adapt_stream(network, frames, "tent", batch_size=10))
    paths = pictures(frames)
    first = testdg.adapt_stream(network, paths[:30], "tent", batch_size=10)
    begin = list(first)
    first.adapter.save(tmp_path / "state")
    rest = list(testdg.adapt_stream(network, paths[30:], load_state=tmp_path / "state", batch_size=10))
    assert [one.confidence for one in [*begin, *rest]] == [one.confidence for one in whole]
    with refused("option-conflict", "tent", "align"):
        testdg.adapt_stream(network, paths, "align", load_state=tmp_path / "state")
    with refused("no-state", tmp_path):
        testdg.adapt_stream(network, paths, load_state=tmp_path)
