# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Watch a model adapt
#
# A small model that was trained on clean digits meets snow, frost, fog and glaring light, one after the other. It does
# not know when the conditions change, and it sees no label. `jupytext --to ipynb watch_a_model_adapt.py` makes a
# notebook of this file; Jupyter opens it directly where jupytext is installed.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import torch

import testdg
from testdg.runs import source_model

images = int(os.environ.get("IMAGES", "200"))
domains = ["snow", "frost", "fog", "brightness"]
benchmark = testdg.load_benchmark("digits-c", images=images, domains=domains)
model = source_model(benchmark)  # trained once, then cached

# %% [markdown]
# This is what it sees: the same digits under each condition.

# %%
figure, axes = plt.subplots(len(domains), 8, figsize=(8, 4.4))
for row, domain in zip(axes, domains, strict=True):
    shown, labels = benchmark.domain(domain).read(0, 8)
    for axis, image, label in zip(row, shown, labels, strict=True):
        axis.imshow(image.permute(1, 2, 0))
        axis.set_title(int(label), fontsize=8)
        axis.axis("off")
figure.tight_layout()

# %% [markdown]
# Two adapters around the same model: one that learns nothing, and TestDG aligned, which looks at 256 clean images
# before the stream begins. An adapter is called with a batch; it predicts, and then it learns.

# %%
adapters = {
    "Source": testdg.adapt(model, "source"),
    "TestDG aligned": testdg.adapt(model, "testdg_aligned", preset="digits-c"),
}
adapters["TestDG aligned"].warm_up([benchmark.train().images[:256] / 255])

right = {name: [] for name in adapters}
sure = {name: [] for name in adapters}
for batch in benchmark.stream(batch_size=20):
    for name, adapter in adapters.items():
        logits = adapter(batch.images)
        right[name] += (logits.argmax(1) == batch.labels).tolist()
        sure[name] += logits.softmax(1).amax(1).tolist()

# %% [markdown]
# The error over the stream, as a running mean over 40 images, and how sure the model is. Lines mark where the
# conditions change.


# %%
def running_mean(values, width=40):
    """The mean of the last `width` values at each place."""
    sums = np.cumsum(np.concatenate([np.zeros(width), np.asarray(values, float)]))
    counts = np.minimum(np.arange(1, len(values) + 1), width)
    return (sums[width:] - sums[:-width]) / counts


figure, (above, below) = plt.subplots(2, 1, figsize=(8, 5), sharex=True)
for name in adapters:
    above.plot(100 * (1 - running_mean(right[name])), label=name)
    below.plot(running_mean(sure[name]), label=name)
for axis in (above, below):
    for number in range(1, len(domains)):
        axis.axvline(number * images, color="grey", linestyle=":")
above.set_ylabel("error, %")
below.set_ylabel("confidence")
below.set_xlabel("image of the stream")
above.legend()
figure.tight_layout()

# %% [markdown]
# The adapted model can be inspected, saved and reset.

# %%
adapter = adapters["TestDG aligned"]
clean = benchmark.test().images[:200] / 255
print("clean images that are still predicted as before:", end=" ")
same = adapter.predict(clean).argmax(1) == adapters["Source"].predict(clean).argmax(1)
print(f"{100 * same.float().mean():.0f} %")
before = adapter.predict(clean)
adapter.reset()  # back to the source, bit for bit
print("after reset they are predicted otherwise:", not torch.equal(before, adapter.predict(clean)))

# %%
for name, hits in right.items():
    print(f"{name:<15} error {100 * (1 - np.mean(hits)):.1f} %")
