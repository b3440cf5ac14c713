"""A classifier of your own, adapted in a loop of your own: `python examples/own_classifier.py [IMAGES]`."""

import sys
from itertools import pairwise

import torch
from torch import Tensor, nn

import testdg


class MyNet(nn.Module):
    """Any module that gives logits will do; this one knows nothing of testdg."""

    def __init__(self) -> None:
        super().__init__()
        widths = [3, 16, 32, 64]
        blocks = [nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in pairwise(widths)]
        self.encoder = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.encoder(images))


def train(net: nn.Module, images: Tensor, labels: Tensor, epochs: int = 8) -> None:
    """Train on clean images; yours is trained already."""
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(epochs):
        for part in torch.randperm(len(images)).split(50):
            loss = nn.functional.cross_entropy(net(images[part]), labels[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


torch.manual_seed(0)
count = int([*sys.argv, 400][1])
benchmark = testdg.load_benchmark("digits-c", images=count, domains=["gaussian_noise", "fog", "contrast"])
clean = benchmark.train()
net = MyNet()
train(net, clean.images / 255, clean.labels)

as_it_is = testdg.Preprocessing((32, 32))  # mean 0, deviation 1: what it was trained with
source = testdg.adapt(net, "source", preprocessing=as_it_is)
adapter = testdg.adapt(net, "testdg_aligned", preprocessing=as_it_is, preset="digits-c")
adapter.warm_up([clean.images[:256] / 255])  # clean images, without labels

wrong = {"source": 0, "adapted": 0}
seen = 0
for batch in benchmark.stream(batch_size=20):  # your camera: float images in [0, 1], (N, 3, H, W)
    wrong["adapted"] += int((adapter(batch.images).argmax(1) != batch.labels).sum())
    wrong["source"] += int((source(batch.images).argmax(1) != batch.labels).sum())
    seen += len(batch.labels)
for name, errors in wrong.items():
    print(f"{name:<8} error {100 * errors / seen:.1f} %")
