"""Histograms of oriented gradients, as a target for what is hidden."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 9
CELLS = 2
"""Cells of a patch along each side."""


@torch.no_grad()
def hog(images: Tensor, grid: Sequence[int]) -> Tensor:
    """Histograms of images in [0, 1], (N, C, H, W), for a grid of patches: (N, C 9 4, h, w).

    Per channel, the Sobel gradient of each pixel falls into one of nine bins by its direction, where opposite
    directions are the same; magnitudes are averaged in 2 x 2 cells of a patch and each cell's nine numbers have
    length one. The order is channel, bin, row and column of the cell.
    """
    across, down = sobel(images.float())
    magnitude = (across.square() + down.square()).sqrt()
    bins = (torch.atan2(across, down) * (BINS / math.pi)).floor() % BINS
    cells = (CELLS * grid[0], CELLS * grid[1])
    magnitudes = [F.adaptive_avg_pool2d(magnitude * (bins == number), cells) for number in range(BINS)]
    histograms = F.normalize(torch.stack(magnitudes, 2), dim=2)  # (N, C, 9, 2 h, 2 w)
    return F.pixel_unshuffle(histograms.flatten(1, 2), CELLS)


def sobel(images: Tensor) -> tuple[Tensor, Tensor]:
    """Left minus right and top minus bottom, each smoothed along the other axis; the border is reflected."""
    padded = F.pad(images, (1, 1, 1, 1), mode="reflect")
    column = padded[..., :-2, :] + 2 * padded[..., 1:-1, :] + padded[..., 2:, :]
    row = padded[..., :-2] + 2 * padded[..., 1:-1] + padded[..., 2:]
    return column[..., :-2] - column[..., 2:], row[..., :-2, :] - row[..., 2:, :]
