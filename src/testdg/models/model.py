"""A torch network as encoder + head: logits and features in one pass, and the layers that methods look for."""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testdg.errors import UserError
from testdg.models import timm_models
from testdg.models.alignment import Alignment
from testdg.models.blocks import config_of, find_logits, is_attention, pooled, save_tensors, tensors_of, watching
from testdg.models.preprocessing import Preprocessing, require_dense, write_preprocessor
from testdg.models.resnet import CifarResNet
from testdg.models.tiny import TinyCNN, TinyViT

ARCHITECTURES: dict[str, type[TinyViT] | type[TinyCNN] | type[CifarResNet]] = {
    "testdg-tiny-vit": TinyViT,
    "testdg-tiny-cnn": TinyCNN,
    "testdg-cifar-resnet": CifarResNet,
}
"""The networks of this package, by their type in `config.json`."""
MODEL_TYPE = "testdg-module"
"""Type of a user's own module in `config.json`."""
NORM_LAYERS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm)


class Output(NamedTuple):
    """Result of a pass: logits (N, C) or (N, C, H, W), features (N, D) or (N, D, h, w)."""

    logits: Tensor
    features: Tensor


def require_float32() -> None:
    """Refuse another default dtype of torch: methods create their tensors in it, and all weights are float32."""
    if (default := torch.get_default_dtype()) is not torch.float32:
        remedy = "call torch.set_default_dtype(torch.float32)"
        raise UserError(f"testdg computes in float32; the default dtype is {default}: {remedy}", code="default-dtype")


