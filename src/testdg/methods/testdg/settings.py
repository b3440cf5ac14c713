"""Settings of TestDG, and the published ones for each benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from testdg.methods.settings import Settings, option


@dataclass(frozen=True, kw_only=True)
class TestDGSettings(Settings):
    """Settings of TestDG, in the order of the paper's sections."""

    __test__ = False  # not a test class, whatever its name begins with

    # 3.1 Domain change detection
    detect_by: Literal["confidence", "appearance"] = option(
        "confidence", "what jumps in a new domain: the mean confidence (paper), or how the images look"
    )
    threshold: float = option(0.05, "jump that means a new domain", low=0)
    history: int = option(10, "batches before it that a jump is measured against (paper: 1, released code: 2)", low=1)
    recent: int = option(3, "newest batches that are averaged (paper: 1)", low=1)
    significance: float = option(
        4.0,
        "standard errors that a jump must exceed too (7 where twelve numbers of the appearance are watched); "
        "0 (paper): the threshold decides",
        low=0,
    )

    # 3.2 Domain prototype selection
    queue_length: int = option(256, "embeddings of the current domain that are kept", low=1)
    prototypes: int = option(40, "prototypes of a previous domain", low=1)
    previous_domains: int = option(1, "previous domains whose prototypes are kept", low=1)
    selection: Literal["mmd", "random", "fifo", "reservoir"] = option("mmd", "how prototypes are chosen")
    gamma: float | None = option(None, "width of the RBF kernel; none: median heuristic", low=0)

    reference: Literal["prototypes", "augmented", "both"] = option(
        "prototypes",
        "what the current domain is compared with: prototypes of previous domains (augmented images while there are "
        "none), augmented images always, or both; the last two cost one more pass",
    )
    first_reference: bool = option(
        True, "compare the first domain with augmented images (paper); off: self-training alone until a change"
    )

    # 3.3 Domain-invariant learning: parts
    amplifier: bool = option(False, "low-rank branches beside the attention (or the convolutions); published: on")
    rank: int = option(128, "inner width of the amplifier", low=1)
    embed_from: Literal["features", "logits"] = option("features", "what the extractor reads (released code: logits)")
    embedding_width: int = option(16, "width of a domain embedding", low=1)
    extractor_width: int = option(128, "hidden width of the extractor", low=1)
    discriminator_width: int = option(16, "hidden width of the discriminator", low=1)
    grid: int = option(1, "cells a side, each with an embedding of its own, where features are maps", low=1)

    # 3.3 Domain-invariant learning: losses
    self_training: bool = option(True, "L_self: cross-entropy with the teacher's soft label")
    discrimination: bool = option(True, "L_dis: step 1 learns to tell the domains apart")
    invariance: bool = option(True, "L_inv: step 2 brings embeddings to the prototypes")
    discrimination_weight: float = option(1.0, "weight of L_dis", low=0)
    invariance_weight: float = option(1.0, "weight of L_inv", low=0)
    invariance_share: float | None = option(
        None,
        "most that L_inv may add to the gradient of L_self, as a share of its length in each weight (one more backward "
        "pass; without L_self there is none); none: no bound",
        low=0,
    )
    pairing: Literal["random", "sorted", "ranked"] = option(
        "sorted", "pairs of L_inv: at random, by rank in the batch, or (for small batches) by rank in the whole domain"
    )
    uncertainty_weighting: bool = option(
        True, "weigh L_inv by one minus the teacher's mean confidence: ask for it where the domain is hard"
    )
    invariance_to: Literal["all", "surest"] = option(
        "all",
        "whom L_inv asks the current domain to be like: all previous domains that are kept (paper), or only the one "
        "that the teacher was surest of, and none where it is surer now",
    )
    invariance_margin: float = option(
        0.0, "how much surer it must have been for that, in mean confidence", low=0, high=1
    )
    invariance_batches: int | None = option(
        None, "first batches of a domain, in which L_inv is asked for; none: all of them", low=0
    )
    invariance_pause: int = option(0, "batches without L_inv in every 50 (released code: 20)", low=0, high=50)

    # Self-training
    view: Literal["same", "augmented"] = option("same", "what the student sees: the images, or an augmented view")
    augmentation: float = option(1.0, "strength of the augmented view", low=0)
    flip: bool = option(True, "mirror every other image of the augmented view; not for digits or text")
    mask: float = option(0.0, "share of the augmented view that is hidden", low=0, high=1)
    label_temperature: float = option(1.0, "of the teacher's soft label; below one sharpens it", low=0.01)
    symmetric: bool = option(True, "average L_self with the cross-entropy the other way round")
    confidence_weighting: bool = option(False, "weigh L_self by the teacher's confidence")
    diversity_weight: float = option(1.0, "weight of a term that keeps the mean prediction spread out", low=0)
    momentum: float = option(0.997, "of the teacher's moving average", low=0, high=1)
    change_momentum: float | None = option(
        0.99, "of the teacher in the first batches of a domain; none: as ever", low=0, high=1
    )
    change_batches: int = option(50, "batches of a domain that count as its first", low=0)
    amplifier_momentum: float | None = option(None, "of the teacher's amplifier; none: as the teacher", low=0, high=1)
    predict: Literal["teacher", "student"] = option(
        "teacher", "whose prediction is returned; student with an augmented view costs one more pass"
    )
    restore: float = option(
        5e-4, "share of weights put back to the source after a batch (released code: 0.1)", low=0, high=1
    )
    batch_statistics: bool = option(False, "BatchNorm layers use the statistics of the batch")

    # Optimisation
    gather: int = option(40, "images that one step needs: smaller batches are predicted at once and gathered", low=1)
    optimizer: Literal["adam", "sgd"] = option("adam", "Adam, or SGD with Nesterov momentum 0.9")
    learning_rate: float = option(3e-5, "of encoder and head", low=0)
    amplifier_learning_rate: float = option(3e-6, "of the amplifier", low=0)
    extractor_learning_rate: float = option(1e-3, "of extractor and discriminator", low=0)

    cuda_graphs: bool = option(False, "record the step as CUDA graphs: much faster for small models on a GPU")

    # 3.4 Domain prototype update
    prototype_update: bool = option(True, "L_update: prototypes follow the model")
    prototype_updates: Literal["once", "twice"] = option("twice", "per batch: after step 2, or after both steps")
    distance: Literal["chamfer", "mmd", "hausdorff"] = option("chamfer", "between embeddings and prototypes")
    prototype_learning_rate: float = option(0.01, "of the prototypes", low=0)
    prototype_steps: int = option(1, "steps of one update", low=1)


