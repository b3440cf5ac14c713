"""Aligning any network: where the tokens of a transformer are moved, and BatchNorm layers that follow the stream."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor

from testdg.errors import UserError
from testdg.methods.parts.blocks import prefix_tokens, transformer_blocks
from testdg.methods.parts.normalisation import batch_norms, follow_statistics, use_running_statistics
from testdg.models import Output, VisionModel
from testdg.models.alignment import Alignment

LEAST = 64
"""Source images without which a sketch is noise."""
BEGINNING = 100.0
"""Images that the source counts for when a stream begins."""


def make_alignable(
    model: VisionModel, *, sites: int, class_token: bool, memory: float, norm_memory: float, threshold: float
) -> None:
    """Put an alignment after evenly spaced blocks of a transformer, and let BatchNorm layers follow the stream."""
    use_running_statistics(model, norm_memory)
    names = site_names(model, sites)
    if names:
        prefix = prefix_tokens(model, names[0])
        Alignment(model, names, prefix=prefix, class_token=class_token, memory=memory, threshold=threshold)


def site_names(model: VisionModel, sites: int) -> list[str]:
    """Blocks that divide the depth of a transformer evenly: of 12 blocks, for two sites, the fifth and the ninth."""
    blocks = transformer_blocks(model)
    names = {block: name for name, block in model.network.named_modules()}
    chosen = sorted({len(blocks) * k // (sites + 1) for k in range(1, sites + 1)}) if blocks else []
    return [names[blocks[place]] for place in chosen]


def first_images(batches: Iterable[Tensor], images: int) -> list[Tensor]:
    """So many source images, batch by batch; fewer than `LEAST` are refused."""
    taken: list[Tensor] = []
    for batch in batches:
        taken.append(batch[: images - sum(map(len, taken))])
        if sum(map(len, taken)) >= images:
            break
    if (seen := sum(map(len, taken))) < LEAST:
        raise UserError(f"alignment needs at least {LEAST} source images; got {seen}")
    return taken


class Following(NamedTuple):
    """A pass along the stream: what it gives, whether a new domain has begun, and how far it was from the memory."""

    output: Output
    changed: bool
    gap: float


def follow(model: VisionModel, images: Tensor, to_host: Callable[..., list[float]]) -> Following:
    """Predict a batch with the statistics of the stream, and remember them; nothing is, where `to_host` refuses it.

    One pass. The first batch of a new domain is passed again, with its own statistics.
    """
    if batch_norms(model):  # they follow in the pass itself
        to_host()
    with follow_statistics(model):
        output = model.run(images)
    if (alignment := model.alignment) is None:
        return Following(output, False, 0.0)
    (gap,) = to_host(alignment.propose(output.logits))
    output, changed = alignment.settle(lambda: model.run(images), output, gap)
    return Following(output, changed, gap)
