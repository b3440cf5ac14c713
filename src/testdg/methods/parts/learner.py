"""An optimiser that skips a non-finite update without asking the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

OptimizerName = Literal["adam", "sgd", "momentum"]


class Learner(nn.Module):
    """Adam, Nesterov SGD or SGD with plain momentum 0.9 on named parameters, fused where the device has it.

    A step whose loss or gradient is not finite changes nothing and is counted in `skipped`. The decision stays
    on the device, so the host never waits.
    """

    skipped: Tensor

    def __init__(self, groups: Iterable[dict[str, Any]], optimizer: OptimizerName = "adam") -> None:
        super().__init__()
        groups = [{**group, "params": list(group["params"])} for group in groups]
        self.parameters_ = [p for group in groups for p in group["params"]]
        device = self.parameters_[0].device
        self.fused = device.type in ("cpu", "cuda")
        kind: Any = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
        extra: dict[str, Any] = {"momentum": 0.9, "nesterov": optimizer == "sgd"}
        if optimizer == "adam":
            extra = {"capturable": device.type == "cuda"}
        self.optimizer: torch.optim.Optimizer = kind(groups, fused=self.fused, **extra)
        if optimizer != "adam":  # it would leave its momentum unwritten where the first step is skipped
            for parameter in self.parameters_:
                self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.register_buffer("skipped", torch.zeros((), dtype=torch.int64, device=device))

    def step(self, loss: Tensor, when: Tensor | None = None) -> None:
        """Move the parameters one step down the gradient of a loss; where `when` is a False flag, not at all."""
        self.move(self.gradients(loss), loss, when)

    def gradients(self, loss: Tensor, keep: bool = False) -> tuple[Tensor | None, ...]:
        """Gradient of a loss by each parameter, None where it does not depend on one; `keep` the graph for another."""
        with torch.autocast(loss.device.type, enabled=False):  # each layer's own precision, as in its forward pass
            return torch.autograd.grad(loss, self.parameters_, allow_unused=True, retain_graph=keep)

    def move(self, gradients: Sequence[Tensor | None], loss: Tensor, when: Tensor | None = None) -> None:
        """Move the parameters by known gradients of a loss."""
        used = [gradient for gradient in gradients if gradient is not None]
        if not used:
            return
        total = torch.stack(torch._foreach_norm(used)).sum() + loss.detach()
        bad = ~total.isfinite()
        stay = bad if when is None else bad | ~when
        for parameter, gradient in zip(self.parameters_, gradients, strict=True):
            if gradient is not None and gradient.stride() != parameter.stride():
                gradient = torch.empty_like(parameter).copy_(gradient)  # fused optimisers read memory as it lies
            parameter.grad = gradient
        if self.fused:
            self.optimizer.found_inf = stay.float()  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not stay:
            self.optimizer.step()
        self.skipped += bad if when is None else bad & when
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def forget(self, when: Tensor) -> None:
        """Begin afresh, with zero moments and steps, where a flag on the device says so."""
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.mul_(~when.to(value.device))

    def moments(self) -> dict[str, Tensor]:
        """Moments and step counts, flat: `<parameter>.<name>`."""
        state = self.optimizer.state_dict()["state"]
        return {f"{i}.{key}": v for i, entry in state.items() for key, v in entry.items() if isinstance(v, Tensor)}

    def load_moments(self, moments: dict[str, Tensor]) -> None:
        """Put back what `moments` gave."""
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in moments.items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = value.clone()
        self.optimizer.load_state_dict({"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]})

    def to_parameters(self) -> None:
        """Bring the moments to where the parameters are."""
        self.load_moments({name: value.to(self.parameters_[0].device) for name, value in self.moments().items()})
