# %% [markdown]
# # Tune, and report for a paper
#
# A table in a paper has to answer three questions: were all methods tuned with the same effort, on data that the table is not
# about, and are the differences more than noise? This notebook goes from hyper-parameters to a LaTeX table; it is small so that
# it ends in a minute. `pip install 'fedgraft[tune,plots]'` brings what it needs.
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
# Each method has the same number of trials (`budget`), the first of which has its defaults. A trial changes the learning rate and
# the numbers that the method declares. What judges is the mean over clients **on validation data**, which are a fifth of every
# client's training samples; test samples are taken away before a trial begins. In earnest, use 30 trials or more.

# %%
searched = {name: value for name, value in setting.items() if name != "progress"}
tuned = fg.tune(["ditto", "fedper"], budget=4, out="tuning", **searched)
for each in tuned:
    print(each.command)

# %% [markdown]
# The learning rate belongs to the run and not to the method, so that methods are compared on the same steps. Where the search
# ended in different rates, compare under each of them: a *sweep* makes one comparison for each rate, and `local`, `fedavg` and
# `fedavg-ft` are in all of them.

# %%
rates = sorted({float(f"{each.best.values['lr']:.3g}") for each in tuned})
found = fg.sweep(
    [each.text for each in tuned] + ["fedavg-ft"], {"lr": rates}, seeds=3, out="paper", validation=0.2, **setting
)
print(found)

# %% [markdown]
# The best rate of each method is chosen by its validation figures, which are in bold. With two rates or more, say so in the
# caption.
#
# ## The table
# Three seeds draw three partitions, starts and orders of batches. `fedgraft table` takes a comparison's directory, and writes LaTeX,
# Markdown, CSV or JSON:

# %%
from pathlib import Path

place = sorted(path.parent for path in Path("paper").rglob("comparison.json"))[0]
# !fedgraft table {place} --format latex

# %% [markdown]
# ## What a reviewer asks
#
# - *At which point was a model tested?* As received or as trained: [the table has both](../points.md).
# - *Is it better than training alone, and than FedAvg with fine-tuning?* [Why these are in every table](../baselines.md).
# - *Is the difference more than noise?* The paired test, with its correction for several methods:

# %%
comparison = fg.read(place)
for pair in comparison.pairs():
    print(pair)

# %% [markdown]
# - *Can I repeat it?* Each run's directory has `config.toml`; `fedgraft run --config DIR/config.toml` repeats it, [to the same
#   bits](../determinism.md) on the same kind of machine. Publish the directory, or `fedgraft table DIR --format json`.
# - *Who loses?* The report has every client:

# %%
comparison.report("report.html")

# %% [markdown]
# Figures for the paper, as SVG and PNG: `fedgraft report DIR --plots figures`. On a cluster, see
# [many runs](../clusters.md). Next: [three machines](deploy.md).
