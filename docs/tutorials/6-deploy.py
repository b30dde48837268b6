# %% [markdown]
# # Three machines: a server, and sites that keep their data
#
# In a simulation all clients are on one machine. Here each is a program of its own, as on several machines: it has a folder with its
# data, its key and its private state, and asks the server for work over an encrypted connection.
# [Flower](https://flower.ai) carries the messages: `pip install 'fedgraft[flower]'`.
#
# In this notebook all machines are this one, `127.0.0.1`. On real machines the commands are the same, each typed where it belongs:
# [deployment](../deployment.md) has them with the names of machines.
#
# ## On the server: what is trained, by whom

# %%
import socket

with socket.socket() as probe:  # a port that nobody has; a real server has a fixed one, such as 8000
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]

# %%
# !fedgraft deploy init federation --sites a,b,c --method fedper --pixels 8x8 --task classification:10 --rounds 2 --lr 0.05 --address 127.0.0.1:{port}

# %% [markdown]
# The folder `federation` has the *charter*, which says what is trained under which rules, and a description for each site to be
# edited there. Keys prove who a site is; the server's certificate proves to the sites who the server is.

# %%
# !fedgraft deploy certificates federation/certificates --server 127.0.0.1 --sites a,b,c

# %% [markdown]
# ## At each site: its data, its key, its description
# We give each site a third of scikit-learn's digits as `SITE.npz`, the file that its description names. Nobody else reads it. With
# real machines, `scp` does what is done here by `copytree` and `copy`.

# %%
import shutil

import numpy as np

from fedgraft.data.datasets import load

digits = load("digits")
for number, site in enumerate("abc"):
    shutil.copytree(f"federation/certificates/sites/{site}", f"site-{site}")
    shutil.copy(f"federation/sites/{site}.toml", f"site-{site}")
    shutil.copy("federation/charter.toml", f"site-{site}")
    own = slice(400 * number, 400 * (number + 1))
    x, y = digits.x_train[own], digits.y_train[own]
    np.savez(f"site-{site}/{site}.npz", x_train=x[:300], y_train=y[:300], x_test=x[300:], y_test=y[300:])

# %% [markdown]
# ## Start
# Each site is one command, in a terminal of its own; so is the server. Here the sites run in the background.

# %%
import subprocess

commands = [["fedgraft", "deploy", "site", f"site-{site}/{site}.toml"] for site in "abc"]
silent = subprocess.DEVNULL
sites = [subprocess.Popen(each, stdout=silent, stderr=silent) for each in commands]

# %%
# !fedgraft deploy server federation

# %% [markdown]
# The server tells who came, what leaves a site, and each round. A site writes into its log what it sends:

# %%
codes = [site.wait(timeout=300) for site in sites]
print(codes)
# !cat site-a/logs/site.log

# %% [markdown]
# ## Its own model stays at the site
# FedPer shares the layers that make features and keeps the last layer at home, so each site's model is its own. It is in the site's
# `state`, and comes out with:

# %%
# !fedgraft deploy model site-a/a.toml --out site-a/model.safetensors

# %%
import torch

import fedgraft as fg

network = fg.load_model("site-a/model.safetensors")
images = (torch.from_numpy(digits.x_test[:5]).float().unsqueeze(1) / 255 - 0.5) / 0.5
print("answers", network(images).argmax(1).tolist(), "truth", digits.y_test[:5].tolist())

# %% [markdown]
# What happens when a machine fails, a key is lost or the data grow stands in [deployment](../deployment.md); who sees what, in
# [security](../project/security.md). Next: [a run with privacy](privacy.md).
