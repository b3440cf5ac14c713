"""Analyses of spaces: gaps between domains, embeddings in two dimensions, linear probes, attention maps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from testdg.data.stream import Domain
from testdg.errors import UserError
from testdg.methods import Adapter
from testdg.methods.testdg import TestDG
from testdg.models import VisionModel
from testdg.runs.session import open_run
from testdg.studies.analyses.subject import (
    Array,
    Encode,
    Numbers,
    Subject,
    adapted,
    before_and_after,
    encode_domain,
    features_of,
    replay,
    spaced,
    warm_run,
)

GAP_IMAGES = 100  # of each domain
EMBEDDED_IMAGES = 60  # of each domain
PROBE_IMAGES = 100  # of each domain, half of them to learn from
ATTENTION_IMAGES = 20  # of each domain, for the entropy
ATTENTION_DOMAINS = 5
AMPLIFIER_VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "without amplifier": {"amplifier": False},
    "with amplifier": {"amplifier": True},
}

# Gaps between domains


def compute_gaps(subject: Subject) -> Numbers:
    """Both matrices, their means over pairs of different domains, and the same relative to the spread of the points."""
    domains, encoders = before_and_after(subject)
    numbers: Numbers = {"space": subject.space, "domains": [domain.name for domain in domains]}
    for done, (when, encode) in enumerate(encoders.items()):
        points = {}
        for count, domain in enumerate(domains, 1 + done * len(domains)):
            points[domain.name] = encode_domain(encode, domain, spaced(len(domain), GAP_IMAGES))
            subject.notify("encoding images", count, 2 * len(domains))
        matrix, spread = gaps(points), total_variance(points)
        different = ~np.eye(len(domains), dtype=bool)
        mean = float(matrix[different].mean()) if different.any() else None
        numbers[when] = {
            "distance": matrix.tolist(),
            "mean": mean,
            "total_variance": spread,
            "mean_relative": None if mean is None or spread == 0 else mean / spread,
        }
    return numbers


def gaps(points: Mapping[str, Array]) -> Array:
    """Chamfer distance of every two sets, (D, D)."""
    sets = list(points.values())
    return np.array([[chamfer(x, y) for y in sets] for x in sets])


def chamfer(x: Array, y: Array) -> float:
    """Equation 8 of the paper with means in place of sums, so that it does not depend on the number of points."""
    pairs = np.square(x[:, None] - y[None]).sum(2)  # (n, m)
    return float(pairs.min(1).mean() + pairs.min(0).mean())


def total_variance(points: Mapping[str, Array]) -> float:
    """Mean squared distance of all points from their centre."""
    every = np.concatenate(list(points.values()))
    return float(every.var(0).sum())


# Embeddings


def compute_embeddings(subject: Subject) -> Numbers:
    """Points in two dimensions, and the separation of the domains in the space itself (silhouette, -1 to 1)."""
    domains, encoders = before_and_after(subject)
    numbers: Numbers = {"space": subject.space, "domains": [domain.name for domain in domains]}
    for when, encode in encoders.items():
        sets = [encode_domain(encode, domain, spaced(len(domain), EMBEDDED_IMAGES)) for domain in domains]
        labels = np.repeat(np.arange(len(sets)), [len(points) for points in sets])
        points = np.concatenate(sets)
        subject.notify("t-SNE", 1 if when == "before" else 2, 2)
        numbers["labels"] = labels.tolist()
        numbers[when] = {"points": project(points).tolist(), "silhouette": silhouette(points, labels)}
    return numbers


def project(points: Array) -> Array:
    """T-SNE of some points, (N, 2); deterministic."""
    from sklearn.manifold import TSNE

    if len(points) < 3:
        return np.pad(points[:, :2], ((0, 0), (0, max(0, 2 - points.shape[1]))))
    perplexity = min(30.0, (len(points) - 1) / 3)
    init = "pca" if points.shape[1] > 1 else "random"
    places = TSNE(perplexity=perplexity, init=init, random_state=0).fit_transform(points)
    return np.asarray(places, np.float64)


def silhouette(points: Array, labels: Array) -> float | None:
    """The separation of groups; None without two groups and several points."""
    from sklearn.metrics import silhouette_score

    groups = len(np.unique(labels))
    return float(silhouette_score(points, labels)) if 1 < groups < len(points) else None


# Linear probes


class Accuracy(NamedTuple):
    """Share of right answers in percent, and its standard error over pictures."""

    mean: float
    error: float


@dataclass(frozen=True)
class Material:
    """Some images of every domain, the targets of probes, and the images that probes learn from."""

    domains: Sequence[Domain]
    chosen: Sequence[Sequence[int]]
    targets: Mapping[str, Array]
    learnt: Array

    @classmethod
    def of(cls, domains: Sequence[Domain]) -> Material:
        """Choose images of all domains; a target that has one value is left out."""
        chosen = [spaced(len(domain), PROBE_IMAGES) for domain in domains]
        labels = [domain.image_labels()[indices] for domain, indices in zip(domains, chosen, strict=True)]
        classes = torch.cat(labels).numpy()
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
        """The picture that an image shows, whose corruptions have the same number."""
        return np.concatenate(self.chosen)

    def points(self, encode: Encode) -> Array:
        """(N, D)."""
        pairs = zip(self.domains, self.chosen, strict=True)
        return np.concatenate([encode_domain(encode, domain, indices) for domain, indices in pairs])


def compute_probes(subject: Subject) -> Numbers:
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
    """The accuracy of every probe on every space of the present model."""
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
    """The images to learn from: every other picture of each class, so that no picture is on both sides."""
    unique, first = np.unique(pictures, return_index=True)
    by_class = unique[np.argsort(classes[first], kind="stable")]
    return np.isin(pictures, by_class[::2])


def probe(points: Array, labels: Array, pictures: Array, learnt: Array) -> Accuracy:
    """Learn from some images and test on the others, or on the same if there are no others."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    test = learnt if learnt.all() else ~learnt
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 300 steps are enough to read an accuracy
        model.fit(points[learnt], labels[learnt])
    right = model.predict(points[test]) == labels[test]
    shares = [right[pictures[test] == picture].mean() for picture in np.unique(pictures[test])]
    error = float(np.std(shares, ddof=1) / np.sqrt(len(shares))) if len(shares) > 1 else 0.0
    return Accuracy(100 * float(right.mean()), 100 * error)


