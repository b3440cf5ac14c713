"""Whom L_inv asks the current domain to be like."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from testdg_cases import change, make
from torch import Tensor

from testdg.methods.testdg import TestDG, method
from testdg.methods.testdg.memory import Prototypes, Queue
from testdg.models import VisionModel
from testdg.testing import same_state, stream

CPU = torch.device("cpu")
DOMAINS = st.lists(st.tuples(st.integers(1, 4), st.floats(0, 1)), max_size=6)


@given(domains=DOMAINS, than=st.floats(0, 1), kept=st.integers(1, 4))
def test_the_surest_domain_that_is_kept_and_surer_than_now(
    domains: list[tuple[int, float]], than: float, kept: int
) -> None:
    prototypes = Prototypes(1, 4, kept, CPU)
    for size, confidence in domains:
        prototypes.add(torch.full((size, 1), confidence, dtype=torch.float64), torch.arange(size), confidence)
    kept_domains = domains[-kept:]
    highest = max((confidence for _, confidence in kept_domains), default=0.0)
    assert prototypes.aim(than) == (highest > than)
    if highest > than:
        size = next(size for size, confidence in kept_domains if confidence == highest)
        assert prototypes.surest.shape == (4, 1)
        assert len(prototypes.rows.unique()) == size  # all of that domain, repeated
        assert prototypes.surest.flatten().tolist() == pytest.approx([highest] * 4)


def test_the_confidence_in_a_domain_is_a_mean_over_its_embeddings_and_survives_a_restart() -> None:
    queue, again = Queue(4, 1, CPU), Queue(4, 1, CPU)
    assert queue.confidence == 0
    queue.count(6, 0.5)  # more than it holds
    queue.count(2, 0.9)
    assert queue.confidence == pytest.approx(0.6)
    again.load_state_dict(queue.state_dict())
    assert again.confidence == queue.confidence
    queue.clear()
    assert queue.confidence == 0


def test_states_from_before_confidence_was_kept_can_be_read() -> None:
    queue, prototypes = Queue(4, 1, CPU), Prototypes(1, 2, 2, CPU)
    queue.set_extra_state({"seen": 3})
    prototypes.set_extra_state({"counts": [2, 1]})
    assert queue.confidence == 0
    assert not prototypes.aim(than=queue.confidence)
    prototypes.add(torch.ones(2, 1), torch.arange(2), 0.5)
    assert prototypes.aim(than=0.4)


def test_the_aim_survives_a_restart(vit: VisionModel, tmp_path: Path) -> None:
    adapter = make(vit, invariance_to="surest", previous_domains=2)
    first, *others = stream(adapter, 6)
    adapter(first)
    for images in others[:3]:
        change(adapter, images)
    adapter.save(tmp_path / "state")
    again = TestDG.load(tmp_path / "state", vit)
    for images in others[3:]:
        torch.testing.assert_close(again(images), adapter(images), rtol=0, atol=0)
    assert same_state(again, adapter) is None


def watch(adapter: Any, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """A list of what L_inv compares with."""
    seen: list[Tensor] = []
    loss = method.invariance_loss

    def remember(embeddings: Tensor, reference: Tensor, *others: Any) -> Tensor:
        seen.append(reference.detach().clone())
        return loss(embeddings, reference, *others)

    monkeypatch.setattr(method, "invariance_loss", remember)
    return seen


@pytest.mark.parametrize("margin", [0.0, 0.003])
def test_only_domains_that_were_surer_are_asked_for(
    vit: VisionModel, monkeypatch: pytest.MonkeyPatch, margin: float
) -> None:
    chosen = {"invariance_to": "surest", "invariance_margin": margin, "previous_domains": 2}
    adapter = make(vit, first_reference=False, prototype_update=False, **chosen)
    seen = watch(adapter, monkeypatch)
    asked: list[bool] = []
    confidences: list[list[float]] = []
    for place, images in enumerate(stream(adapter, 12)):
        begins, count = place % 2 == 0, len(seen)
        change(adapter, images) if begins and place else adapter(images)
        now = float(adapter.diagnostics["confidence"])
        confidences = [*confidences, [now]] if begins else [*confidences[:-1], [*confidences[-1], now]]
        means = [sum(domain) / len(domain) for domain in confidences]
        kept = means[-3:-1]
        assert adapter.prototypes.confidences == pytest.approx(kept)
        wanted = bool(kept) and max(kept) > means[-1] + margin
        asked.append(wanted)
        assert len(seen) - count == wanted
        assert ("invariance_loss" in adapter.diagnostics) == wanted
        if wanted:
            surest, counts = kept.index(max(kept)), adapter.prototypes.counts
            of_it = adapter.prototypes.current.split(counts)[surest]
            assert torch.equal(seen[-1].unique(dim=0), of_it.unique(dim=0))
    assert set(asked[2:]) == {True, False}


def test_all_that_are_kept_are_asked_for_otherwise(vit: VisionModel, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = make(vit, previous_domains=3, prototype_update=False)
    seen = watch(adapter, monkeypatch)
    first, *others = stream(adapter, 4)
    adapter(first)
    for images in others:
        change(adapter, images)
    assert len(seen[-1]) == len(adapter.prototypes) > len(seen[1])


@pytest.mark.parametrize("reference", ["augmented", "both"])
def test_augmented_images_have_no_confidence_and_are_asked_for_anyway(vit: VisionModel, reference: str) -> None:
    adapter = make(vit, invariance_to="surest", reference=reference)
    first, *others = stream(adapter, 4)
    adapter(first)
    for images in others:
        change(adapter, images)
        assert "invariance_loss" in adapter.diagnostics
