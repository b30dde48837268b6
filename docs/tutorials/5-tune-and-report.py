# %% [markdown]
# # Tune, and report for a paper
#
# This tutorial is for authors of papers: it goes from hyper-parameters to a LaTeX table. Such a table has to answer three questions: were
# all methods tuned with the same effort? Were they tuned on data that are not in the table? Are the differences more than noise? The
# example is small, so that it ends in a minute. `pip install 'fedgraft[tune,plots]'` installs what it needs.
#
# ## One setting for all

# %%
import fedgraft as fg

setting = {
    "dataset": "digits", "clients": 6, "partition": "dirichlet:0.3", "model": "mlp:32", "rounds": 8, "lr": 0.05,
    "workers": 2, "evaluate_every": 4, "progress": False,
}  # fmt: skip

# %% [markdown]
# ## Tune on validation data
# Each method has the same number of trials (`budget`); the first one has the method's defaults. A trial changes the learning rate and
# the hyper-parameters that the method declares. Trials are ranked by the mean over clients **on validation data**, a fifth of every
# client's training samples; test samples are removed before a trial begins. For a real paper, use 30 trials or more.

# %%
searched = {name: value for name, value in setting.items() if name != "progress"}
tuned = fg.tune(["ditto", "fedper"], budget=4, out="tuning", **searched)
for each in tuned:
    print(each.command)

# %% [markdown]
# The learning rate is a setting of the run and not of the method, so that all methods of a comparison train with the same one. Where the
# search ended in different rates, compare under each of them: a *sweep* makes one comparison for each rate, and `local`, `fedavg` and
# `fedavg-ft` are in all of them.

# %%
rates = sorted({float(f"{each.best.values['lr']:.3g}") for each in tuned})
found = fg.sweep(
    [each.text for each in tuned] + ["fedavg-ft"], {"lr": rates}, seeds=3, out="paper", validation=0.2, **setting
)
print(found)

# %% [markdown]
# The best rate of each method is chosen by its validation results, which are in bold. With two rates or more, say so in the
# caption.
#
# ## The table
# Three seeds give three partitions, initial weights and orders of batches. `fedgraft table` takes a comparison's directory and writes
# LaTeX, Markdown, CSV or JSON:

# %%
from pathlib import Path

place = sorted(path.parent for path in Path("paper").rglob("comparison.json"))[0]
# !fedgraft table {place} --format latex

# %% [markdown]
# ## What a reviewer asks
#
# - *When was a model tested?* As received from the server, or after local training: [the table has both](../points.md).
# - *Is it better than training alone, and than FedAvg with fine-tuning?* [Why these are in every table](../baselines.md).
# - *Is the difference more than noise?* The paired test, with its correction for several methods:

# %%
comparison = fg.read(place)
for pair in comparison.pairs():
    print(pair)

# %% [markdown]
# - *Can I reproduce it?* Each run's directory has `config.toml`; `fedgraft run --config DIR/config.toml` repeats the run, [bit for
#   bit](../determinism.md) on the same kind of machine. Publish the directory, or `fedgraft table DIR --format json`.
# - *Which clients lose?* The report shows every client:

# %%
comparison.report("report.html")

# %% [markdown]
# Figures for the paper, as SVG and PNG: `fedgraft report DIR --plots figures`. On a cluster, see
# [many runs](../clusters.md). Next: [three machines](deploy.md).
