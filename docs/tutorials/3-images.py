# %% [markdown]
# # Images in folders
#
# This tutorial compares methods on images of your own. They are expected in one folder for each site, with one folder for each class
# in it: `sites/SITE/CLASS/IMAGE.png`. Here scikit-learn's digits are written into such folders, for three sites that mostly see
# different digits; with images of your own, skip this cell.

# %%
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

digits, rng = load_digits(), np.random.default_rng(0)
for number, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
    if label > 5:
        continue
    site = ("lens", "mirror", "prism")[label // 2 if rng.random() < 0.8 else rng.integers(3)]
    folder = Path("sites") / site / str(label)
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray((pixels * 15.9).astype(np.uint8)).save(folder / f"{number}.png")

# %%
# !fedgraft inspect sites

# %% [markdown]
# ## Compare
# A network for images of this size is chosen automatically (`model="auto"`). `resize=32` would scale the images, and `augment=True`
# train on random crops and mirror images of them.

# %%
import fedgraft as fg

comparison = fg.compare(
    ["fedper", "fedbn"], dataset="sites", rounds=6, seeds=1, workers=2, out="images-runs", progress=False
)
print(comparison)

# %% [markdown]
# ## A site's own network
# It is a plain `torch.nn.Module`:

# %%
run = comparison.runs["fedper"][0]
network = run.module("lens")
print(network)

# %% [markdown]
# Next: [a method of your own](own-method.md).
