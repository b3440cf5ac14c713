"""An optimiser that skips non-finite updates without waiting for the host."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

OptimizerName = Literal["adam", "sgd", "momentum"]


class Learner(nn.Module):
    """Adam, or SGD with momentum 0.9 (Nesterov: `sgd`, plain: `momentum`), fused if the device supports it.

    Creating a learner lets its parameters require gradients. A step whose loss or gradient is not finite changes
    nothing and is counted in `skipped`. The decision is a flag on the device, which the fused optimiser reads as
    `found_inf`. So the host does not wait for it, and the step can be recorded as a CUDA graph.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], optimizer: OptimizerName = "adam") -> None:
        super().__init__()
        groups = [{**group, "params": list(group["params"])} for group in groups]
        self.parameters_ = [p.requires_grad_(True) for group in groups for p in group["params"]]
        device = self.parameters_[0].device
        self.fused = device.type in ("cpu", "cuda")
        self.optimizer: torch.optim.Optimizer
        if optimizer == "adam":
            self.optimizer = torch.optim.Adam(groups, fused=self.fused, capturable=device.type == "cuda")
        else:
            nesterov = optimizer == "sgd"
            self.optimizer = torch.optim.SGD(groups, fused=self.fused, momentum=0.9, nesterov=nesterov)
        self.rates: list[float] = [group["lr"] for group in self.optimizer.param_groups]
        self.moment_names = ("step", "exp_avg", "exp_avg_sq") if optimizer == "adam" else ("momentum_buffer",)
        if optimizer != "adam":  # SGD would leave its momentum unset if the first step is skipped
            for parameter in self.parameters_:
                self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self.skipped: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64, device=device))

    def step(self, loss: Tensor, when: Tensor | None = None) -> Tensor:
        """Update the parameters by the gradient of a loss, and return the loss, detached.

        Nothing changes if `when`, a flag on the device, is False.
        """
        self.move(self.gradients(loss), loss, when)
        return loss.detach()

    def gradients(self, loss: Tensor, keep: bool = False) -> tuple[Tensor | None, ...]:
        """Gradient of a loss by each parameter, None if it does not depend on it; `keep` retains the graph."""
        with torch.autocast(loss.device.type, enabled=False):  # each layer uses the precision of its forward pass
            return torch.autograd.grad(loss, self.parameters_, allow_unused=True, retain_graph=keep)

    def move(self, gradients: Sequence[Tensor | None], loss: Tensor, when: Tensor | None = None) -> None:
        """Update the parameters by the given gradients of a loss; `when` as in `step`."""
        used = [gradient for gradient in gradients if gradient is not None]
        if not used:
            return
        total = torch.stack(torch._foreach_norm(used)).sum() + loss.detach()
        bad = ~total.isfinite()
        stay = bad if when is None else bad | ~when
        for parameter, gradient in zip(self.parameters_, gradients, strict=True):
            if gradient is not None and gradient.stride() != parameter.stride():
                gradient = torch.empty_like(parameter).copy_(gradient)  # fused optimisers ignore strides
            parameter.grad = gradient
        if self.fused:
            self.optimizer.found_inf = stay.float()  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not stay:
            self.optimizer.step()
        self.skipped += bad if when is None else bad & when
        self.optimizer.zero_grad(set_to_none=True)

    def scale_rates(self, share: float) -> None:
        """Use this share of the learning rates from now on."""
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = share * rate

    @torch.no_grad()
    def forget(self, when: Tensor) -> None:
        """Set moments and steps to zero where a flag on the device is True."""
        for state in self.optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.mul_(~when.to(value.device))

    def misfit(self, moments: Mapping[str, Tensor]) -> str | None:
        """Return why moments cannot be loaded, or None. A parameter that Adam has never updated has no moments."""
        known = {f"{i}.{name}" for i in range(len(self.parameters_)) for name in self.moment_names}
        if unknown := sorted(moments.keys() - known):
            return f"{unknown[0]} is not a moment of its optimiser"
        for i, parameter in enumerate(self.parameters_):
            own = {name: moments.get(f"{i}.{name}") for name in self.moment_names}
            if "step" in own and all(value is None for value in own.values()):
                continue
            for name, value in own.items():
                shape = torch.Size() if name == "step" else parameter.shape
                if value is None:
                    return f"{i}.{name} is missing"
                if value.shape != shape:
                    return f"{i}.{name} has shape {tuple(value.shape)}, not {tuple(shape)}"
                if value.dtype != parameter.dtype:
                    return f"{i}.{name} is {value.dtype}, not {parameter.dtype}"
        return None

    def written(self) -> list[Tensor]:
        """Everything that a step writes: parameters and moments."""
        stored = (value for state in self.optimizer.state.values() for value in state.values())
        return [*self.parameters_, *(value for value in stored if isinstance(value, Tensor))]


def moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Moments and step counts of an optimiser, flat: `<parameter>.<name>`."""
    state = optimizer.state_dict()["state"]
    return {f"{i}.{key}": v for i, entry in state.items() for key, v in entry.items() if isinstance(v, Tensor)}


def load_moments(optimizer: torch.optim.Optimizer, stored: Mapping[str, Tensor]) -> None:
    """Restore what `moments` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in stored.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value.clone()
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
