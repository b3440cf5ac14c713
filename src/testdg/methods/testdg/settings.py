"""Settings of TestDG, and the published ones for each benchmark."""

from dataclasses import dataclass
from typing import Literal

from testdg.methods import Presets, Settings, option


@dataclass(frozen=True, kw_only=True)
class TestDGSettings(Settings):
    """Settings of TestDG: the five that matter first, then in the order of the paper's sections."""

    __test__ = False  # pytest takes a class of this name for a test

    as_released: bool = option(False, "follow the authors' code wherever it differs from the text of the paper")
    threshold: float = option(0.1, "jump of the mean confidence that means a new domain", low=0)
    learning_rate: float = option(3e-5, "learning rate of encoder and head; published rates are in the presets", low=0)
    discrimination_weight: float = option(0.05, "weight of L_dis; without effect as Adam's only loss", low=0)
    invariance_weight: float = option(0.07, "weight of L_inv", low=0)
    predict: Literal["student", "teacher"] = option(
        "teacher", "whose prediction is returned and watched for changes of domain; as released: the teacher's"
    )
    early: int = option(0, "batches over which the rates of encoder, head and amplifier rise; 0: none", low=0)

    # 3.2 Domain prototype selection
    queue_length: int = option(256, "stored embeddings of the current domain", low=1)
    prototypes: int = option(40, "prototypes of a previous domain", low=1)
    previous_domains: int = option(1, "previous domains that have prototypes", low=1)
    selection: Literal["mmd", "random", "fifo", "reservoir"] = option("mmd", "how prototypes are chosen")
    gamma: float | None = option(None, "width of the RBF kernel; none: median heuristic, or 1 as released", low=0)
    flip: bool = option(True, "mirror every other augmented image of the first domain; not for digits or text")

    # 3.3 Domain-invariant learning
    self_training: bool = option(True, "L_self: cross-entropy with the teacher's soft label")
    discrimination: bool = option(True, "L_dis: step 1 learns to distinguish the domains")
    invariance: bool = option(True, "L_inv: step 2 moves embeddings to the prototypes")
    symmetric: bool = option(False, "average L_self with the cross-entropy the other way round (ImageNet-C)")
    amplifier: bool = option(True, "low-rank branches next to the attention (or the convolutions)")
    rank: int = option(128, "inner width of the amplifier", low=1)
    grid: int = option(2, "cells along each side of a feature map; each cell has an embedding", low=1)
    momentum: float = option(0.999, "momentum of the teacher's moving average", low=0, high=1)
    amplifier_momentum: float | None = option(
        None, "momentum of the released teacher's amplifier; none: the same", low=0, high=1
    )
    optimizer: Literal["adam", "sgd"] = option(
        "adam", "of encoder, head and amplifier: Adam, or SGD with Nesterov momentum 0.9"
    )
    amplifier_learning_rate: float = option(6e-5, "learning rate of the amplifier", low=0)
    extractor_learning_rate: float = option(
        1e-5, "learning rate of extractor and discriminator, which always use Adam", low=0
    )

    # 3.4 Domain prototype update
    prototype_update: bool = option(True, "L_update: prototypes follow the model")
    distance: Literal["chamfer", "mmd", "hausdorff"] = option("chamfer", "distance between embeddings and prototypes")
    prototype_learning_rate: float = option(0.01, "learning rate of the prototypes", low=0)
    prototype_steps: int = option(1, "steps of one update", low=1)

    released_for: Literal["cifar10-c", "cifar100-c", "imagenet-c"] = option(
        "cifar10-c", "which of the three released programs as_released follows"
    )
    source_images: int = option(0, "labelled source images for a warm-up of the amplifier; 0 for none", low=0)
    warm_up_learning_rate: float = option(1e-4, "learning rate of the amplifier on source images", low=0)
    batch_norm: Literal["auto", "batch", "source"] = option(
        "auto", "whose statistics BatchNorm layers use; auto: in classifiers the batch's, in maps the source's"
    )


PUBLISHED: Presets = {
    "cifar10-c": {
        "released_for": "cifar10-c",
        "threshold": 0.1,
        "learning_rate": 1e-4,
        "discrimination_weight": 0.05,
        "invariance_weight": 0.07,
        "amplifier_learning_rate": 6e-5,
        "extractor_learning_rate": 1e-5,
        "prototype_learning_rate": 0.01,
    },
    "cifar100-c": {
        "released_for": "cifar100-c",
        "threshold": 0.16,
        "learning_rate": 3e-4,
        "discrimination_weight": 0.005,
        "invariance_weight": 0.005,
        "amplifier_learning_rate": 9e-6,
        "extractor_learning_rate": 1e-5,
        "prototype_learning_rate": 0.008,
        "prototype_steps": 3,
    },
    "imagenet-c": {
        "released_for": "imagenet-c",
        "threshold": 0.2,
        "learning_rate": 5e-7,
        "discrimination_weight": 0.06,
        "invariance_weight": 0.006,
        "symmetric": True,
        "amplifier_momentum": 0.8,
        "optimizer": "sgd",
        "amplifier_learning_rate": 2e-7,
        "extractor_learning_rate": 2e-5,
        "prototype_learning_rate": 0.01,
    },
}
"""Rates, thresholds and weights that the authors published with their code."""

RELEASED_SIZES: dict[str, dict[str, int]] = {
    "cifar10-c": {"prototypes": 40, "queue_length": 256},
    "cifar100-c": {"prototypes": 50, "queue_length": 512},
    "imagenet-c": {"prototypes": 50, "queue_length": 512},
}
"""As many prototypes as a batch has images: the released code has no number of its own."""

PRESETS: Presets = {
    **PUBLISHED,
    **{
        f"{name}-released": {"as_released": True, **values, **RELEASED_SIZES[name]}
        for name, values in PUBLISHED.items()
    },
    "acdc": {"learning_rate": 7.5e-6, "amplifier_learning_rate": 7.5e-6},
    "digits-c": {
        "threshold": 0.06,
        "learning_rate": 1e-3,
        "invariance_weight": 0.3,
        "symmetric": True,
        "amplifier_learning_rate": 1e-6,
        "extractor_learning_rate": 1e-3,
        "flip": False,
    },
    "streets": {"threshold": 0.05, "learning_rate": 2e-4, "amplifier_learning_rate": 1e-6},
    "folder-weather": {"threshold": 0.05, "learning_rate": 2e-4, "amplifier_learning_rate": 1e-6},
}
