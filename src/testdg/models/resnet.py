"""The residual networks for CIFAR of He et al. (2016), section 4.2, with shortcuts that have no parameters."""

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
        self.config = {"classes": classes, "depth": depth, "width": width}
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