# Attention maps


def compute_attention(subject: Subject) -> Numbers:
    """The attention of the class token in the last layer (mean over heads), and its entropy in nats."""
    pairs = [pair for pair in subject.complete() if pair[0].name in AMPLIFIER_VARIANTS]
    session = open_run(pairs[0][0])
    models = {spec.name: adapted(session, result).predicting_model() for spec, result in pairs}
    domains = session.benchmark.domains()
    rows = []
    for count, place in enumerate(spaced(len(domains), ATTENTION_DOMAINS)):
        images, _ = domains[place].take(spaced(len(domains[place]), ATTENTION_IMAGES))
        maps = {name: attention_maps(model, images) for name, model in models.items()}
        shown = count % len(images)  # another picture for each domain
        rows.append(
            {
                "domain": domains[place].name,
                "image": (255 * images[shown]).round().int().tolist(),
                "maps": {name: values[shown].tolist() for name, values in maps.items()},
                "entropy": {name: float(entropy(values).mean()) for name, values in maps.items()},
                "entropy_error": {name: _error(entropy(values)) for name, values in maps.items()},
            }
        )
        subject.notify("attention", count + 1, min(ATTENTION_DOMAINS, len(domains)))
    return {"rows": rows, "uniform_entropy": math.log(maps[pairs[0][0].name][0].numel())}


def check_model(model: VisionModel) -> None:
    if not hasattr(model.network, "set_attn_implementation") or model.task != "classification":
        remedy = "use a Hugging Face ViT, as in --model FOLDER_OR_HUB_ID"
        raise UserError(f"model {model.name} does not give attention maps: {remedy}", code="no-attention-maps")


@torch.no_grad()
def attention_maps(model: VisionModel, images: Tensor) -> Tensor:
    """Attention of the class token to the patches in the last layer, mean over heads, (N, h, w); sums to one."""
    check_model(model)
    network: Any = model.network
    network.set_attn_implementation("eager")  # the fast implementations do not return maps
    output = network(model.normalise(model.prepare(images.to(model.device))), output_attentions=True)
    if not output.attentions:
        message = f"model {model.name} does not give attention maps: use a Hugging Face ViT"
        raise UserError(message, code="no-attention-maps")
    maps = output.attentions[-1].mean(1)[:, 0]  # (N, T)
    height, width = (side // network.config.patch_size for side in model.prepare(images[:1]).shape[2:])
    patches: Tensor = maps[:, -height * width :].float().cpu()  # after the class token and registers
    return (patches / patches.sum(1, keepdim=True)).view(-1, height, width)


def entropy(maps: Tensor) -> Tensor:
    """Entropy of each map in nats, (N); it is lower for a more focused map."""
    found: Tensor = -torch.special.xlogy(maps, maps).flatten(1).sum(1)
    return found


def _error(values: Tensor) -> float:
    return float(values.std() / math.sqrt(len(values))) if len(values) > 1 else 0.0
