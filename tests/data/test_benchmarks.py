from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from testdg.data.benchmarks import Benchmark, benchmarks, find_benchmark, load_benchmark, register
from testdg.data.benchmarks.base import CorruptedImages, PixelCache
from testdg.data.benchmarks.digits_c import load_digits
from testdg.data.corruptions import EXTRA, STANDARD_ORDER, corrupt_uint8
from testdg.errors import UserError


def test_digits_are_split_as_documented() -> None:
    train, test = load_digits()
    assert (len(train), len(test)) == (1000, 797)
    assert test.images.shape == (797, 3, 32, 32)
    assert sorted(set(test.labels.tolist())) == list(range(10))
    assert test.images.dtype == torch.uint8
    assert torch.equal(test.images[:, 0], test.images[:, 2])


def test_digits_c_is_the_test_set_under_each_corruption() -> None:
    bench = load_benchmark("digits-c", images=12)
    domains = bench.domains()
    assert tuple(d.name for d in domains) == tuple(STANDARD_ORDER)
    clean = load_digits()[1]
    noise = domains[0].source.read(0, 12)
    expected = corrupt_uint8(clean.images[:12], "gaussian_noise", 5, indices=range(12), parameters="cifar")
    assert torch.equal(noise, expected)
    assert all(torch.equal(d.labels, clean.labels[:12]) for d in domains)


def test_the_description_tells_what_a_number_depends_on() -> None:
    about = load_benchmark("digits-c", images=12, severity=3, corruption_seed=7, domains=["snow", "fog"]).describe()
    assert about["domains"] == ["snow", "fog"]
    assert (about["severity"], about["images_per_domain"]) == (3, 12)
    assert about["data"] == "generated on the fly, seed 7, frost procedural"
    other = load_benchmark("digits-c", images=13).describe()
    assert about["data_fingerprint"] != other["data_fingerprint"]


def test_a_slice_does_not_depend_on_what_was_read_before() -> None:
    clean = load_digits()[1].images.repeat(2, 1, 1, 1)[:1020]
    fresh, used = (CorruptedImages(clean, "shot_noise", 5) for _ in range(2))
    used.read(0, 10)
    assert torch.equal(fresh.read(990, 1010), used.read(990, 1010))
    assert torch.equal(fresh.read(1000, 1010), used.read(990, 1010)[10:])


@given(st.lists(st.integers(0, 11), min_size=1, max_size=8))
def test_images_may_be_taken_in_any_order(indices: list[int]) -> None:
    images = CorruptedImages(load_digits()[1].images[:12], "shot_noise", 5)
    assert torch.equal(images.take(indices), images.read(0, 12)[indices])


def test_a_cache_keeps_what_was_used_last_within_its_room() -> None:
    cache = PixelCache(limit=2 * 3072)
    images = CorruptedImages(load_digits()[1].images[:4], "fog", 5, cache=cache)
    first = images.read(0, 4)
    assert cache.size == 2 * 3072
    assert [cache.get(("fog", 5, index)) is not None for index in range(4)] == [False, False, True, True]
    assert torch.equal(images.read(0, 4), first)


def test_a_domain_at_any_severity_is_made_once() -> None:
    bench = load_benchmark("digits-c", images=5, severity=2)
    assert bench.domain("fog") is bench.domain("fog", 2) is bench.domain("fog", 2)
    assert (bench.domain("fog", 4).severity, len(bench.domain("fog", 4))) == (4, 5)
    clean = load_digits()[1].images[:5]
    expected = corrupt_uint8(clean, "fog", 4, indices=range(5), parameters="cifar")
    assert torch.equal(bench.domain("fog", 4).source.read(0, 5), expected)
    with pytest.raises(UserError, match="severity must be 1 to 5; got 0"):
        bench.domain("fog", 0)
    with pytest.raises(UserError, match="unknown corruption 'fogg'; did you mean 'fog'"):
        bench.domain("fogg", 1)


def test_the_extra_corruptions_make_a_stream_too() -> None:
    stream = load_benchmark("digits-c", images=5, domains=list(EXTRA)).stream(3)
    assert [batch.name for batch in stream] == [name for name in EXTRA for _ in range(2)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"images": 0}, "images per domain must be at least 1; got 0"),
        ({"severity": 6}, "severity must be 1 to 5; got 6"),
        ({"domains": ["frogg"]}, "unknown corruption 'frogg'; did you mean 'frost'|'fog'"),
        ({"domains": ["fog", "fog"]}, "named once each"),
        ({"domains": []}, "got none"),
        ({"workers": 0}, "workers must be at least 1; got 0"),
        ({"subset": "first:3"}, "digits-c is not made of image files: leave out subset"),
        ({"imagse": 3}, "unknown benchmark option 'imagse'; did you mean 'images'"),
    ],
)
def test_bad_options_are_one_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        load_benchmark("digits-c", **options).domains()


def test_unknown_benchmark_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match="unknown benchmark 'cifar10c'; did you mean 'cifar10-c'"):
        find_benchmark("cifar10c")
    assert {"digits-c", "cifar10-c", "cifar100-c", "imagenet-c"} <= benchmarks().keys()


def test_a_name_cannot_be_taken_twice() -> None:
    class Other(Benchmark):
        name = "digits-c"

    benchmarks()
    with pytest.raises(UserError, match="exists already"):
        register(Other)


def test_a_missing_data_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cifar10-c needs a data folder with CIFAR-10-C"):
        load_benchmark("cifar10-c")
    with pytest.raises(UserError, match=r"nowhere does not exist"):
        load_benchmark("cifar10-c", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        (
            "digits-c",
            {"data": True},
            r"digits-c brings its own images: leave out --data \(of a data folder, frost/ alone",
        ),
        ("streets", {"data": True}, "streets brings its own images: leave out --data$"),
        ("digits-c", {"workers": 2}, "digits-c is not made of image files: leave out --workers"),
        ("cifar10-c", {"data": True, "corruption_seed": 3}, "are there and not made: leave out --corruption-seed"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    name: str, options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    if name == "cifar10-c":
        (tmp_path / "CIFAR-10-C").mkdir()
        for file in ("gaussian_noise", "labels"):
            np.save(tmp_path / "CIFAR-10-C" / f"{file}.npy", np.zeros((50000, 1, 1, 1), np.uint8))
    given = {**options, **({"data": tmp_path} if "data" in options else {})}
    with pytest.raises(UserError, match=sentence):
        load_benchmark(name, **given).domains()


def test_photographs_of_frost_are_an_effect(tmp_path: Path) -> None:
    (tmp_path / "frost").mkdir()
    assert load_benchmark("digits-c", tmp_path).data == tmp_path
