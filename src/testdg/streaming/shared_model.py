"""A model to be sent to other processes, whose weights the processes of a machine share."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from testdg.models import VisionModel


@dataclass(frozen=True, eq=False)
class _Weight:
    """A parameter as an array, which Ray maps into memory and does not copy."""

    array: NDArray[Any]
    requires_grad: bool

    def parameter(self) -> nn.Parameter:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable")  # nobody writes: adapters have copies
            return nn.Parameter(torch.from_numpy(self.array), self.requires_grad)


class SharedModel:
    """A model with arrays in place of its parameters, ready for Ray's object store.

    `put_together` makes the model around the arrays as they lie there: the processes of a machine have one copy of the
    weights together, which must not be written to. Adapters copy the model that they are given. On another device,
    every process has a copy of its own.

    Examples:
        >>> from testdg.models import Preprocessing, TinyViT, VisionModel
        >>> model = VisionModel(TinyViT(), "head", Preprocessing((32, 32)), "mine").eval()
        >>> SharedModel(model).put_together().fingerprint() == model.fingerprint()
        True
    """

    def __init__(self, model: VisionModel) -> None:
        weights: dict[int, Any] = {
            id(one): _Weight(one.detach().cpu().contiguous().numpy(), one.requires_grad) for one in model.parameters()
        }
        self._skeleton = copy.deepcopy(model, weights)

    def put_together(self) -> VisionModel:
        """Make the model, around memory that it shares."""
        made: dict[int, nn.Parameter] = {}
        for module in self._skeleton.modules():
            for name, weight in module._parameters.items():
                if isinstance(weight, _Weight):
                    module._parameters[name] = made.setdefault(id(weight), weight.parameter())
        return self._skeleton
