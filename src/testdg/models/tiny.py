"""Tiny networks for tests and the demonstration: a ViT and a BatchNorm CNN of about a hundred thousand parameters."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head self-attention with one fused projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, D) to (N, T, D)."""
        n, t, d = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, d))  # type: ignore[no-any-return]


class TransformerBlock(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, D) to (N, T, D)."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class TinyViT(nn.Module):
    """A vision transformer small enough to train on two cores in a minute."""

    def __init__(
        self, classes: int = 10, size: int = 32, patch: int = 4, width: int = 64, depth: int = 4, heads: int = 4
    ) -> None:
        super().__init__()
        self.config = {
            "classes": classes, "size": size, "patch": patch, "width": width, "depth": depth, "heads": heads,
        }  # fmt: skip
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.randn(1, 1 + (size // patch) ** 2, width) * 0.02)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, size, size) to logits."""
        x = self.patches(images).flatten(2).transpose(1, 2)  # (N, T, D)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.blocks(x)[:, 0]))  # type: ignore[no-any-return]


class TinyCNN(nn.Module):
    """Three convolution-BatchNorm-ReLU stages, mean pooling, a linear head."""

    def __init__(self, classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.config = {"classes": classes, "width": width}
        widths = [3, width, 2 * width, 4 * width]
        stages = [
            nn.Sequential(nn.Conv2d(a, b, 3, 1 if a == 3 else 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in pairwise(widths)
        ]
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to logits."""
        return self.head(self.stages(images).mean((2, 3)))  # type: ignore[no-any-return]