class VisionModel(nn.Module):
    """A classifier; features are the input of its head, the linear layer (or 1 x 1 convolution) of its logits."""

    task = "classification"
    alignment: Alignment | None
    """Moves the tokens of the network to the statistics of the source; None in an ordinary model."""
    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        head: str | None,
        preprocessing: Preprocessing,
        name: str,
        *,
        classes: int | None = None,
        exact: bool = True,
    ) -> None:
        """Split a network into encoder and head; without a `head`, features have width 0.

        The head is `exact` if its output, averaged over places, are the logits; with other heads, `classes` is
        required.
        """
        super().__init__()
        require_float32()
        self.network = network
        self.head = head
        self.preprocessing = preprocessing
        self.name = name
        self.alignment = None
        self.exact = exact
        self._classes = classes
        self._class_names: tuple[str, ...] = ()
        device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
        for key, values in (("mean", preprocessing.mean), ("std", preprocessing.std)):
            self.register_buffer(key, torch.tensor(values, device=device).view(-1, 1, 1), persistent=False)

    def accept(self, images: Tensor) -> Tensor:
        """Move a batch to the device of the model; wrong types and shapes are refused."""
        require_float32()
        if not isinstance(images, Tensor):
            raise UserError(f"images must be a torch tensor; got {type(images).__name__}", code="image-type")
        require_dense(images)
        if images.is_meta:
            raise UserError("images must have pixels; got a tensor on the meta device", code="image-type")
        if not images.is_floating_point():
            raise UserError(f"images must be float in [0, 1]; got {images.dtype}: divide by 255", code="image-type")
        if images.ndim != 4 or images.shape[1] != self.channels:
            last = images.ndim == 4 and images.shape[3] == self.channels
            remedy = ": the channels are last, so call images.permute(0, 3, 1, 2)" * last
            shape = tuple(images.shape)
            expected = f"(N, {self.channels}, H, W)"
            raise UserError(f"images must be {expected}; got {shape}{remedy}", code="image-shape")
        if images.numel() == 0:
            raise UserError(f"the batch is empty: shape {tuple(images.shape)}", code="image-shape")
        return images.to(self.device, torch.float32, non_blocking=True)

    @contextmanager
    def refusing_small(self, images: Tensor) -> Iterator[None]:
        """Explain the error of a layer whose kernel is larger than the images."""
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            height, width = images.shape[-2:]
            resized = self.preprocessing.size is not None or self.preprocessing.crop is not None
            kernels = [max(layer.kernel_size) for layer in self.modules() if isinstance(layer, nn.Conv2d)]
            if resized or min(height, width) >= max(kernels, default=1):
                raise
            small = f"images of {height} x {width} pixels are too small for {self.name}"
            raise UserError(f"{small}: use larger ones, or a model that resizes them", code="image-shape") from error

    def prepare(self, images: Tensor) -> Tensor:
        """Resize images in [0, 1] to the model's input; methods augment the result."""
        return self.preprocessing.resize(images)

    def normalise(self, prepared: Tensor) -> Tensor:
        return (prepared - self.mean) / self.std

    def forward(self, prepared: Tensor) -> Output:
        """Predict prepared images: one pass, or a few where an alignment finds a batch of another domain."""
        require_dense(prepared)
        if prepared.is_meta and not self.mean.is_meta:
            raise UserError("images must have pixels; got a tensor on the meta device", code="image-type")
        if self.alignment is None:
            return self.run(prepared)
        return self.alignment.look(self.run, prepared)

    def run(self, prepared: Tensor) -> Output:
        """Normalise prepared images and run the network once."""
        if self.head is None:
            logits = find_logits(self.network(self.normalise(prepared)))
            return Output(logits, logits[:, :0])
        entered: list[Tensor] = []
        with watching(self.head_layer, note=lambda layer, given, _: entered.append(pooled(given, layer))):
            logits = find_logits(self.network(self.normalise(prepared)))
        if not entered:
            unused = f"layer {self.head!r} of {self.name} is not used in a pass"
            raise UserError(f"{unused}: name the classifier with head=...", code="no-head")
        return Output(logits, entered[-1])

    def plain(self) -> nn.Module:
        """A module that returns the logits of prepared images in [0, 1], for export as a graph."""
        if self.alignment is not None and self.alignment.sites:
            reason = "passes a batch again if it is of another domain, which a fixed graph cannot do"
            remedy = "adapt with sites=0, or deploy the folder with load_model"
            raise UserError(f"{self.name} {reason}: {remedy}", code="not-exportable")
        return LogitsModule(self).eval()

    @property
    def head_layer(self) -> nn.Module:
        if self.head is None:
            raise UserError(f"the head of {self.name} is unknown: name it with head=...", code="no-head")
        return self.network.get_submodule(self.head)

    @property
    def head_weight(self) -> Tensor:
        """The weight of the head, (C, D)."""
        return self.head_layer.get_parameter("weight").flatten(1)

    @property
    def feature_size(self) -> int:
        return 0 if self.head is None else self.head_weight.shape[1]

    @property
    def classes(self) -> int:
        return self._classes if self._classes is not None else self.head_weight.shape[0]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes: given, from the network's configuration, or numbers."""
        labels = getattr(config_of(self.network), "id2label", None) or {}
        own = tuple(str(labels[number]) for number in sorted(labels))
        numbers = tuple(map(str, range(self.classes)))
        return self._class_names or (own if len(own) == self.classes else numbers)

    def name_classes(self, names: Sequence[str]) -> None:
        if isinstance(names, str) or len(names) != self.classes:
            count = "one text" if isinstance(names, str) else len(names)
            raise UserError(f"{self.name} has {self.classes} classes, but classes= has {count}", code="class-names")
        self._class_names = tuple(names)

    @property
    def channels(self) -> int:
        return len(self.preprocessing.mean)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def empty_image(self) -> Tensor:
        """A black image of the model's input size, for passes that examine the network."""
        height, width = self.preprocessing.input_size or (32, 32)
        return torch.zeros(1, self.channels, height, width, device=self.device)

    def norm_layers(self) -> list[tuple[str, nn.Module]]:
        """LayerNorm, GroupNorm and BatchNorm layers with their names."""
        return [(name, module) for name, module in self.named_modules() if isinstance(module, NORM_LAYERS)]

    def attention_linears(self) -> list[list[str]]:
        """Linear layers inside attention modules, grouped by the input that they share.

        Query, key and value of one attention read the same tensor, so they form one group, whether the
        implementation fuses them into one layer or keeps them apart.
        """
        inside = tuple(f"{name}." for name, module in self.named_modules() if is_attention(module))
        linears = {n: m for n, m in self.named_modules() if isinstance(m, nn.Linear) and n.startswith(inside)}
        return self._grouped_by_input(linears)

    def convolutions(self) -> list[list[str]]:
        """Convolutions, grouped by the input that they share."""
        layers = {n: m for n, m in self.named_modules() if isinstance(m, nn.Conv2d) and m.groups == 1}
        return self._grouped_by_input(layers)

    @torch.no_grad()
    def _grouped_by_input(self, layers: Mapping[str, nn.Module]) -> list[list[str]]:
        names = {layer: name for name, layer in layers.items()}
        groups: dict[int, list[str]] = {}
        alive: list[Tensor] = []  # an id may be used again once its tensor is freed

        def note(layer: nn.Module, given: Tensor, _: object) -> None:
            alive.append(given)
            groups.setdefault(id(given), []).append(names[layer])

        training = self.training
        try:
            with watching(*names, note=note):
                self.eval()(self.empty_image())
        finally:
            self.train(training)
        return list(groups.values())

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that identify the weights."""
        digest = hashlib.blake2b(digest_size=6)
        weights = self.network.state_dict()
        if self.alignment is not None:
            weights |= {f"alignment.{name}": value for name, value in self.alignment.state_dict().items()}
        for name, value in sorted(weights.items()):
            digest.update(name.encode() + tensor_bytes(value))
        return digest.hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint folder: configuration, safetensors weights, preprocessor."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        network: Any = self.network
        if hasattr(network, "save_pretrained"):
            network.save_pretrained(folder)
        else:
            save_tensors(tensors_of(network), folder / "model.safetensors")
            (folder / "config.json").write_text(json.dumps(self._config(), indent=2) + "\n")
        write_preprocessor(self.preprocessing, folder)
        if self.alignment is not None:
            self.alignment.save(folder)

    def _config(self) -> dict[str, object]:
        """What is needed to make the network again; of a user's own module, its name."""
        for name, kind in ARCHITECTURES.items():
            if type(self.network) is kind:
                return {"model_type": name, **self.network.config}
        about = timm_models.describe(self.network, self.classes)
        about = about or {"model_type": MODEL_TYPE, "module": type(self.network).__name__}
        return {**about, "head": self.head, "classes": list(self._class_names) or None}


def tensor_bytes(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


class LogitsModule(nn.Module):
    """A copy of the network of a model, with the normalisation before it."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: VisionModel) -> None:
        super().__init__()
        self.network = copy.deepcopy(model.network).eval()
        self.register_buffer("mean", model.mean.clone())
        self.register_buffer("std", model.std.clone())
        self.dense = model.task == "segmentation"

    def forward(self, prepared: Tensor) -> Tensor:
        """(N, 3, H, W) in [0, 1], of the model's size, to logits; maps are enlarged to that size."""
        logits = find_logits(self.network((prepared - self.mean) / self.std))
        if not self.dense:
            return logits
        return F.interpolate(logits, prepared.shape[-2:], mode="bilinear", align_corners=False)
