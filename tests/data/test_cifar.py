import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from support.errors import refused
from testdg.data.benchmarks import load_benchmark
from testdg.data.cifar import CIFAR100, read_batch, read_train
from testdg.data.corruptions import STANDARD_ORDER, FrostTextures, corrupt_uint8

IMAGES = 6


Rows = np.ndarray[Any, np.dtype[np.uint8]]


def pixels(seed: int, count: int = IMAGES) -> Rows:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def write_batch(folder: Path, name: str, seed: int, first: int | None = None) -> Rows:
    """A batch as both sets have it; the first label is that of the fine or the only classes."""
    folder.mkdir(parents=True, exist_ok=True)
    labels, data = [seed if first is None else first, *range(1, IMAGES)], pixels(seed)
    kinds = {b"labels": labels} if first is None else {b"fine_labels": labels, b"coarse_labels": [19] * IMAGES}
    (folder / name).write_bytes(pickle.dumps({b"batch_label": name.encode(), b"data": data, **kinds}, 2))
    return data


def write_arrays(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    folder.mkdir(parents=True)
    arrays = {name: pixels(n, 5 * IMAGES).reshape(-1, 32, 32, 3) for n, name in enumerate(STANDARD_ORDER)}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "labels.npy", np.tile(np.arange(IMAGES, dtype=np.uint8), 5))
    return arrays


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return exec, (f"open({str(self.marker)!r}, 'w').close()",)


def test_a_malicious_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Malicious(marker), b"labels": []}))
    with refused("unsafe-file", "test_batch", "builtins.exec"):
        read_batch(tmp_path / "test_batch")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "damaged-file"),
        (b"no pickle", "damaged-file"),
        (pickle.dumps([1]), "damaged-file"),
        (pickle.dumps({b"labels": [1]}), "wrong-array"),
        (pickle.dumps({b"data": np.zeros((2, 9), np.uint8)}), "wrong-array"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}), "wrong-labels"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": [10]}), "wrong-labels"),
    ],
)
def test_a_damaged_batch_is_named(tmp_path: Path, content: bytes, code: str) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with refused(code, tmp_path / "test_batch"):
        read_batch(tmp_path / "test_batch")


def test_missing_training_batches_warn_and_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    for number in (1, 3):
        write_batch(folder, f"data_batch_{number}", number)
    with pytest.warns(UserWarning, match="data_batch_2, data_batch_4, data_batch_5 missing; 12 training images"):
        train = read_train(tmp_path)
    assert train.labels[::IMAGES].tolist() == [1, 3]
    with refused("missing-file", "data_batch_1"):
        read_train(tmp_path / "cifar-10-batches-py" / "nowhere")


def test_the_hundred_classes_are_in_alphabetical_order() -> None:
    assert len(CIFAR100.classes) == 100
    assert list(CIFAR100.classes) == sorted(set(CIFAR100.classes))


def test_cifar_100_is_read_with_its_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    data, train = write_batch(folder, "test", 1, first=99), write_batch(folder, "train", 2, first=99)
    bench = load_benchmark("cifar100-c", tmp_path, domains=["fog"])
    assert (bench.batch_size, len(bench.classes)) == (50, 100)
    assert np.array_equal(bench.train().images.numpy(), train.reshape(-1, 3, 32, 32))
    assert bench.test().labels.tolist() == [99, 1, 2, 3, 4, 5]
    clean = torch.from_numpy(data).view(-1, 3, 32, 32)
    expected = corrupt_uint8(clean, "fog", 5, indices=range(IMAGES), parameters="cifar")
    assert torch.equal(bench.domain("fog").source.read(0, IMAGES), expected)


