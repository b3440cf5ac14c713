"""Linear probes: how well class and domain can be read from features and embeddings, along the stream."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from testdg.data.stream import Domain
from testdg.experiments.analyses.case import (
    Array,
    Case,
    Encode,
    Numbers,
    Scene,
    encode_domain,
    features_of,
    replay,
    spaced,
)
from testdg.methods import Adapter
from testdg.methods.testdg import TestDG

IMAGES = 60  # of each domain, half of them to learn from


class Accuracy(NamedTuple):
    """Share of right answers in percent, and its standard error over pictures."""

    mean: float
    error: float


def compute(case: Case) -> Numbers:
    """Accuracy of every probe before the stream and after every visit to a domain."""
    scene = Scene.open(case.adapting()[0])
    adapter, stream = scene.adapter(), scene.stream
    domains = scene.benchmark.domains()
    numbers: Numbers = {"domains": [domain.name for domain in domains], "positions": [0], "visits": ["source"]}
    checks = [_probe_all(adapter, domains)]
    seen = 0
    for batch in replay(scene, adapter, case.tell):
        seen += len(batch.images)
        if stream.ends_domain(batch.number):
            numbers["positions"].append(seen)
            numbers["visits"].append(batch.name)
            checks.append(_probe_all(adapter, domains))
    numbers["probes"] = {
        name: {"mean": [check[name].mean for check in checks], "error": [check[name].error for check in checks]}
        for name in checks[0]
    }
    numbers["chance"] = {"class": 100 / scene.model.classes, "domain": 100 / len(domains)}
    return numbers


def _probe_all(adapter: Adapter, domains: Sequence[Domain]) -> dict[str, Accuracy]:
    """Every probe on every space that the method has now."""
    spaces: dict[str, Encode] = {"features": features_of(adapter.adapted_model())}
    if isinstance(adapter, TestDG) and adapter.cells == 1:
        spaces["embeddings"] = adapter.embed
    chosen = [spaced(len(domain), IMAGES) for domain in domains]
    pictures = np.concatenate(chosen)
    targets = {"domain": np.repeat(np.arange(len(domains)), [len(indices) for indices in chosen])}
    classes = np.concatenate([domain.image_labels()[i].numpy() for domain, i in zip(domains, chosen, strict=True)])
    if classes.min() >= 0:
        targets["class"] = classes
    found = {}
    for space, encode in spaces.items():
        points = np.concatenate([encode_domain(encode, d, i) for d, i in zip(domains, chosen, strict=True)])
        for target, labels in targets.items():
            if len(np.unique(labels)) > 1:
                found[f"{target} from {space}"] = probe(points, labels, pictures)
    return found


def probe(points: Array, labels: Array, pictures: Array) -> Accuracy:
    """Learn from every other picture and test on the rest: no picture is on both sides, in whatever domain."""
    order = np.searchsorted(np.unique(pictures), pictures)
    train, test = order % 2 == 0, order % 2 == 1
    if not test.any():
        train = test = np.ones_like(train)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 300 steps are enough to read an accuracy
        model.fit(points[train], labels[train])
    right = model.predict(points[test]) == labels[test]
    shares = [right[pictures[test] == picture].mean() for picture in np.unique(pictures[test])]
    error = float(np.std(shares, ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else 0.0
    return Accuracy(100 * float(right.mean()), 100 * error)
