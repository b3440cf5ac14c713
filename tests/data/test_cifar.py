import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from testdg.data.benchmarks import load_benchmark
from testdg.data.cifar import read_batch, read_train
from testdg.data.corruptions import STANDARD_ORDER, FrostTextures, corrupt_uint8
from testdg.errors import UserError

IMAGES = 6


def pixels(seed: int, count: int = IMAGES) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def write_batch(folder: Path, name: str, seed: int, protocol: int = 2) -> np.ndarray[Any, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    data = pixels(seed)
    content = {b"batch_label": name.encode(), b"labels": [seed, *range(1, IMAGES)], b"data": data}
    (folder / name).write_bytes(pickle.dumps(content, protocol))
    return data


def write_arrays(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    folder.mkdir(parents=True)
    arrays = {name: pixels(n, 5 * IMAGES).reshape(-1, 32, 32, 3) for n, name in enumerate(STANDARD_ORDER)}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "labels.npy", np.tile(np.arange(IMAGES, dtype=np.uint8), 5))
    return arrays


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickled_batch_is_read(tmp_path: Path, protocol: int) -> None:
    data = write_batch(tmp_path, "test_batch", 3, protocol)
    samples = read_batch(tmp_path / "test_batch")
    assert np.array_equal(samples.images.numpy(), data.reshape(-1, 3, 32, 32))
    assert samples.labels.tolist() == [3, 1, 2, 3, 4, 5]


class Malicious:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return exec, (f"open({str(self.marker)!r}, 'w').close()",)


def test_a_malicious_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Malicious(marker), b"labels": []}))
    with pytest.raises(UserError, match=r"test_batch asks for builtins\.exec.*refused"):
        read_batch(tmp_path / "test_batch")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "damaged"),
        (b"no pickle", "damaged"),
        (pickle.dumps([1]), "holds a list: expected a dictionary"),
        (pickle.dumps({b"labels": [1]}), r"data must be uint8 of shape \(N, 3072\); got NoneType"),
        (pickle.dumps({b"data": np.zeros((2, 9), np.uint8)}), r"got uint8 \(2, 9\)"),
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}), "labels must be a list of 2 numbers"),
    ],
)
def test_a_damaged_batch_is_named(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(UserError, match=f"test_batch.*{sentence}"):
        read_batch(tmp_path / "test_batch")


def test_missing_training_batches_warn_and_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    for number in (1, 3):
        write_batch(folder, f"data_batch_{number}", number)
    with pytest.warns(UserWarning, match="data_batch_2, data_batch_4, data_batch_5 missing; 12 training images"):
        train = read_train(tmp_path)
    assert train.labels[::IMAGES].tolist() == [1, 3]
    with pytest.raises(UserError, match=r"data_batch_1 is missing"):
        read_train(tmp_path / "cifar-10-batches-py" / "nowhere")


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


def test_images_limits_published_arrays(tmp_path: Path) -> None:
    write_arrays(tmp_path / "CIFAR-10-C")
    bench = load_benchmark("cifar10-c", tmp_path, images=2)
    assert bench.describe()["images_per_domain"] == 2
    assert len(bench.stream(2)) == 15


@pytest.mark.parametrize("name", ["labels.npy", "fog.npy"])
def test_a_missing_array_is_named(tmp_path: Path, name: str) -> None:
    write_arrays(tmp_path / "CIFAR-10-C")
    (tmp_path / "CIFAR-10-C" / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing: expected"):
        load_benchmark("cifar10-c", tmp_path).domains()


def test_a_damaged_or_wrong_array_is_named(tmp_path: Path) -> None:
    write_arrays(tmp_path / "CIFAR-10-C")
    path = tmp_path / "CIFAR-10-C" / "fog.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=r"fog\.npy is damaged"):
        load_benchmark("cifar10-c", tmp_path).domains()
    np.save(path, np.zeros((7, 32, 32, 3), np.uint8))
    with pytest.raises(UserError, match=r"fog\.npy holds uint8 \(7, 32, 32, 3\): expected"):
        load_benchmark("cifar10-c", tmp_path).domains()


def test_a_folder_without_cifar_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no CIFAR-10: expected CIFAR-10-C/gaussian_noise\.npy .*test_batch"):
        load_benchmark("cifar10-c", tmp_path).domains()
