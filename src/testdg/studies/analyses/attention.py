"""Attention maps of the adapted model, with and without the amplifier."""

import math
from typing import Any

import torch
from torch import Tensor

from testdg.errors import UserError
from testdg.models import VisionModel
from testdg.runs.session import open_run
from testdg.studies.analyses.subject import Numbers, Subject, adapted, spaced

SHOWN = 5  # domains
IMAGES = 20  # of each domain, for the entropy
VARIANTS = ("without amplifier", "with amplifier")


def compute(subject: Subject) -> Numbers:
    """Where the class token looks in the last layer (mean over heads), and the entropy of that in nats."""
    pairs = [pair for pair in subject.complete() if pair[0].name in VARIANTS]
    session = open_run(pairs[0][0])
    models = {spec.name: adapted(session, result).predicting_model() for spec, result in pairs}
    domains = session.benchmark.domains()
    rows = []
    for count, place in enumerate(spaced(len(domains), SHOWN)):
        images, _ = domains[place].take(spaced(len(domains[place]), IMAGES))
        maps = {name: attention_maps(model, images) for name, model in models.items()}
        shown = count % len(images)  # another picture for each domain
        rows.append(
            {
                "domain": domains[place].name,
                "image": (255 * images[shown]).round().int().tolist(),
                "maps": {name: values[shown].tolist() for name, values in maps.items()},
                "entropy": {name: float(entropy(values).mean()) for name, values in maps.items()},
                "entropy_error": {name: _error(entropy(values)) for name, values in maps.items()},
            }
        )
        subject.notify("attention", count + 1, min(SHOWN, len(domains)))
    return {"rows": rows, "uniform_entropy": math.log(maps[pairs[0][0].name][0].numel())}


def check_model(model: VisionModel) -> None:
    """Refuse a model that does not give attention maps."""
    if not hasattr(model.network, "set_attn_implementation") or model.task != "classification":
        remedy = "use a Hugging Face ViT, as in --model FOLDER_OR_HUB_ID"
        raise UserError(f"model {model.name} does not give attention maps: {remedy}", code="no-attention-maps")


@torch.no_grad()
def attention_maps(model: VisionModel, images: Tensor) -> Tensor:
    """Attention of the class token to the patches in the last layer, mean over heads, (N, h, w); sums to one."""
    check_model(model)
    network: Any = model.network
    network.set_attn_implementation("eager")  # the fast ones do not keep their maps
    output = network(model.normalise(model.prepare(images.to(model.device))), output_attentions=True)
    if not output.attentions:
        message = f"model {model.name} does not give attention maps: use a Hugging Face ViT"
        raise UserError(message, code="no-attention-maps")
    maps = output.attentions[-1].mean(1)[:, 0]  # (N, T)
    height, width = (side // network.config.patch_size for side in model.prepare(images[:1]).shape[2:])
    patches: Tensor = maps[:, -height * width :].float().cpu()  # after the class token and registers
    return (patches / patches.sum(1, keepdim=True)).view(-1, height, width)


def entropy(maps: Tensor) -> Tensor:
    """Entropy of each map in nats, (N): the lower, the more it is focused."""
    found: Tensor = -torch.special.xlogy(maps, maps).flatten(1).sum(1)
    return found


def _error(values: Tensor) -> float:
    return float(values.std() / math.sqrt(len(values))) if len(values) > 1 else 0.0
