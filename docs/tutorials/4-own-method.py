# %% [markdown]
# # Write a method in one file, check it, compare it
#
# This tutorial is for researchers who want to add a method of their own. A method says which part of the model is shared, what each
# client gets, how a client trains, and which model it uses in the end. Whatever the method does not define is plain federated averaging
# and plain local training. The method here shares the whole model, and lets each client start its training at a point between its own
# last model and the one from the server:
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
# `assemble` is one of the [hooks](../architecture.md#the-hooks), the functions by which a method changes the training loop. `client.own`
# are the weights after the client's last training. A model is one flat vector, so the formula is the code.
#
# ## Check it
# fedgraft's own methods pass these checks: does every hyper-parameter change the result? Do clients that are not selected stay as they
# were? Does the method work for clients with one sample or one class? Is the result bit-identical for any number of workers? Can a run
# be resumed?

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
# A class that is defined in the notebook works as well: `fg.compare([Between(beta=0.9)], ...)`. The advantage of a file is that
# `fedgraft resume`, `fedgraft deploy` and your readers can use it. [The architecture](../architecture.md) describes what else a method
# can do; each [method's page](../reference/methods/index.md) is an example.
