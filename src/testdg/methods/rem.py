"""REM: views without the most attended patches, ranked by their entropy (Han et al., ICML 2025)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from testdg.errors import UserError
from testdg.methods import Presets, Search, option, register
from testdg.methods.parts.affine import OPTIMIZERS, EarlierAffineAdapter, EarlierAffineSettings
from testdg.methods.parts.blocks import class_tokens, entering, final_norm, pass_empty_image
from testdg.methods.parts.entropy import entropy, largest_entropy, soft_cross_entropy
from testdg.methods.parts.normalisation import affine_parameters
from testdg.models import VisionModel

SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


@dataclass(frozen=True, kw_only=True)
class REMSettings(EarlierAffineSettings):
    learning_rate: float = option(1e-3, "learning rate of the normalisation layers", low=0)
    optimizer: Literal["adam", "sgd", "momentum"] = option("adam", OPTIMIZERS)
    views: int = option(3, "passes: one of the image, the others with fewer and fewer patches", low=2)
    mask_step: float = option(
        0.1, "share of the patches that each view loses more (paper 0.05, code 0.1)", low=0, high=1
    )
    ranking_weight: float = option(1.0, "weight of the loss that keeps entropies ranked", low=0)
    margin: float = option(0.0, "share of ln C by which a harder view must have a higher entropy", low=0)
    final_norm: bool = option(False, "also train the final norm, as the released code does on CIFAR")


class LastAttention(TorchFunctionMode):
    """Notes the last self-attention of the passes within, whether it is computed in one kernel or step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.row: Callable[[], Tensor] | None = None

    def __torch_function__(
        self, function: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = function(*args, **kwargs)
        if function is F.scaled_dot_product_attention:
            self.row = partial(_first_row, *args, **kwargs)
        elif function in SOFTMAX and output.ndim == 4 and output.shape[-2] == output.shape[-1]:
            self.row = lambda: output[..., :1, :]
        return output

    @torch.no_grad()
    def of_class_token(self, others: int) -> Tensor | None:
        """Attention of the first token to each patch, (N, T), mean over heads."""
        return None if self.row is None else self.row().float().mean(1)[:, 0, others:]


def _first_row(query: Tensor, key: Tensor, *_: Any, scale: float | None = None, **__: Any) -> Tensor:
    """Attention of the first token, (N, heads, 1, T)."""
    return (query[..., :1, :] @ key.mT * (scale or query.shape[-1] ** -0.5)).softmax(-1)


def least_attended(scores: Tensor, share: float) -> Tensor:
    """Indices of the patches, (N, T), that stay when the most attended share is left out."""
    count = scores.shape[1]
    stay = int(count * (1 - share) + 1e-9)  # a hair, since 10 (1 - 0.3) is less than 7 in floats
    return scores.topk(max(stay, 1), 1, largest=False).indices


def without(tokens: Tensor, stay: Tensor, others: int) -> Tensor:
    """Tokens (N, others + T, D) with the patches that stay, (N, K), and with all tokens before the patches."""
    index = (stay + others)[..., None].expand(-1, -1, tokens.shape[2])
    return torch.cat([tokens[:, :others], tokens.gather(1, index)], 1)


def consistency(views: Sequence[Tensor]) -> Tensor:
    """Cross-entropy of each view to each easier one, without gradients; mean over images, sum over pairs."""
    losses = [soft_cross_entropy(hard, easy.detach()).mean() for easy, hard in combinations(views, 2)]
    return torch.stack(losses).sum()


def ranking(views: Sequence[Tensor], margin: float) -> Tensor:
    """Hinge loss: an easier view should have less entropy, by a margin, than a harder one, which has no gradients."""
    entropies = [entropy(logits) for logits in views]
    losses = [(easy - hard.detach() + margin).clamp(min=0).mean() for easy, hard in combinations(entropies, 2)]
    return torch.stack(losses).sum()


@register
class REM(EarlierAffineAdapter):
    """Predict an image without its most attended patches as with them, but less surely."""

    name = "rem"
    title = "REM"
    citation = "Han et al., Ranked Entropy Minimization for Continual Test-Time Adaptation, ICML 2025"
    example_error = 21.5
    needs = "a class token that attends to patches"
    Settings = REMSettings
    settings: REMSettings
    search = Search(rates=(0.01, 0.1, 0.3, 1), values={"mask_step": (0.05, 0.1, 0.2)})
    presets: ClassVar[Presets] = {
        "digits-c": {"mask_step": 0.02},
        **{name: {"learning_rate": 1e-3} for name in ("cifar10-c", "cifar100-c", "imagenet-c")},
    }

    @classmethod
    def refuses(cls, model: VisionModel) -> str | None:
        if not class_tokens(model):
            return "it has no class token that attends to patches (a vision transformer has)"
        with LastAttention() as attention:
            pass_empty_image(model)
        return super().refuses(model) if attention.row else "its attention weights cannot be read"

    def chosen(self) -> list[nn.Parameter]:
        """The earlier normalisation layers, with the final one if set."""
        name = final_norm(self.model) if self.settings.final_norm else None
        final = [] if name is None else affine_parameters(self.model, [self.model.get_submodule(name)])
        return list(dict.fromkeys([*super().chosen(), *final]))

    def build(self) -> None:
        s = self.settings
        if (s.views - 1) * s.mask_step >= 1:
            masked = f"{s.views - 1} x mask_step {s.mask_step} is 1 or more"
            raise UserError(f"the last view of rem would have no patch: {masked}", code="setting-range")
        super().build()
        self.others = class_tokens(self.model)

    def step(self, images: Tensor) -> Tensor:
        """Predict, look away from what was looked at, and learn to agree with what was predicted."""
        s = self.settings
        with LastAttention() as attention:
            logits: Tensor = self.model(images).logits
        scores = attention.of_class_token(self.others)
        assert scores is not None  # refuses() has looked
        views = [logits, *(self._without(images, scores, k * s.mask_step) for k in range(1, s.views))]
        agree, ranks = consistency(views), ranking(views, largest_entropy(self.model.classes, s.margin))
        self.learner.step(agree + s.ranking_weight * ranks)
        self.diagnostics.update(consistency=agree.detach(), ranking=ranks.detach())
        return logits

    def _without(self, images: Tensor, scores: Tensor, share: float) -> Tensor:
        """Predict images without the share of their patches that is most attended."""
        change = partial(without, stay=least_attended(scores, share), others=self.others)
        with entering(self.model, change):
            return self.model(images).logits  # type: ignore[no-any-return]
