# %% [markdown]
# # A run with privacy
#
# This tutorial shows how to limit what others can learn about a client's data, and what that costs. What a client sends was computed from
# its data and can reveal something about them. Two techniques limit that, against different observers:
#
# - **Differential privacy** bounds what anybody who sees a client's messages, or the final model, can learn about a single training
#   sample. It costs accuracy.
# - **Secure aggregation** lets the server see the sum of the clients' messages, and no single one. It costs a few more messages, and uploads
#   twice as large.
#
# `pip install 'fedgraft[privacy]'` installs the accountant, which computes how much privacy a run spends.
#
# ## A budget for the whole run
# `epsilon` and `delta` are for all rounds together; the smaller epsilon, the less can be learned about a sample. The noise that is needed
# for them is computed before the first round, from each client's number of samples.

# %%
import fedgraft as fg

setting = {
    "dataset": "digits", "clients": 5, "partition": "dirichlet:1", "model": "mlp:32", "rounds": 6, "lr": 0.2,
    "batch_size": 50, "workers": 2, "progress": False,
}  # fmt: skip
private = fg.run("fedper", epsilon=4, delta=1e-5, out="private", **setting)
plain = fg.run("fedper", out="plain", **setting)
for name, run in (("epsilon 4", private), ("no privacy", plain)):
    print(f"{name}: pooled accuracy {run.value:.3f}")

# %% [markdown]
# How much accuracy it costs depends mostly on the number of samples at a client: noise is added to the sum of the samples'
# gradients, and a client with few samples has a small sum.
#
# ## What was spent
# The result contains the noise, the steps and the epsilon of each client:

# %%
private.result["privacy"]

# %% [markdown]
# ## Is the gain from joining still there?
# Training alone sends nothing and needs no noise. So the comparison that matters is a private federation against training alone
# *without* noise. fedgraft makes this comparison: noise is never added to `local`.

# %%
comparison = fg.compare(["fedper", "ditto"], epsilon=4, seeds=2, out="private-comparison", **setting)
print(comparison)

# %% [markdown]
# If `gain` is mostly minus, most clients gain nothing from joining at this epsilon: an honest answer, and a frequent one with few
# samples. Ditto's personal model never leaves its client, so it is trained without noise, next to a shared model that is trained with
# noise.
#
# ## What cannot be made private is refused
# A method that sends something else that is computed from the samples, such as class means, is refused with an explanation:

# %%
try:
    fg.run("fedproto", epsilon=4, **setting)
except fg.UserError as error:
    print(error)

# %% [markdown]
# ## Hide single messages from the server
# `--stage secure` switches secure aggregation on and can be combined with differential privacy. On real machines the messages are hidden
# by masks that cancel in the sum; a simulation uses the same arithmetic without masks:

# %%
secure = fg.run("fedper", stages=["secure"], out="secure", **setting)
print(f"pooled accuracy {secure.value:.3f}, without the stage {plain.value:.3f}")

# %% [markdown]
# What exactly is guaranteed, what is not, and what was measured: [differential privacy](../privacy.md) and
# [secure aggregation](../secure-aggregation.md).
