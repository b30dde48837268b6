# %% [markdown]
# # Tables of your own: one CSV file for each hospital
#
# This tutorial is for people who have tables at several sites and want to know what joint training would bring each of them. It
# expects a folder with one CSV file for each site. Here three hospitals are made up; with real files, skip the first cell. The
# hospitals see different patients, and one of them measures blood pressure in another unit.

# %%
import csv
from pathlib import Path

import numpy as np

rng = np.random.default_rng(0)
Path("hospitals").mkdir()
for name, older, unit in (("basel", 0, 1.0), ("ulm", 8, 1.0), ("graz", 15, 0.133)):
    with Path(f"hospitals/{name}.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["age", "sex", "pressure", "disease"])
        for _ in range(120):
            age = rng.normal(50 + older, 10)
            pressure = rng.normal(120 + 0.5 * (age - 50), 10)
            ill = rng.random() < 1 / (1 + np.exp(-(age - 55) / 5 - (pressure - 120) / 10))
            measured = "" if rng.random() < 0.1 else f"{pressure * unit:.1f}"
            rows.writerow([f"{age:.0f}", rng.choice(["f", "m"]), measured, "yes" if ill else "no"])

# %% [markdown]
# ## Look before you train
# `inspect` shows the sites, the columns, the classes and the missing cells. It warns about columns that reveal the target or
# identify the site.

# %%
# !fedgraft inspect hospitals --target disease

# %% [markdown]
# ## Compare
# The rows of different sites are never pooled: numbers are scaled, and words and missing cells encoded, with counts and sums that
# each site reports ([how](../data.md)). A quarter of each site's rows is set aside for testing.

# %%
import fedgraft as fg

comparison = fg.compare(
    ["ditto", "fedper"], dataset="hospitals", target="disease", rounds=10, seeds=2, workers=2, out="hospitals-runs",
    progress=False,
)  # fmt: skip
print(comparison)

# %% [markdown]
# ## What does each hospital gain?

# %%
from fedgraft.report.sentences import by_client

print("\n".join(by_client(comparison)))

# %% [markdown]
# Thirty test rows say little about one hospital, and the intervals show it: *too close to tell* is an honest answer. More rows
# make them narrower. `fedgraft recommend hospitals --target disease` tries many methods and chooses one on
# validation data ([should a site join](../recommend.md)).
#
# ## Use a hospital's own model
# The model of a site predicts the target for new rows:

# %%
Path("new.csv").write_text("age,sex,pressure\n71,m,150\n34,f,\n")
# !fedgraft predict hospitals-runs/ditto-seed0 new.csv --client ulm

# %% [markdown]
# `fedgraft export` writes the model as a folder that can be used without fedgraft ([models out of a run](../models-out.md)). Next:
# [images in folders](images.md).
