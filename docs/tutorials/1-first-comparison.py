# %% [markdown]
# # A first comparison, and how to read it
#
# Thirteen people wrote the digits that scikit-learn ships. Here each of them is a *client*: somebody who holds data and does not
# give them away. Is each better off alone, with one model for all, or with a *personalized* model, which is trained together
# and fits to its owner?

# %%
import fedgraft as fg

comparison = fg.compare(
    ["ditto", "fedper"], dataset="digits", clients=13, partition="blocks:train=40", model="mlp:64",
    rounds=10, batch_size=10, evaluate_every=5, seeds=2, workers=2, out="digits", progress=False,
)  # fmt: skip
print(comparison)

# %% [markdown]
# A row is a method. `local` (everybody alone) and `fedavg` (one model for all) are always there: a personalized method has
# to beat both.
#
# - **received** is the model that a client gets from the server; **trained** is what it holds after its last local
#   training. Papers differ in which they report. For `local` the two are the same.
# - **mean** is the mean over clients, each counting the same; **pooled** is over all test samples.
# - **±** is the standard deviation over the seeds. Each seed draws other starting weights and batches, the same for every method.
# - **gain** counts the clients that are better (+) and worse (-) off than alone, over all seeds.
# - **bytes** are what one client sends and gets in a round.
#
# ## Is a difference more than noise?
# The second table compares two methods client by client, on the same test samples. Where the interval does not reach zero, and p
# is small, the difference is more than noise ([how it is tested](../report.md#is-a-difference-more-than-noise)).
#
# ## Does joining pay, and for whom?
# A mean can hide that somebody loses. The best method, for each client:

# %%
from fedgraft.report.sentences import by_client

print("\n".join(by_client(comparison)))

# %% [markdown]
# ## All figures
# `frame()` has a row for every method, seed, client and metric, for your own plots; with pandas it is a `DataFrame`.

# %%
comparison.frame().head()

# %% [markdown]
# The same on the command line, with a report that opens in a browser:
#
# ```console
# fedgraft compare ditto fedper --dataset digits --clients 13 --partition blocks:train=40 --model mlp:64 --rounds 10 \
#     --batch-size 10 --seeds 2 --by-client --report
# ```
#
# Next: [tables of your own](tables.md).
