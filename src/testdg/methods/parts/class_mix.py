"""The class mix of a stream as a prior.

Real streams are bunched: a camera shows one class for a while. Where recent predictions say so, the logits of the next
images are shifted by log(q / u): q is the mix of classes in a sliding window, u the usual mix of the stream. The mix is
estimated by expectation maximisation (Saerens et al., 2002), which corrects for how often classes are confused.

Three things keep it away from shuffled streams. The estimate is relative to the usual mix, because in a hard domain the
predictions of a shuffled stream are one-sided, too; both mixes show that, and it cancels. What speaks for the mix of an
image are the other images alone, in every round: of a thousand classes, eighty images could otherwise confirm any mix
that fits them. And the shift is zero unless the window is more likely under q than under u by a clear margin.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

WINDOW = 80
"""Images in the sliding window that is stored."""
MOST = 320
"""Images of a batch that the mix is estimated from; each has a row of its own, so the cost grows with their square."""
FADE = 20.0
"""Images after which those before the current batch count a factor of e less."""
USUAL = 1600.0
"""Images that the usual mix is a moving average of. A change of domain does not reset it."""
PRIOR = 5.0
"""Images of the usual mix that are added to the window."""
LEAST = 40
"""Images without which a mix is not estimated."""
GAIN = 0.2
"""Mean gain in log-likelihood at which the shift begins, of many images; it is full at twice that."""
LARGEST = 10.0
"""Largest factor by which a class becomes more likely; beyond it, of many classes, a change would come too late."""
ROUNDS = 5
"""Rounds of expectation maximisation."""
RAREST = 0.01
"""Smallest usual share of a class, as a part of an even share."""


class Estimate(NamedTuple):
    """The mix, estimated from a batch and the images before it."""

    usual: Tensor
    window: Tensor
    filled: Tensor
    shift: Tensor
    """What to add to the logits of each image of the batch, (N, C)."""
    gate: Tensor
    """How much of the shift is applied, from 0 to 1."""


class ClassMix(nn.Module):
    """Shifts the predictions of a stream by the classes of its last images."""

    usual: Tensor
    window: Tensor
    filled: Tensor

    def __init__(self, classes: int, device: torch.device, temperature: float = 2.5) -> None:
        super().__init__()
        self.temperature = temperature
        self.register_buffer("usual", torch.full((classes,), 1 / classes, device=device))
        self.register_buffer("window", torch.zeros(WINDOW, classes, device=device))  # probabilities, newest last
        self.register_buffer("filled", torch.zeros((), dtype=torch.int64, device=device))

    @torch.no_grad()
    def follow(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Add a batch, (N, C), to the window. Returns its shifted logits and the gate."""
        estimate = self.estimate(logits)
        for name in ("usual", "window", "filled"):
            getattr(self, name).copy_(getattr(estimate, name))
        return logits + estimate.shift.to(logits.dtype), estimate.gate

    @torch.no_grad()
    def shift(self) -> Tensor:
        """Shift of the next image, estimated from the window alone, (C,)."""
        return self.estimate(self.usual.new_zeros(0, len(self.usual))).shift[0]

    def estimate(self, logits: Tensor) -> Estimate:
        """Estimate the mix of the window with a batch; nothing changes. An empty batch has the shift of one image."""
        images, (_, classes) = len(logits), self.window.shape
        batch, usual = (logits.float() / self.temperature).softmax(1), self.usual
        batch = torch.where(batch.isfinite().all(1, keepdim=True), batch, usual)  # a broken model must not stay in here
        if images:
            usual = usual.lerp(batch.mean(0), images / (USUAL + images))
        u = usual.clamp(min=RAREST / classes)
        u = u / u.sum()

        window = torch.cat([self.window, batch])[-max(WINDOW, min(images, MOST)) :]
        filled = (self.filled + images).clamp(max=WINDOW)
        age = torch.arange(len(window) - 1, -1, -1, device=window.device)
        weight = (-(age - (images or LEAST) + 1).clamp(min=0) / FADE).exp()
        weight = weight * (age < filled.clamp(min=images))

        # Row i is the mix without image i, the last row that of all. Each round, for every j but i:
        # r_jc = p_jc q_ic / u_c, normalised over c; q_ic = (sum_j w_j r_jc + PRIOR u_c) / (sum_j w_j + PRIOR)
        count = len(window)
        weights = weight * (1 - torch.eye(count + 1, count, device=window.device))
        total = weights.sum(1, keepdim=True) + PRIOR
        odds, prior, share = window / u, u * (PRIOR / total), weights / total
        mix = u.expand(count + 1, -1)
        for _ in range(ROUNDS):
            mix = torch.addcmul(prior, mix, (share / (mix @ odds.T).clamp(min=1e-12)) @ odds)
        others = mix[:-1]
        gains = (odds * others).sum(1).clamp(min=1e-12).log()
        gain = (weight * gains).sum() / weight.sum().clamp(min=1e-12)
        margin = GAIN * (1 + (FADE / weight.sum().clamp(min=1.0)) ** 3)  # single images prove less
        gate = (gain / margin - 1).clamp(0, 1) * (filled >= LEAST)
        mine = others[-images:] if 0 < images <= MOST else mix[-1:]
        shift = gate * self.temperature * (mine / u).clamp(max=LARGEST).log()
        return Estimate(usual, window[-WINDOW:], filled, shift, gate)
