"""Prompts: small patches of pixels that are learnt and added to every image."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.errors import UserError


class Prompts(nn.Module):
    """Two square patches: the domain-agnostic one at the top left, the domain-specific one at the bottom right."""

    def __init__(self, channels: int, size: int, device: torch.device) -> None:
        super().__init__()
        self.agnostic = nn.Parameter(torch.zeros(channels, size, size, device=device))
        self.specific = nn.Parameter(torch.zeros(channels, size, size, device=device))

    def forward(self, images: Tensor) -> Tensor:
        """Decorate images of any size that holds a patch; pixels may leave [0, 1], so that gradients stay alive."""
        height, width = images.shape[-2:]
        size = self.agnostic.shape[-1]
        if size > min(height, width):
            raise UserError(f"prompt_size must be at most the side of an image, {min(height, width)}; got {size}")
        down, across = height - size, width - size
        return images + F.pad(self.agnostic, (0, across, 0, down)) + F.pad(self.specific, (across, 0, down, 0))
