"""Ways back to the source: stochastic restoring, and the source values of a few parameters."""

from collections.abc import Iterable, Sequence

import torch
from torch import Generator, Tensor, nn


def weights_and_biases(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that are named `weight` or `bias`; the class token and position embedding of a ViT are not."""
    return [p for name, p in module.named_parameters() if name.rpartition(".")[2] in ("weight", "bias")]


@torch.no_grad()
def restore(parameters: Iterable[Tensor], source: Iterable[Tensor], share: float, generator: Generator) -> None:
    """Put a random share of the values back to the source, bit for bit."""
    for parameter, old in zip(parameters, source, strict=True):
        back = torch.rand(parameter.shape, generator=generator, device=parameter.device) < share
        parameter.copy_(torch.where(back, old, parameter))


class Anchor(nn.Module):
    """The source values of some parameters. They never change, so they are not part of the state."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self.parameters_ = list(parameters)
        for number, parameter in enumerate(self.parameters_):
            self.register_buffer(str(number), parameter.detach().clone(), persistent=False)

    def values(self) -> list[Tensor]:
        """The source values, in the order of the parameters."""
        return list(self.buffers())

    @torch.no_grad()
    def pull(self, share: float) -> None:
        """Move the parameters a share of the way back."""
        torch._foreach_lerp_([p.detach() for p in self.parameters_], self.values(), share)

    @torch.no_grad()
    def recover(self, when: Tensor) -> None:
        """Go back altogether where a flag on the device says so."""
        for parameter, source in zip(self.parameters_, self.values(), strict=True):
            parameter.copy_(torch.where(when, source, parameter))
