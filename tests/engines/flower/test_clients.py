"""Privacy of whole clients across machines: noise from the secret of the server, or of the sites for a secure sum."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import blobs
from flwr.app import Message

from fedgraft.base.errors import UserError
from fedgraft.core.clientlevel import CLIP, WITHIN
from fedgraft.engines.flower import records
from fedgraft.engines.flower.ledger import LEDGER, SECRET, ServerSecrets
from fedgraft.runs.run import run
from trials.federated import Federated

RUN = "0123456789abcdef" * 2
TRAINING = {"lr": 0.1, "momentum": 0.0, "epochs": 1, "batch_size": 4}


def settings(**training: Any) -> dict[str, Any]:
    return {"rounds": 2, "model": "mlp:5", "training": {**TRAINING, "client_noise": 2.0, **training}}


def served(
    folder: Path, name: str = "fedavg", participation: str = "1", **training: Any
) -> tuple[Any, list[Message], Federated]:
    made = Federated(folder, blobs(), {"method": name, "participation": participation, **settings(**training)})
    answers = made.heard()
    return made.serve(), answers, made


@pytest.mark.parametrize("stages", [["bound"], ["bound", "secure"]])
def test_both_engines_end_alike_where_the_noise_is_next_to_nothing(stages: list[str], tmp_path: Path) -> None:
    how = {"client_noise": 1e-9, "client_clip": 0.3, "stages": stages}
    done, answers, _ = served(tmp_path, "fedper", **how)
    local = run("fedper", blobs(), workers=1, progress=False, **settings(**how))
    assert not done.result["refused"]
    assert done.server.keys() == local.server.keys()
    for name, tensor in local.server.items():
        assert torch.allclose(done.server[name], tensor, rtol=0, atol=1e-6), name
    figures = [each.content["figures"] for each in answers if "figures" in each.content]
    assert all(not each or each["loss"] != each["loss"] for each in figures)  # neither losses nor test figures leave


def test_a_trusted_server_draws_from_its_own_secret_and_enters_what_it_releases(tmp_path: Path) -> None:
    done, answers, made = served(tmp_path, participation="0.6", client_quantile=0.5)  # whom it asks is a secret too
    told = [records.message(each.content) for each in answers if "message" in each.content]
    assert {float(each[WITHIN]) for each in told} <= {0.0, 1.0}
    assert float(done.server[CLIP]) != 1.0
    place = done.directory
    assert len((place / SECRET).read_bytes()) == 32
    assert len((place / LEDGER).read_text().splitlines()) == 2
    assert not list((tmp_path / "sites").glob(f"*/*/{LEDGER}"))
    everything = b"".join(each.content.deflate() for each in (*answers, *made.grid.sent))
    assert (place / SECRET).read_bytes() not in everything
    local = run("fedavg", blobs(), workers=1, progress=False, **settings())
    apart = (done.server["weights/0"] - local.server["weights/0"]).norm()
    assert float(apart) > 0.1  # same seed, other noise
    (found,) = done.result["privacy"]
    assert (found["unit"], found["per_client"][0]["steps"]) == ("client", 2)
    assert done.result["last"]["round"] is None  # no test figures leave the sites


def test_with_secure_sums_every_site_brings_its_share_from_its_own_secret(tmp_path: Path) -> None:
    one, _, _ = served(tmp_path / "one", stages=["bound", "secure"], client_quantile=0.5)
    two, _, _ = served(tmp_path / "two", stages=["bound", "secure"])
    assert not torch.equal(one.server["weights/0"], two.server["weights/0"])
    assert not (one.directory / LEDGER).exists()
    assert float(one.server[CLIP]) != 1.0
    ledgers = list((tmp_path / "one" / "sites").glob(f"*/*/{LEDGER}"))
    assert len(ledgers) == 4
    for ledger in ledgers:
        assert [json.loads(line)["steps"] for line in ledger.read_text().splitlines()] == [1, 1]


def test_a_server_releases_no_more_sums_than_it_has_noise_for(tmp_path: Path) -> None:
    secrets = ServerSecrets(tmp_path, RUN, 2)
    sums = [{"weights": torch.tensor([float(i)])} for i in range(3)]
    first = secrets.noise(0, sums[0])
    assert secrets.noise(0, sums[0]) == first  # a round that is repeated shows nothing new
    assert secrets.noise(0, sums[1]) != first  # another sum has other noise, and is paid for
    with pytest.raises(UserError, match="the server has spent its privacy: 2 of 2 noised sums"):
        secrets.noise(1, sums[2])
    assert secrets.sampling(0) != secrets.sampling(1)
    assert secrets.sampling(0) == ServerSecrets(tmp_path, RUN, 2).sampling(0)
    assert secrets.sampling(0) != ServerSecrets(tmp_path, RUN[::-1], 2).sampling(0)
