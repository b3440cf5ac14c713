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
# # Compare methods on your data
#
# Pictures of yours in a `<class>/<file>` tree, a model for them, and some methods: which one helps when the pictures
# get noisy, foggy or dark? `image-folder` puts your pictures under the usual corruptions, so labels of clean pictures
# are enough. Set `DATA` and `MODEL`; without them, digits are written to a folder first, so that this runs as it is.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

import testdg
from testdg.runs import run, source_model

images = int(os.environ.get("IMAGES", "100"))
domains = ["gaussian_noise", "snow", "fog", "contrast"]
methods = ["source", "tent", "eata", "align", "testdg_aligned"]


# %%
def write_digits(place: Path) -> tuple[Path, Path]:
    """A folder of clean pictures by class, some of them for `train/`, and a model folder."""
    digits = testdg.load_benchmark("digits-c")
    for part, samples in (("train", digits.train()), ("val", digits.test())):
        for number, (pixels, label) in enumerate(zip(samples.images[:300], samples.labels, strict=False)):
            folder = place / "digits" / part / str(int(label))
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{number:04}.png")
    source_model(digits).save(place / "model")
    return place / "digits", place / "model"


given = "DATA" in os.environ
data, model = (os.environ["DATA"], os.environ["MODEL"]) if given else write_digits(Path("compare-example"))

# %% [markdown]
# One run for each method, on the same stream. A run has a folder, is resumed when it was stopped, and is read back
# when it is complete, so this cell can be run again and again.

# %%
stream = {"data": data, "model": model, "images": images, "domains": domains, "severity": 1, "batch_size": 20}
results = {name: run("image-folder", name, **stream, out="compare") for name in methods}
for name, result in results.items():
    print(f"{name:<15} mean error {result.mean_score:5.1f} %   {result.seconds:5.1f} s")

# %% [markdown]
# Error by domain. A method that is good on average may still lose somewhere.

# %%
figure, axis = plt.subplots(figsize=(8, 3.6))
width = 0.8 / len(results)
for place, (name, result) in enumerate(results.items()):
    errors = [domain.error for domain in result.domains]
    axis.bar([number + place * width for number in range(len(errors))], errors, width, label=name)
axis.set_xticks([number + 0.4 - width / 2 for number in range(len(domains))], domains)
axis.set_ylabel("error, %")
axis.legend(ncols=3, fontsize=8)
figure.tight_layout()

# %% [markdown]
# With seeds, intervals and a page: `testdg bench --benchmark image-folder --data DATA --model MODEL --methods
# tent,testdg_aligned --seeds 0,1,2`, then `testdg report runs`.
