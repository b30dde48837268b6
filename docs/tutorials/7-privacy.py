# %% [markdown]
# # A run with privacy
#
# What a client sends was made from its data, and can tell something about them. Two means bound that, for different observers:
#
# - **Differential privacy** bounds what anybody who sees a client's messages, or the final model, can tell about a single training
#   sample. The price is accuracy.
# - **Secure aggregation** lets the server see the sum of the clients' messages, and no single one. The price is a few more messages.
#
# `pip install 'fedgraft[privacy]'` brings the accountant that adds up what a run costs in privacy.
#
# ## A budget for the whole run
# `epsilon` and `delta` are for all rounds together; the smaller epsilon, the less can be told. The noise that keeps to them is
# worked out before the first round, for each client's number of samples.

# %%
import fedgraft as fg

setting = {
    "dataset": "digits", "clients": 5, "partition": "dirichlet:1", "model": "mlp:32", "rounds": 6, "lr": 0.2,
    "batch_size": 50, "workers": 2, "progress": False,
}  # fmt: skip
private = fg.run("fedper", epsilon=4, delta=1e-5, out="private", **setting)
plain = fg.run("fedper", out="plain", **setting)
for name, run in (("epsilon 4", private), ("no privacy", plain)):
    print(f"{name}: mean accuracy {run.value:.3f}")

# %% [markdown]
# How much accuracy it costs depends on the number of samples at a client most of all: noise is added to the sum of the samples'
# gradients, and a client with few samples has a small sum.
#
# ## What was spent
# The result has the noise, the steps and the epsilon of each client:

# %%
private.result["privacy"]

# %% [markdown]
# ## Is the gain from joining still there?
# Training alone sends nothing, and needs no noise. So the comparison that counts is a private federation against training alone
# *without* noise, and fedgraft makes it so: `local` is never noised.

# %%
comparison = fg.compare(["fedper", "ditto"], epsilon=4, seeds=2, out="private-comparison", **setting)
print(comparison)

# %% [markdown]
# If `gain` is mostly minus, privacy at this epsilon leaves nothing to be gained from joining: an honest answer, and a frequent one
# with few samples. Ditto's personal model never leaves its client, so it is trained without noise, beside a shared one that is
# noised.
#
# ## What cannot be private is refused
# A method that sends something else of the samples, such as class means, is refused in a sentence:

# %%
try:
    fg.run("fedproto", epsilon=4, **setting)
except fg.UserError as error:
    print(error)

# %% [markdown]
# ## Hide single messages from the server
# `--stage secure` goes together with it, in a simulation with the same arithmetic and on real machines with masks that cancel in the
# sum:

# %%
secure = fg.run("fedper", stages=["secure"], out="secure", **setting)
print(f"mean accuracy {secure.value:.3f}, without the stage {plain.value:.3f}")

# %% [markdown]
# What exactly is guaranteed, what is not, and what was measured: [differential privacy](../privacy.md) and
# [secure aggregation](../secure-aggregation.md).
