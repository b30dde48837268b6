# %% [markdown]
# # Tables of your own: one CSV file for each hospital
#
# A folder with one CSV file for each site is a federation. Here we make three hospitals up; with real ones, skip the first cell.
# The hospitals see different patients, and one of them measures blood pressure in other units.

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
# `inspect` shows the sites, the columns, the classes and the missing cells, and warns of columns that give the target away or
# name the site.

# %%
# !fedgraft inspect hospitals --target disease

# %% [markdown]
# ## Compare
# No site's rows are pooled: words, dates and missing cells are prepared from counts and sums that the sites announce
# ([how](../data.md)). A quarter of each site's rows is put aside for the test.

# %%
import fedgraft as fg

comparison = fg.compare(
    ["ditto", "fedper"], dataset="hospitals", target="disease", rounds=10, seeds=2, workers=2, out="hospitals-runs",
    progress=False,
)  # fmt: skip
print(comparison)

# %% [markdown]
# ## What is in it for each hospital?

# %%
from fedgraft.report.sentences import by_client

print("\n".join(by_client(comparison)))

# %% [markdown]
# Thirty test rows say little about one hospital, and the intervals say so: *too close to tell* is an honest answer. More
# rows, or more seeds, make them narrower. `fedgraft recommend hospitals --target disease` asks the question on validation
# data over many methods ([should a site join](../recommend.md)).
#
# ## Use a hospital's own model
# The model of a site answers questions about new rows:

# %%
Path("new.csv").write_text("age,sex,pressure\n71,m,150\n34,f,\n")
# !fedgraft predict hospitals-runs/ditto-seed0 new.csv --client ulm

# %% [markdown]
# `fedgraft export` writes it as a folder that needs no fedgraft ([models out of a run](../models-out.md)). Next:
# [images in folders](images.md).
