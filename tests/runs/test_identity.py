"""A run goes on with the settings and the data that it was begun with, or says what is not the same."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import blobs, small_network
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.core.rounds import Round
from fedgraft.data.federation import Federation
from fedgraft.runs.config import configure, read
from fedgraft.runs.identity import settings_digest
from fedgraft.runs.reading import read_all
from fedgraft.runs.run import Run

SETTINGS: dict[str, Any] = {
    "rounds": 4, "lr": 0.1, "batch_size": 8, "workers": 1, "checkpoint_every": 1, "model": "mlp:5"
}  # fmt: skip


class Interrupt:
    def begin(self, run: Run) -> None: ...

    def round(self, run: Run, this: Round) -> None:
        if this.number == 1:
            raise KeyboardInterrupt

    def end(self, run: Run) -> None: ...


@pytest.fixture
def sites(fed: Federation, tmp_path: Path) -> Path:
    """A folder with the data of four sites."""
    folder = tmp_path / "sites"
    folder.mkdir()
    for number, client in enumerate(fed.clients):
        parts = {"train": client.train, "test": client.test}
        arrays = {f"x_{name}": part.inputs.numpy() for name, part in parts.items()}
        arrays |= {f"y_{name}": part.labels.numpy() for name, part in parts.items()}
        np.savez(folder / f"{number}.npz", **arrays)
    return folder


@pytest.fixture
def torn(sites: Path, tmp_path: Path) -> Path:
    """A run that was interrupted after its second round."""
    with pytest.raises(KeyboardInterrupt):
        fg.run("fedavg", dataset=str(sites), out=tmp_path / "run", watchers=[Interrupt()], **SETTINGS)
    return tmp_path / "run"


def files(place: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(place.rglob("*")) if file.is_file()}


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("lr = 0.1", "lr = 0.2", r"holds another run than its config.toml says, .* \(lr is 0.1 there and 0.2 here\)$"),
        ("seed = 0", "seed = 1", r"\(seed is 0 there and 1 here\)$"),
        ('method = "fedavg"', 'method = "local"', r"\(method is 'fedavg' there and 'local' here"),
        ("rounds = 4", "rounds = 3", r"\(rounds is 4 there and 3 here\)$"),
        ("momentum = 0.9", "", r"\(momentum is 0.9 there and missing here\)$"),
        ("batch_size = 8", "", r"\(batch_size is 8 there and missing here\)$"),
        ("[training]", "[trainings]", r"\(training is a table there and missing here, trainings is missing there and"),
    ],
)
def test_other_settings_are_named(torn: Path, old: str, new: str, sentence: str) -> None:
    edit(torn / "config.toml", old, new)
    before = files(torn)
    with pytest.raises(UserError, match=sentence):
        fg.resume(torn)
    assert files(torn) == before


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
def test_a_configuration_that_was_cut_short_is_refused(torn: Path, share: float) -> None:
    lines = (torn / "config.toml").read_text().splitlines(keepends=True)
    (torn / "config.toml").write_text("".join(lines[: int(share * len(lines))]))
    with pytest.raises(UserError, match=r"holds another run|had other data"):
        fg.resume(torn)


def test_what_is_the_machines_may_change(torn: Path) -> None:
    edit(torn / "config.toml", "workers = 1", "workers = 2")
    edit(torn / "config.toml", "checkpoint_every = 1", "checkpoint_every = 2")
    assert len(fg.resume(torn).records) == 4


def rewrite(file: Path, **changes: Any) -> None:
    with np.load(file) as held:
        arrays = dict(held)
    np.savez(file, **{name: changes.get(name, lambda a: a)(array) for name, array in arrays.items()})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"y_train": lambda y: np.roll(y, 1)}, "the training labels of (client )?1 are others$"),
        ({"x_train": lambda x: x + 1}, "the training samples of (client )?1 are others$"),
        ({"y_test": lambda y: np.roll(y, 1)}, "the test labels of (client )?1 are others$"),
        ({"x_train": lambda x: x[:-1], "y_train": lambda y: y[:-1]}, "(client )?1 had 13 training samples and has 12$"),
    ],
    ids=["labels", "inputs", "test", "sizes"],
)
def test_other_data_are_named(torn: Path, sites: Path, change: dict[str, Any], sentence: str) -> None:
    rewrite(sites / "1.npz", **change)
    with pytest.raises(UserError, match="had other data: " + sentence):
        fg.resume(torn)


def test_the_order_of_sites_and_their_number(torn: Path, sites: Path) -> None:
    (sites / "0.npz").rename(sites / "9.npz")
    with pytest.raises(UserError, match="had other data: the clients are the same, in another order"):
        fg.resume(torn)
    (sites / "9.npz").unlink()
    with pytest.raises(UserError, match=r"\(clients is 4 there and 3 here\)|there cannot be 4 clients"):
        fg.resume(torn)


def test_two_clients_that_differ(fed: Federation, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fg.run("fedavg", fed, out=tmp_path / "run", watchers=[Interrupt()], **SETTINGS)
    with pytest.raises(UserError, match=r"client 0 had 20 training samples and has 9 \(and those of 3 more clients\)"):
        fg.resume(tmp_path / "run", blobs((9, 9, 9, 9)))
    assert len(fg.resume(tmp_path / "run", blobs()).records) == 4


def test_another_machine_is_noted(torn: Path) -> None:
    told = json.loads((torn / "run.json").read_text())
    assert set(told["versions"]) == {"fedgraft", "torch", "numpy", "python"}
    assert told["instructions"]["torch"] == torch.backends.cpu.get_cpu_capability()
    told["versions"]["torch"], told["instructions"]["kernels"] = "1.0", "abacus"
    (torn / "run.json").write_text(json.dumps(told))
    run = fg.resume(torn)
    assert any(note.startswith(f"the run was begun with torch 1.0, and goes on with {torch.__version__}")
               for note in run.notes)  # fmt: skip
    assert any("the kernels' instruction set abacus" in note for note in run.notes)


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", '{"format": 1}', '{"format": 2}', '{"format": 1, "settings": 3}']
)
def test_a_run_without_an_identity_is_refused(torn: Path, text: str | None) -> None:
    (torn / "run.json").unlink()
    if text is not None:
        (torn / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json"):
        fg.resume(torn)


def test_a_checkpoint_of_a_run_with_other_settings_is_not_used(fed: Federation, tmp_path: Path) -> None:
    for name, lr in (("one", 0.1), ("two", 0.2)):
        with pytest.raises(KeyboardInterrupt):
            fg.run("fedavg", fed, out=tmp_path / name, watchers=[Interrupt()], **{**SETTINGS, "lr": lr})
    shutil.rmtree(tmp_path / "one" / "checkpoints")
    shutil.copytree(tmp_path / "two" / "checkpoints", tmp_path / "one" / "checkpoints")
    resumed = fg.resume(tmp_path / "one", fed)
    assert "round-000002 is of another run, with other settings; an older one is used" in resumed.notes[0]
    whole = fg.run("fedavg", fed, **SETTINGS)
    assert [r["trained"] for r in resumed.records] == [r["trained"] for r in whole.records]


def test_a_result_says_what_it_was_made_of_and_a_report_takes_no_other(fed: Federation, tmp_path: Path) -> None:
    for name, lr in (("one", 0.1), ("two", 0.2)):
        fg.run("fedavg", fed, out=tmp_path / "all" / name, **{**SETTINGS, "lr": lr})
    one, two = (json.loads((tmp_path / "all" / name / "result.json").read_text()) for name in ("one", "two"))
    assert one["digest"]["data"] == two["digest"]["data"]
    assert one["digest"]["settings"] != two["digest"]["settings"]
    assert one["digest"]["settings"] == settings_digest(read(tmp_path / "all" / "one" / "config.toml"))
    assert one["format"] == 2
    assert one["versions"]["torch"] == torch.__version__
    assert len(read_all([tmp_path / "all"]).runs) == 2
    edit(tmp_path / "all" / "two" / "config.toml", "lr = 0.2", "lr = 0.3")
    reading = read_all([tmp_path / "all"])
    assert [run.config.training.lr for run in reading.runs] == [0.1]
    assert len(reading.notes) == 1
    sentence = "two was made with other settings than its config.toml has, which was changed after the run"
    assert f"{sentence} (lr is 0.2 there and 0.3 here): undo that; it is left out" in reading.notes[0]
    assert "it is left out" in CliRunner().invoke(app, ["table", str(tmp_path / "all")]).stderr
    with pytest.raises(UserError, match="made with other settings"):
        read_all([tmp_path / "all" / "two"])


@pytest.mark.parametrize("changed", ["rounds = 9", "seed = 9", None])
def test_a_configuration_that_was_changed_is_blamed_and_not_the_result(torn: Path, changed: str | None) -> None:
    run = fg.resume(torn)
    if changed is None:
        (torn / "config.toml").write_text("")
    else:
        name = changed.partition(" ")[0]
        edit(torn / "config.toml", f"\n{name} = {getattr(run.config, name)}", f"\n{changed}")
    for ask in (fg.resume, fg.read):
        with pytest.raises(UserError, match=r"config\.toml has, which was changed after the run \(.*\): undo that$"):
            ask(torn)
    (torn / "result.json").unlink()
    with pytest.raises(UserError, match=r"config\.toml says, which was changed"):
        fg.resume(torn)


def test_fingerprints_are_taken_once_and_see_everything(fed: Federation) -> None:
    assert fed.fingerprints is fed.fingerprints
    same = fg.federate("digits", 4, "iid", seed=3)
    for change in ({"validation": 0.3}, {"normalise": "standard"}, {"augment": True}, {"resize": 10}, {"seed": 4}):
        other = fg.federate("digits", 4, "iid", **{"seed": 3, **change})
        assert other.fingerprints != same.fingerprints, change
    assert fg.federate("digits", 4, "iid", seed=3).fingerprints == same.fingerprints


def test_the_configuration_that_is_written_has_the_digest_of_the_run(fed: Federation, tmp_path: Path) -> None:
    run = fg.run(fg.FedAPA(mu=0.25), fed, model=small_network(), out=tmp_path / "run", rounds=1, workers=1)
    assert run.identity.digest["settings"] == settings_digest(read(tmp_path / "run" / "config.toml"))
    assert configure(read(tmp_path / "run" / "config.toml")) == run.config
