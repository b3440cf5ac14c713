"""Linear probes: how well class and domain can be read from features and embeddings, along the stream."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from testdg.data.stream import Domain
from testdg.errors import UserError
from testdg.methods import Adapter
from testdg.methods.testdg import TestDG
from testdg.studies.analyses.subject import (
    Array,
    Encode,
    Numbers,
    Subject,
    encode_domain,
    features_of,
    replay,
    spaced,
    warm_run,
)

IMAGES = 100  # of each domain, half of them to learn from


class Accuracy(NamedTuple):
    """Share of right answers in percent, and its standard error over pictures."""

    mean: float
    error: float


@dataclass(frozen=True)
class Material:
    """Some images of every domain, what is to be read from them, and those that probes learn from."""

    domains: Sequence[Domain]
    chosen: Sequence[Sequence[int]]
    targets: Mapping[str, Array]
    learnt: Array

    @classmethod
    def of(cls, domains: Sequence[Domain]) -> Material:
        """Choose images of all domains; what is always the same is no target."""
        chosen = [spaced(len(domain), IMAGES) for domain in domains]
        classes = np.concatenate([domain.image_labels()[i].numpy() for domain, i in zip(domains, chosen, strict=True)])
        numbers = np.repeat(np.arange(len(domains)), [len(indices) for indices in chosen])
        learnt = learnt_half(np.concatenate(chosen), classes)
        targets = {"domain": numbers, "class": classes}
        several = {name: labels for name, labels in targets.items() if len(np.unique(labels[learnt])) > 1}
        if not several:
            message = "probes need several domains or several classes: take more of --domains or more --images"
            raise UserError(message, code="too-few-domains")
        return cls(domains, chosen, several, learnt)

    @property
    def pictures(self) -> Array:
        """Which picture an image shows, under whatever corruption."""
        return np.concatenate(self.chosen)

    def points(self, encode: Encode) -> Array:
        """All images as points, (N, D)."""
        return np.concatenate([encode_domain(encode, d, i) for d, i in zip(self.domains, self.chosen, strict=True)])


def compute(subject: Subject) -> Numbers:
    """Accuracy of every probe before the stream and after every visit to a domain."""
    session = warm_run(subject.adapting()[0])
    adapter, stream = session.adapter, session.stream
    domains = session.benchmark.domains()
    material = Material.of(domains)
    numbers: Numbers = {"domains": [domain.name for domain in domains], "positions": [0], "visits": ["source"]}
    checks = [_probe_all(adapter, material)]
    seen = 0
    for batch in replay(session, subject.notify):
        seen += len(batch.images)
        if stream.ends_domain(batch.number):
            numbers["positions"].append(seen)
            numbers["visits"].append(batch.name)
            checks.append(_probe_all(adapter, material))
    numbers["probes"] = {
        name: {"mean": [check[name].mean for check in checks], "error": [check[name].error for check in checks]}
        for name in checks[0]
    }
    numbers["chance"] = {"class": 100 / session.model.classes, "domain": 100 / len(domains)}
    return numbers


def _probe_all(adapter: Adapter, material: Material) -> dict[str, Accuracy]:
    """Every probe on every space that the method has now."""
    spaces: dict[str, Encode] = {"features": features_of(adapter.predicting_model())}
    if isinstance(adapter, TestDG) and adapter.cells == 1:
        spaces["embeddings"] = adapter.embed
    accuracies = {}
    for space, encode in spaces.items():
        points = material.points(encode)
        for target, labels in material.targets.items():
            accuracies[f"{target} from {space}"] = probe(points, labels, material.pictures, material.learnt)
    return accuracies


def learnt_half(pictures: Array, classes: Array) -> Array:
    """Which images to learn from: every other picture of each class, so that no picture is on both sides."""
    unique, first = np.unique(pictures, return_index=True)
    by_class = unique[np.argsort(classes[first], kind="stable")]
    return np.isin(pictures, by_class[::2])


def probe(points: Array, labels: Array, pictures: Array, learnt: Array) -> Accuracy:
    """Learn from some images and test on the rest; on the same ones where there is no rest."""
    test = learnt if learnt.all() else ~learnt
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 300 steps are enough to read an accuracy
        model.fit(points[learnt], labels[learnt])
    right = model.predict(points[test]) == labels[test]
    shares = [right[pictures[test] == picture].mean() for picture in np.unique(pictures[test])]
    error = float(np.std(shares, ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else 0.0
    return Accuracy(100 * float(right.mean()), 100 * error)
