import signal
from pathlib import Path

import pytest
import torch

from support.errors import refused
from testdg.data.benchmarks import load_benchmark
from testdg.data.stream import to_float
from testdg.files import cache_folder
from testdg.models import TinyViT, load_model
from testdg.runs import source_model
from testdg.runs.training.embedded import EmbeddedClasses, train, trained_model

SHORT = EmbeddedClasses(width=16, depth=1, heads=2, epochs=1)


def test_the_source_model_of_digits_c_knows_clean_digits(shared_cache: Path) -> None:
    bench = load_benchmark("digits-c")
    model = source_model(bench)
    assert model.name == "digits-c-tiny-vit-e7fb0363"  # the recipe, which published numbers depend on
    test = bench.test()
    with torch.no_grad():
        right = model(to_float(test.images)).logits.argmax(1) == test.labels
    assert right.float().mean() >= 0.96
    assert [folder.name for folder in shared_cache.iterdir() if folder.name == model.name] == [model.name]


def test_a_cached_model_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTDG_CACHE", str(tmp_path))
    bench, steps = load_benchmark("digits-c"), []
    first = trained_model(bench, SHORT, lambda step, total: steps.append((step, total)))
    assert steps == [(step + 1, 10) for step in range(10)]
    again = trained_model(bench, SHORT, lambda step, total: steps.append((step, total)))
    assert len(steps) == 10
    assert again.fingerprint() == first.fingerprint()
    assert len(list(tmp_path.iterdir())) == 1


def test_training_depends_on_its_seed_alone() -> None:
    bench = load_benchmark("digits-c")
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        models.append(train(bench, SHORT, lambda step, total: None, "x").fingerprint())
        assert torch.equal(torch.get_rng_state(), before)
    assert models[0] == models[1]


def test_augmentation_changes_images_a_little() -> None:
    samples = load_benchmark("digits-c").train().first(8)
    images = to_float(samples.images)
    changed, labels = EmbeddedClasses().view(images, samples.labels, torch.Generator().manual_seed(0))
    assert torch.equal(labels, samples.labels)
    assert changed.shape == images.shape
    assert 0 <= changed.min() <= changed.max() <= 1
    still, _ = EmbeddedClasses(degrees=0, zoom=0, shift=0).view(images, labels, torch.Generator().manual_seed(0))
    assert torch.allclose(still, images, atol=1e-5)
    assert (changed - images).abs().mean() > 0.01


def test_a_damaged_cached_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTDG_CACHE", str(tmp_path))
    bench = load_benchmark("digits-c")
    name = trained_model(bench, SHORT, lambda step, total: None).name
    (tmp_path / name / "model.safetensors").write_bytes(b"short")
    with refused("damaged-model", "model.safetensors", f"delete {tmp_path / name}"):
        trained_model(bench, SHORT, lambda step, total: None)


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TESTDG_CACHE", str(tmp_path / "file"))
    assert cache_folder() == tmp_path / "file"
    steps: list[int] = []
    with refused("cannot-write", tmp_path / "file", "TESTDG_CACHE"):
        trained_model(load_benchmark("digits-c"), SHORT, lambda step, total: steps.append(step))
    assert steps == []  # found out before the work, not after


def test_a_full_cache_is_refused_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource", exc_type=ImportError)
    monkeypatch.setenv("TESTDG_CACHE", str(tmp_path))
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with refused("cannot-write", tmp_path, "TESTDG_CACHE"):
            trained_model(load_benchmark("digits-c"), SHORT, lambda step, total: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    load_model(TinyViT(classes=7, width=16, depth=1, heads=2)).save(tmp_path / "seven")
    with refused("wrong-classes", "seven", 7, "digits-c", 10):
        source_model(load_benchmark("digits-c"), tmp_path / "seven")