RELEASED: dict[str, Any] = {
    "gather": 1,
    "threshold": 0.1,
    "history": 2,
    "recent": 1,
    "significance": 0.0,
    "change_momentum": None,
    "restore": 0.0,
    "gamma": 1.0,
    "amplifier": True,
    "symmetric": False,
    "pairing": "random",
    "uncertainty_weighting": False,
    "diversity_weight": 0.0,
    "momentum": 0.999,
    "extractor_learning_rate": 1e-5,
}
"""What all published settings share."""

DENSE: dict[str, Any] = {
    "gather": 1,
    "grid": 2,
    "view": "augmented",
    "symmetric": False,
    "diversity_weight": 0.0,
    "invariance_weight": 0.3,
}
"""What presets for segmentation share: pixels of a street are not spread evenly over classes."""

STREETS: dict[str, Any] = {
    **DENSE,
    "batch_statistics": True,
    "learning_rate": 2e-4,
    "momentum": 0.995,
    "change_momentum": None,
    "restore": 5e-3,
}
"""Street scenes, drawn or photographed."""

PRESETS: dict[str, dict[str, Any]] = {
    "cifar10-c": {
        **RELEASED,
        "learning_rate": 1e-4,
        "amplifier_learning_rate": 6e-5,
        "discrimination_weight": 0.05,
        "invariance_weight": 0.07,
    },
    "cifar100-c": {
        **RELEASED,
        "threshold": 0.16,
        "learning_rate": 3e-4,
        "amplifier_learning_rate": 9e-6,
        "discrimination_weight": 0.005,
        "invariance_weight": 0.005,
        "prototype_learning_rate": 0.008,
        "prototype_steps": 3,
    },
    "imagenet-c": {
        **RELEASED,
        "threshold": 0.2,
        "symmetric": True,
        "optimizer": "sgd",
        "learning_rate": 5e-7,
        "amplifier_learning_rate": 2e-7,
        "extractor_learning_rate": 2e-5,
        "discrimination_weight": 0.06,
        "invariance_weight": 0.006,
        "amplifier_momentum": 0.8,
    },
    "digits-c": {
        "threshold": 0.2,
        "history": 1,
        "recent": 1,
        "significance": 0.0,
        "invariance_weight": 0.3,
        "view": "augmented",
        "symmetric": False,
        "gather": 1,
        "flip": False,
        "learning_rate": 1e-3,
        "momentum": 0.99,
        "change_momentum": None,
        "restore": 0.0,
    },
    "acdc": {
        **RELEASED,
        **DENSE,
        "learning_rate": 7.5e-6,
        "amplifier_learning_rate": 7.5e-6,
    },
    "streets": {
        **STREETS,
        "threshold": 0.05,
        "history": 2,
        "recent": 1,
        "significance": 0.0,
    },
    "folder-weather": {
        **STREETS,
        "detect_by": "appearance",
        "threshold": 0.7,
        "significance": 7.0,
        "first_reference": False,
        "embed_from": "logits",
        "invariance_weight": 30.0,
        "invariance_share": 0.3,
        "pairing": "ranked",
        "extractor_learning_rate": 1e-5,
        "prototype_learning_rate": 1e-4,
    },
}
