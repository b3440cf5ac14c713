"""Chamfer distance between every two domains, before and after adaptation."""

from collections.abc import Mapping

import numpy as np

from testdg.studies.analyses.subject import Array, Numbers, Subject, before_and_after, encode_domain, spaced

IMAGES = 100  # of each domain


def compute(subject: Subject) -> Numbers:
    """Both matrices, their means over pairs of different domains, and the same relative to the spread of the points."""
    domains, encoders = before_and_after(subject)
    numbers: Numbers = {"space": subject.space, "domains": [domain.name for domain in domains]}
    for done, (when, encode) in enumerate(encoders.items()):
        points = {}
        for count, domain in enumerate(domains, 1 + done * len(domains)):
            points[domain.name] = encode_domain(encode, domain, spaced(len(domain), IMAGES))
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
    """Equation 8 of the paper with means instead of sums, so that it does not depend on the number of points."""
    pairs = np.square(x[:, None] - y[None]).sum(2)  # (n, m)
    return float(pairs.min(1).mean() + pairs.min(0).mean())


def total_variance(points: Mapping[str, Array]) -> float:
    """Mean squared distance of all points from their centre."""
    every = np.concatenate(list(points.values()))
    return float(every.var(0).sum())
