"""Images as a user hands them in: what is wrong with them, as a sentence."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from testdg.errors import UserError
from testdg.models import VisionModel
from testdg.models.preprocessing import require_dense


def accept_images(images: Tensor, model: VisionModel) -> Tensor:
    """Bring a batch to the device of a model, or say what is wrong with its type and shape."""
    if not isinstance(images, Tensor):
        raise UserError(f"images must be a torch tensor; got {type(images).__name__}")
    require_dense(images)
    if images.is_meta:
        raise UserError("images must have pixels; got a tensor on the meta device: load the batch first")
    if not images.is_floating_point():
        raise UserError(f"images must be float in [0, 1]; got {images.dtype}: divide by 255")
    if images.ndim != 4:
        raise UserError(f"images must be (N, {model.channels}, H, W); got shape {tuple(images.shape)}")
    if images.shape[1] != model.channels:
        remedy = ": they come last there, so call images.permute(0, 3, 1, 2)" * (images.shape[3] == model.channels)
        raise UserError(f"images must have {model.channels} channels; got {images.shape[1]}{remedy}")
    if images.numel() == 0:
        raise UserError(f"the batch is empty: shape {tuple(images.shape)}")
    return images.to(model.device, torch.float32, non_blocking=True)


@contextmanager
def refusing_small(images: Tensor, model: VisionModel, method: str) -> Iterator[None]:
    """Turn the failure of a layer on images that are smaller than its kernel into a sentence."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        (height, width), preprocessing = images.shape[-2:], model.preprocessing
        resized = preprocessing.size is not None or preprocessing.crop is not None
        kernels = [max(layer.kernel_size) for layer in model.modules() if isinstance(layer, nn.Conv2d)]
        if resized or min(height, width) >= max(kernels, default=1):
            raise
        raise UserError(
            f"images of {height} x {width} pixels are too small for {method} on {model.name}: use larger ones, "
            "or a model that resizes them"
        ) from error
