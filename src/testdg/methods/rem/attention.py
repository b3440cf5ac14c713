"""What the class token attends to, and passes without the patches that it attends to most."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


class LastAttention(TorchFunctionMode):
    """Notes the last self-attention of the passes within, whether it is computed in one kernel or step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.row: Callable[[], Tensor] | None = None

    def __torch_function__(
        self, function: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, and look at it."""
        kwargs = kwargs or {}
        output = function(*args, **kwargs)
        if function is F.scaled_dot_product_attention:
            self.row = partial(_first_row, *args, **kwargs)
        elif function in SOFTMAX and output.ndim == 4 and output.shape[-2] == output.shape[-1]:
            self.row = lambda: output[..., :1, :]
        return output

    @torch.no_grad()
    def of_class_token(self, others: int) -> Tensor | None:
        """Mean over heads of what the first token gives each patch, (N, T), without the tokens before the patches."""
        return None if self.row is None else self.row().float().mean(1)[:, 0, others:]


def _first_row(query: Tensor, key: Tensor, *_: Any, scale: float | None = None, **__: Any) -> Tensor:
    """What the first token attends to, (N, heads, 1, T)."""
    return (query[..., :1, :] @ key.mT * (scale or query.shape[-1] ** -0.5)).softmax(-1)


def least_attended(scores: Tensor, share: float) -> Tensor:
    """Of the patches, (N, T), the indices of those that stay when a share is left out: the most attended ones."""
    count = scores.shape[1]
    stay = int(count * (1 - share) + 1e-9)  # a hair, since 10 (1 - 0.3) is less than 7 in floats
    return scores.topk(max(stay, 1), 1, largest=False).indices


def without(tokens: Tensor, stay: Tensor, others: int) -> Tensor:
    """Tokens (N, others + T, D) with the patches that stay, (N, K), and with all tokens before the patches."""
    index = (stay + others)[..., None].expand(-1, -1, tokens.shape[2])
    return torch.cat([tokens[:, :others], tokens.gather(1, index)], 1)
