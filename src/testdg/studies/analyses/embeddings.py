"""Embeddings of all domains in two dimensions, before and after adaptation."""

import numpy as np
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score

from testdg.studies.analyses.subject import Array, Numbers, Subject, before_and_after, encode_domain, spaced

IMAGES = 60  # of each domain
SEED = 0


def compute(subject: Subject) -> Numbers:
    """Places of the points, and how far the domains lie apart in the space itself (silhouette, -1 to 1)."""
    domains, encoders = before_and_after(subject)
    numbers: Numbers = {"space": subject.space, "domains": [domain.name for domain in domains]}
    for when, encode in encoders.items():
        sets = [encode_domain(encode, domain, spaced(len(domain), IMAGES)) for domain in domains]
        labels = np.repeat(np.arange(len(sets)), [len(points) for points in sets])
        points = np.concatenate(sets)
        subject.notify("t-SNE", 1 if when == "before" else 2, 2)
        numbers["labels"] = labels.tolist()
        numbers[when] = {"points": project(points).tolist(), "silhouette": silhouette(points, labels)}
    return numbers


def project(points: Array) -> Array:
    """T-SNE of some points, (N, 2); always the same for the same points."""
    if len(points) < 3:
        return np.pad(points[:, :2], ((0, 0), (0, max(0, 2 - points.shape[1]))))
    perplexity = min(30.0, (len(points) - 1) / 3)
    init = "pca" if points.shape[1] > 1 else "random"
    places = TSNE(perplexity=perplexity, init=init, random_state=SEED).fit_transform(points)
    return np.asarray(places, np.float64)


def silhouette(points: Array, labels: Array) -> float | None:
    """How far groups lie apart; None where there are no two groups with several points."""
    groups = len(np.unique(labels))
    return float(silhouette_score(points, labels)) if 1 < groups < len(points) else None
