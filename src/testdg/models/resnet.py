"""The residual networks for CIFAR of He et al. (2016), section 4.2, with shortcuts that have no parameters."""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from testdg.errors import UserError
from testdg.models.preprocessing import Preprocessing

PREPROCESSING = Preprocessing((32, 32), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
"""Preprocessing of the published weights."""


class BasicBlock(nn.Module):
    """Two convolutions around which the input is added."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.more = stride, outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        changed = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(changed + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        """Option A: every second pixel, and empty channels on both sides."""
        if self.stride == 1 and not self.more:
            return x
        before = self.more // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.more - before))


class CifarResNet(nn.Module):
    """Three stages of (depth - 2) / 6 blocks, mean pooling, a linear classifier."""

    def __init__(self, classes: int = 10, depth: int = 20, width: int = 16) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            wrong = f"the depth of a CIFAR ResNet must be 6 n + 2 (20, 32, 44, 56 ...); got {depth}"
            raise UserError(wrong, code="network-depth")
        self.config: dict[str, Any] = {"classes": classes, "depth": depth, "width": width}
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, (depth - 2) // 6, 1)
        self.layer2 = _stage(width, 2 * width, (depth - 2) // 6, 2)
        self.layer3 = _stage(2 * width, 4 * width, (depth - 2) // 6, 2)
        self.linear = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to logits."""
        x = F.relu(self.bn1(self.conv1(images)))
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))  # type: ignore[no-any-return]


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1)))


def resnet_from_weights(weights: Mapping[str, Tensor], place: str) -> CifarResNet:
    """Make the network of some weights; depth, width and classes are read from them."""
    if not {"conv1.weight", "layer1.0.conv1.weight", "linear.weight"} <= weights.keys():
        problem = f"{place} is not a CIFAR ResNet (conv1, bn1, layer1 to layer3, linear)"
        raise UserError(f"{problem}: other models need a folder with config.json", code="no-network")
    blocks = len({name.split(".")[1] for name in weights if name.startswith("layer1.")})
    network = CifarResNet(weights["linear.weight"].shape[0], 6 * blocks + 2, weights["conv1.weight"].shape[0])
    expected = network.state_dict().keys()
    counters = {name for name in expected if name.endswith("num_batches_tracked")}  # which are not used
    missing = expected - weights.keys() - counters
    for problem, names in (("missing", missing), ("unexpected", weights.keys() - expected)):
        if names:
            raise UserError(f"{place}: {len(names)} {problem} keys, first {min(names)}", code="wrong-weights")
    try:
        network.load_state_dict(weights, strict=False)
    except RuntimeError as error:  # a shape: the names are right
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"{place} does not fit a CIFAR ResNet: {reason}", code="wrong-weights") from error
    return network