@pytest.mark.parametrize("shape", [(IMAGES,), (IMAGES, 1)])
def test_the_npz_form_holds_rows_of_pixels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = pixels(4).reshape(-1, 32, 32, 3)
    labels = np.arange(IMAGES).reshape(shape)
    np.savez(tmp_path / "cifar10.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    bench = load_benchmark("cifar10-c", tmp_path)
    assert np.array_equal(bench.test().images.numpy(), images.transpose(0, 3, 1, 2))
    assert bench.train().labels.tolist() == list(range(IMAGES))
    assert len(bench.domains()) == 15


@pytest.mark.parametrize(
    ("parts", "code", "value"),
    [
        ({"x_train": np.zeros((1, 32, 32, 3), np.uint8)}, "wrong-array", "x_test"),
        ({"x_test": np.zeros((1, 3, 32, 32), np.uint8), "y_test": [1]}, "wrong-array", "(1, 3, 32, 32)"),
        ({"x_test": np.zeros((1, 32, 32, 3)), "y_test": [1]}, "wrong-array", "float64"),
        ({"x_test": np.zeros((2, 32, 32, 3), np.uint8), "y_test": [1]}, "wrong-labels", 2),
        ({"x_test": np.zeros((1, 32, 32, 3), np.uint8), "y_test": [10]}, "wrong-labels", 10),
    ],
)
def test_a_wrong_npz_is_named(tmp_path: Path, parts: dict[str, Any], code: str, value: object) -> None:
    np.savez(tmp_path / "cifar10.npz", **parts)
    with refused(code, "cifar10.npz", value):
        load_benchmark("cifar10-c", tmp_path).test()


def test_a_damaged_npz_is_named(tmp_path: Path) -> None:
    (tmp_path / "cifar100.npz").write_bytes(b"PK no zip")
    with refused("damaged-file", "cifar100.npz"):
        load_benchmark("cifar100-c", tmp_path).test()


def test_clean_batches_are_corrupted_on_the_fly(tmp_path: Path) -> None:
    data = torch.from_numpy(write_batch(tmp_path / "cifar-10-batches-py", "test_batch", 0)).view(-1, 3, 32, 32)
    bench = load_benchmark("cifar10-c", tmp_path, severity=3, images=4)
    assert bench.describe()["data"] == "generated on the fly, seed 0, frost procedural"
    expected = corrupt_uint8(data[:4], "gaussian_noise", 3, indices=range(4), parameters="cifar")
    assert torch.equal(bench.domains()[0].source.read(0, 4), expected)
    assert len(bench.domains()) == 15


def test_frost_photographs_of_the_data_folder_are_used(tmp_path: Path) -> None:
    data = torch.from_numpy(write_batch(tmp_path / "cifar-10-batches-py", "test_batch", 0)).view(-1, 3, 32, 32)
    (tmp_path / "frost").mkdir()
    photograph = np.random.default_rng(1).integers(0, 256, (300, 300, 3), dtype=np.uint8)
    Image.fromarray(photograph).save(tmp_path / "frost" / "frost1.png")
    bench = load_benchmark("cifar10-c", tmp_path, domains=["frost"])
    assert "frost photographs" in bench.describe()["data"]
    frost = FrostTextures.from_folder(tmp_path / "frost")
    expected = corrupt_uint8(data, "frost", 5, indices=range(IMAGES), parameters="cifar", frost=frost)
    assert torch.equal(bench.domains()[0].source.read(0, IMAGES), expected)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("severity", [1, 5])
def test_published_arrays_win_and_severities_are_stacked(tmp_path: Path, severity: int, inside: bool) -> None:
    arrays = write_arrays(tmp_path / "CIFAR-10-C")
    write_batch(tmp_path / "cifar-10-batches-py", "test_batch", 0)
    bench = load_benchmark("cifar10-c", tmp_path / "CIFAR-10-C" if inside else tmp_path, severity=severity)
    assert bench.describe()["data"] == "published arrays of CIFAR-10-C"
    batch = bench.stream(4)[1]
    rows = arrays["gaussian_noise"][(severity - 1) * IMAGES : severity * IMAGES][4:6]
    assert np.array_equal((batch.images * 255).round().byte().numpy(), rows.transpose(0, 3, 1, 2))
    assert batch.labels.tolist() == [4, 5]


@pytest.mark.parametrize("name", ["labels.npy", "fog.npy"])
def test_a_missing_array_is_named(tmp_path: Path, name: str) -> None:
    write_arrays(tmp_path / "CIFAR-10-C")
    (tmp_path / "CIFAR-10-C" / name).unlink()
    with refused("missing-file", name):
        load_benchmark("cifar10-c", tmp_path).domains()


def test_a_damaged_array_is_named(tmp_path: Path) -> None:
    write_arrays(tmp_path / "CIFAR-10-C")
    path = tmp_path / "CIFAR-10-C" / "fog.npy"
    path.write_bytes(path.read_bytes()[:-100])
    with refused("damaged-file", "fog.npy"):
        load_benchmark("cifar10-c", tmp_path).domains()


@pytest.mark.parametrize(
    ("name", "array", "code", "value"),
    [
        ("fog.npy", np.zeros((7, 32, 32, 3), np.uint8), "wrong-array", "(7, 32, 32, 3)"),
        ("fog.npy", np.zeros((5 * IMAGES, 32, 32, 3), np.float32), "wrong-array", "float32"),
        ("fog.npy", np.zeros((0, 32, 32, 3), np.uint8), "no-images", "fog.npy"),
        ("fog.npy", np.zeros((20, 32, 32, 3), np.uint8), "wrong-labels", 20),
        ("labels.npy", np.zeros(7, np.uint8), "wrong-labels", 7),
        ("labels.npy", np.zeros(30, np.float32), "wrong-array", "(30,)"),
        ("labels.npy", np.full(30, 10, np.uint8), "wrong-labels", 10),
        ("labels.npy", np.arange(30, dtype=np.uint8), "wrong-labels", "five"),
    ],
)
def test_arrays_and_labels_must_fit(
    tmp_path: Path, name: str, array: np.ndarray[Any, Any], code: str, value: object
) -> None:
    write_arrays(tmp_path / "CIFAR-10-C")
    np.save(tmp_path / "CIFAR-10-C" / name, array)
    with refused(code, name, value):
        load_benchmark("cifar10-c", tmp_path).domains()


def test_labels_may_be_those_of_one_severity_and_images_any(tmp_path: Path) -> None:
    arrays = write_arrays(tmp_path / "CIFAR-10-C")
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", np.arange(IMAGES))
    bench = load_benchmark("cifar10-c", tmp_path, images=5)
    assert bench.describe()["images_per_domain"] == 5
    domain = bench.domain("snow", 3)
    assert domain.labels.tolist() == list(range(5))
    rows = arrays["snow"][2 * IMAGES : 3 * IMAGES][[4, 0, 4]]
    assert np.array_equal(domain.source.take([4, 0, 4]).numpy(), rows.transpose(0, 3, 1, 2))


def test_a_set_that_we_made_is_described(tmp_path: Path) -> None:
    write_arrays(tmp_path / "CIFAR-100-C")
    manifest = tmp_path / "CIFAR-100-C" / "testdg-corrupt.json"
    manifest.write_text(json.dumps({"generator": "testdg", "version": "9.1", "seed": 3, "frost": "procedural"}))
    bench = load_benchmark("cifar100-c", tmp_path)
    assert bench.describe()["data"] == "generated by testdg 9.1, seed 3, frost procedural"
    manifest.write_text("{}")
    with refused("damaged-file", "testdg-corrupt.json"):
        bench.origin()


def test_the_arrays_of_another_set_are_not_taken(tmp_path: Path) -> None:
    write_arrays(tmp_path / "CIFAR-10-C")
    with refused("no-such-data", "CIFAR-100"):
        load_benchmark("cifar100-c", tmp_path / "CIFAR-10-C").domains()


def test_a_folder_without_cifar_is_refused(tmp_path: Path) -> None:
    with refused("no-such-data", "CIFAR-10-C/gaussian_noise.npy", "test_batch"):
        load_benchmark("cifar10-c", tmp_path).domains()
