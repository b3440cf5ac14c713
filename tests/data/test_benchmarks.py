from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.errors import refused
from testdg.data.benchmarks import Benchmark, benchmarks, find_benchmark, load_benchmark, register
from testdg.data.benchmarks.base import CorruptedImages, PixelCache
from testdg.data.benchmarks.digits_c import load_digits
from testdg.data.corruptions import EXTRA, STANDARD_ORDER, corrupt_uint8


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


def test_the_description_has_everything_a_number_depends_on() -> None:
    about = load_benchmark("digits-c", images=12, severity=3, corruption_seed=7, domains=["snow", "fog"]).describe()
    assert about["domains"] == ["snow", "fog"]
    assert (about["severity"], about["images_per_domain"]) == (3, 12)
    assert about["data"] == "generated on the fly, seed 7, frost procedural"
    other = load_benchmark("digits-c", images=13).describe()
    assert about["data_fingerprint"] != other["data_fingerprint"]


@given(st.lists(st.integers(0, 11), min_size=1, max_size=8))
def test_images_do_not_depend_on_order_or_on_what_was_read_before(indices: list[int]) -> None:
    clean = load_digits()[1].first(12)
    used, fresh = CorruptedImages(clean, "shot_noise", 5), CorruptedImages(clean, "shot_noise", 5)
    assert torch.equal(used.take(indices), fresh.read(0, 12)[indices])
    assert torch.equal(used.read(3, 12), fresh.read(3, 12))


def test_a_cache_keeps_what_was_used_last_within_its_room() -> None:
    cache = PixelCache(limit=2 * 3072)
    images = CorruptedImages(load_digits()[1].first(4), "fog", 5, cache=cache)
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
    with refused("wrong-severity", 0):
        bench.domain("fog", 0)
    with refused("unknown-corruption", "fogg", "fog"):
        bench.domain("fogg", 1)


def test_the_extra_corruptions_make_a_stream_too() -> None:
    stream = load_benchmark("digits-c", images=5, domains=list(EXTRA)).stream(3)
    assert [batch.name for batch in stream] == [name for name in EXTRA for _ in range(2)]


@pytest.mark.parametrize(
    ("options", "code", "value"),
    [
        ({"images": 0}, "wrong-images", 0),
        ({"severity": 6}, "wrong-severity", 6),
        ({"domains": ["frogg"]}, "unknown-corruption", "frogg"),
        ({"domains": ["fog", "fog"]}, "wrong-domains", "fog, fog"),
        ({"domains": []}, "wrong-domains", "none"),
        ({"workers": 0}, "wrong-workers", 0),
        ({"subset": "first:3"}, "option-conflict", "subset"),
        ({"imagse": 3}, "unknown-benchmark-option", "images"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], code: str, value: object) -> None:
    with refused(code, value):
        load_benchmark("digits-c", **options).domains()


def test_unknown_benchmark_suggests_the_nearest() -> None:
    with refused("unknown-benchmark", "cifar10c", "cifar10-c"):
        find_benchmark("cifar10c")
    assert {"digits-c", "cifar10-c", "cifar100-c", "imagenet-c"} <= benchmarks().keys()


def test_a_name_cannot_be_taken_twice() -> None:
    class Other(Benchmark):
        name = "digits-c"

    benchmarks()
    with refused("name-exists", "digits-c"):
        register(Other)


def test_a_missing_data_folder_is_named(tmp_path: Path) -> None:
    with refused("no-data", "cifar10-c", "CIFAR-10-C"):
        load_benchmark("cifar10-c")
    with refused("no-such-folder", tmp_path / "nowhere"):
        load_benchmark("cifar10-c", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "options", "value"),
    [
        ("digits-c", {"data": True}, "frost/"),
        ("streets", {"data": True}, "--data"),
        ("digits-c", {"workers": 2}, "--workers"),
        ("cifar10-c", {"data": True, "corruption_seed": 3}, "--corruption-seed"),
    ],
)
def test_options_without_effect_are_refused(name: str, options: dict[str, Any], value: str, tmp_path: Path) -> None:
    if name == "cifar10-c":
        (tmp_path / "CIFAR-10-C").mkdir()
        for file in ("gaussian_noise", "labels"):
            np.save(tmp_path / "CIFAR-10-C" / f"{file}.npy", np.zeros((50000, 1, 1, 1), np.uint8))
    given = {**options, **({"data": tmp_path} if "data" in options else {})}
    with refused("option-conflict", name, value):
        load_benchmark(name, **given).domains()


def test_photographs_of_frost_are_an_effect(tmp_path: Path) -> None:
    (tmp_path / "frost").mkdir()
    assert load_benchmark("digits-c", tmp_path).data == tmp_path
