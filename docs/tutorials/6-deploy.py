# %% [markdown]
# # Three machines: a server, and sites that keep their data
#
# This tutorial starts a federation of separate programs, for people who will run one on several machines. In a simulation all clients
# are on one machine. Here each client (a *site*) is a program of its own: it has a folder with its data, its key and its private state,
# and asks the server for work over an encrypted connection. [Flower](https://flower.ai) carries the messages:
# `pip install 'fedgraft[flower]'`.
#
# In this notebook all programs run on this machine, `127.0.0.1`. On several machines the commands are the same, each typed on the machine
# it is for; [deployment](../deployment.md) shows them with the names of machines.
#
# ## On the server: what is trained, and by whom

# %%
import socket

with socket.socket() as probe:  # a free port; a real server has a fixed one, such as 8000
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]

# %%
# !fedgraft deploy init federation --sites a,b,c --method fedper --pixels 8x8 --task classification:10 --rounds 2 --lr 0.05 --address 127.0.0.1:{port}

# %% [markdown]
# The folder `federation` has the *charter*, a file that says what is trained and by which rules, and a description for each site, which
# is edited at that site. A site proves with its key who it is; the server proves it to the sites with its certificate.

# %%
# !fedgraft deploy certificates federation/certificates --server 127.0.0.1 --sites a,b,c

# %% [markdown]
# ## At each site: its data, its key, its description
# Each site gets 400 of scikit-learn's digits as `SITE.npz`, the file that its description names. Nobody else reads this file. Between
# real machines, files are copied with `scp`; here `copytree` and `copy` do it.

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
# Each site is one command in a terminal of its own, and so is the server. Here the sites run in the background.

# %%
import subprocess

commands = [["fedgraft", "deploy", "site", f"site-{site}/{site}.toml"] for site in "abc"]
silent = subprocess.DEVNULL
sites = [subprocess.Popen(each, stdout=silent, stderr=silent) for each in commands]

# %%
# !fedgraft deploy server federation

# %% [markdown]
# The server prints which sites have connected, what leaves a site, and each round. A site writes into its log what it sends:

# %%
codes = [site.wait(timeout=300) for site in sites]
print(codes)
# !cat site-a/logs/site.log

# %% [markdown]
# ## Its own model stays at the site
# FedPer shares the layers that compute features and keeps the last layer at the site, so each site has a model of its own. It is stored
# in the site's folder `state`; this command writes it to a file:

# %%
# !fedgraft deploy model site-a/a.toml --out site-a/model.safetensors

# %%
import torch

import fedgraft as fg

network = fg.load_model("site-a/model.safetensors")
images = (torch.from_numpy(digits.x_test[:5]).float().unsqueeze(1) / 255 - 0.5) / 0.5
print("answers", network(images).argmax(1).tolist(), "truth", digits.y_test[:5].tolist())

# %% [markdown]
# [Deployment](../deployment.md) describes what happens when a machine fails, a key is lost or new data arrive;
# [security](../project/security.md) says who sees what. Next: [a run with privacy](privacy.md).
