"""The networks of this package, by the name that `config.json` gives them."""

from torch import nn

from testdg.models.resnet import CifarResNet
from testdg.models.tiny import TinyCNN, TinyViT

ARCHITECTURES: dict[str, type[TinyViT] | type[TinyCNN] | type[CifarResNet]] = {
    "testdg-tiny-vit": TinyViT,
    "testdg-tiny-cnn": TinyCNN,
    "testdg-cifar-resnet": CifarResNet,
}


def architecture_name(network: nn.Module) -> str | None:
    """Name under which one of our networks is written to `config.json`; None for any other network."""
    return next((name for name, kind in ARCHITECTURES.items() if type(network) is kind), None)
