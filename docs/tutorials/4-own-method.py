# %% [markdown]
# # Write a method in one file, check it, compare it
#
# A method says what is shared, what each client gets, how it trains, and which model is its own. Whatever it does not say is
# plain federated averaging or plain local training. This one shares everything, and lets each client start its training
# between its own last model and the one from the server:
#
#     start_i = (1 - beta) received + beta own_i

# %%
# %%writefile mine.py
from dataclasses import dataclass

import torch

import fedgraft as fg


@dataclass(frozen=True)
class Between(fg.FedAvg):
    """Training begins between the client's own last model and the server's."""

    name = "between"
    idea = "a client starts between its own last model and the one it receives"
    headline = "trained"

    beta: float = fg.hyper(0.5, "weight of the client's own last model", low=0.0, high=1.0)

    def assemble(self, client, message):
        received = super().assemble(client, message)
        return torch.lerp(received, client.own, self.beta)


# %% [markdown]
# `assemble` is one of the [hooks](../architecture.md#the-hooks). `client.own` are the weights that the client's last training
# left; a model is one flat vector, so the formula is the code.
#
# ## Check it
# The checks that fedgraft's own methods pass: does every hyper-parameter act, do absent clients stay untouched, are clients with
# one sample or one class served, do the bits depend on the number of workers, can a run be resumed?

# %%
# !fedgraft check ./mine.py:Between

# %% [markdown]
# ## Compare it

# %%
import fedgraft as fg

comparison = fg.compare(
    ["./mine.py:Between", "./mine.py:Between:beta=0.9", "ditto"], dataset="digits", clients=6, partition="dirichlet:0.3",
    model="mlp:32", rounds=8, seeds=2, workers=2, out="between-runs", progress=False,
)  # fmt: skip
print(comparison)

# %% [markdown]
# A class that is defined in the notebook works as well: `fg.compare([Between(beta=0.9)], ...)`. The file has the advantage that
# `fedgraft resume`, `fedgraft deploy` and your readers can use it. What a method may do beyond this stands in
# [the architecture](../architecture.md); each [method's page](../reference/methods/index.md) is an example.
