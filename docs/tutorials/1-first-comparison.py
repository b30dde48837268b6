# %% [markdown]
# # A first comparison, and how to read it
#
# This tutorial compares methods on an included dataset and explains the tables; it needs no knowledge of federated learning.
#
# Thirteen people wrote the digits that scikit-learn ships, one after another. Here the data are cut into thirteen blocks, about one
# for each person, and each block belongs to a *client*: a participant that holds data and does not give them away. Is a client better
# off alone, with one model for all, or with a *personalized* model, which is trained together with the others and fitted to its owner?

# %%
import fedgraft as fg

comparison = fg.compare(
    ["ditto", "fedper"], dataset="digits", clients=13, partition="blocks:train=40", model="mlp:64",
    rounds=10, batch_size=10, evaluate_every=5, seeds=2, workers=2, out="digits", progress=False,
)  # fmt: skip
print(comparison)

# %% [markdown]
# Each row is a method. `local` (every client trains alone) and `fedavg` (one model for all) are in every comparison: a personalized
# method has to beat both.
#
# - **received** is the model that a client gets from the server; **trained** is the client's model after its last local
#   training. Papers differ in which of the two they report. For `local` they are the same.
# - **mean** is the mean over clients, each counting the same; **pooled** is over all test samples.
# - **±** is the standard deviation over the seeds. Each seed gives other starting weights and batches, the same for every method.
# - **gain** counts the clients that are better (+) and worse (-) off than alone, over all seeds.
# - **bytes** are what one client sends and receives in a round.
#
# ## Is a difference more than noise?
# The second table compares two methods client by client, on the same test samples. Where the interval does not reach zero, and p
# is small, the difference is more than noise ([how it is tested](../report.md#is-a-difference-more-than-noise)).
#
# ## Does joining pay, and for whom?
# A mean can hide that some clients lose. This is what each client gains from the best method:

# %%
from fedgraft.report.sentences import by_client

print("\n".join(by_client(comparison)))

# %% [markdown]
# ## All figures
# `frame()` has a row for every method, seed, client and metric, for your own plots. With pandas installed it is a `DataFrame`.

# %%
comparison.frame().head()

# %% [markdown]
# The same comparison on the command line, with a report that opens in a browser:
#
# ```console
# fedgraft compare ditto fedper --dataset digits --clients 13 --partition blocks:train=40 --model mlp:64 --rounds 10 \
#     --batch-size 10 --seeds 2 --by-client --report
# ```
#
# Next: [tables of your own](tables.md).
