"""`fedgraft deploy init`: the folder that it writes, and what it will not write."""

import io
import tomllib
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra fedgraft[flower] is not installed")

from program import fedgraft
from typer.testing import CliRunner

from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.deploy.charter import Charter, read
from fedgraft.engines.flower.site import describe

THREE = ["--task", "classification:3"]
DATA = ["--pixels", "8x8", "--task", "classification:10"]
COLOUR = [
    "--pixels", "32x32x3", "--task", "classification:10",
    "--normalise", "standard", "--mean", "0.5,0.4,0.3", "--std", "0.2",
]  # fmt: skip


def init(folder: Path, *words: str) -> None:
    CliRunner().invoke(app, ["deploy", "init", str(folder), *words], catch_exceptions=False)


def bundle(folder: Path) -> dict[str, str]:
    """What Flower would ship to the server and the sites."""
    from flwr.cli.build import build_fab_from_disk

    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(folder))) as fab:
        return {name: fab.read(name).decode() for name in fab.namelist() if not name.startswith(".info")}


def test_the_folder_says_what_was_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "kit"
    init(
        folder, "--sites", "north,south,east", "--method", "fedapa", "--set", "mu=0.3", *DATA, "--name", "x-rays",
        "--rounds", "20", "--lr", "0.05", "--quorum", "2", "--deadline", "90", "--address", "fed.example.org:8000",
    )  # fmt: skip
    charter = read(folder / "charter.toml")
    assert charter.sites == ("north", "south", "east")
    assert (charter.run.method, charter.run.params, charter.run.rounds) == ("fedapa", {"mu": 0.3}, 20)
    assert charter.run.training.lr == 0.05
    assert (charter.data.name, charter.data.kind, charter.data.shape, charter.data.task) == (
        "x-rays",
        "pixels",
        (8, 8),
        "classification:10",
    )
    assert (charter.quorum, charter.rules.deadline, charter.rules.patience) == (2, 90, 3600)
    assert 'sites = ["north", "south", "east"]' in (folder / "charter.toml").read_text()
    for name in charter.sites:
        site = describe(folder / "sites" / f"{name}.toml")
        assert (site.name, site.data, site.state) == (
            name,
            folder / "sites" / f"{name}.npz",
            folder / "sites" / "state",
        )
    manual = (folder / "README.md").read_text()
    assert "## The server (fed.example.org:8000)" in manual
    assert "deploy certificates certificates --server fed.example.org --sites north,south,east" in manual
    assert "fedgraft deploy site east.toml" in manual


def test_a_runs_configuration_or_a_recipe_becomes_a_federation(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        'method = "ditto"\nclients = 7\nrounds = 4\nworkers = 2\n[training]\nlr = 0.1\n'
    )
    init(tmp_path / "one", "--sites", "a,b", "--config", str(tmp_path / "config.toml"), *DATA)
    one = read(tmp_path / "one" / "charter.toml")
    assert (one.run.method, one.run.rounds, one.run.training.lr, one.config.clients) == ("ditto", 4, 0.1, 2)
    init(tmp_path / "two", "--sites", "a,b", "--recipe", "fedapa", "--method", "fedper", *COLOUR)
    two = read(tmp_path / "two" / "charter.toml")
    assert (two.run.method, two.run.model, two.run.training.batch_size) == ("fedper", "lenet5", 64)
    assert (two.run.normalise, two.data.mean, two.data.std) == ("standard", (0.5, 0.4, 0.3), (0.2,))
    init(tmp_path / "three", "--sites", "a", "--method", "fedavg", "--features", "30", "--task", "classification:2")
    assert read(tmp_path / "three" / "charter.toml").data.kind == "features"


def test_only_the_app_travels(tmp_path: Path) -> None:
    folder = tmp_path / "kit"
    init(folder, "--sites", "a,b", "--method", "fedapa", *DATA)
    for private in ("run/config.toml", "certificates/ca.key", "certificates/notes.md", "flower/operator/config.toml"):
        (folder / private).parent.mkdir(parents=True, exist_ok=True)
        (folder / private).write_text('secret = "yes"')
    shipped = bundle(folder)
    assert shipped.keys() == {"pyproject.toml", "server_app.py", "client_app.py", "charter.toml"}
    assert tomllib.loads(shipped["charter.toml"]) == tomllib.loads((folder / "charter.toml").read_text())


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match="not empty"):
        init(tmp_path, "--sites", "a,b", "--method", "fedapa", *DATA)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--sites", "a,b", *DATA], "name a method"),
        (["--sites", "a,b", "--method", "fedap", *DATA], "did you mean 'fedapa'"),
        (["--sites", "a,b", "--method", "fedapa", "--set", "nu=3", *DATA], "nu"),
        (["--sites", "a,b", "--method", "fedapa"], "say what the data look like"),
        (["--sites", "a,b", "--method", "fedapa", *THREE], "say what the data look like"),
        (["--sites", "a,b", "--method", "fedapa", *DATA, "--features", "3"], "say what the data look like"),
        (["--sites", "a,b", "--method", "fedapa", "--pixels", "eight", *THREE], "a shape is written like"),
        (["--sites", "a,b", "--method", "fedapa", "--pixels", "8", *THREE], "height, width"),
        (["--sites", "a,b", "--method", "fedapa", "--pixels", "8x8", *THREE, "--model", "vgg99"], "vgg"),
        (["--sites", "a,b", "--method", "fedapa", *DATA, "--normalise", "standard"], "needs the mean and std"),
        (["--sites", "a,b", "--method", "fedapa", *COLOUR, "--std", "wide"], "one number for each channel"),
        (["--method", "fedapa", *DATA], "sites"),
        (["--sites", "a,a", "--method", "fedapa", *DATA], "two sites are called 'a'"),
        (["--sites", "a,../b", "--method", "fedapa", *DATA], r"a site's name is made of .* not '\.\./b'"),
        (["--sites", "a,b", "--method", "fedapa", *DATA, "--quorum", "3"], "the quorum is 3, and there are 2 sites"),
        (["--sites", "a,b", "--method", "fedapa", *DATA, "--address", "fed.example.org"], "and a port, such as"),
        (["--sites", "a,b", "--method", "fedapa", *DATA, "--address", "https://x:80"], "and a port, such as"),
        (["--sites", "a,b", "--method", "fedapa", *DATA, "--lr", "-1"], "lr"),
    ],
)
def test_a_mistake_is_a_sentence_and_nothing_is_written(tmp_path: Path, words: list[str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        init(tmp_path / "kit", *words)
    assert not (tmp_path / "kit").exists()


def test_mistakes_exit_with_two(tmp_path: Path) -> None:
    for words in (
        ["init", "kit", "--sites", "a"],
        ["certificates", "keys", "--sites", "a,b c"],
        ["model", "none.toml"],
    ):
        done = fedgraft("deploy", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith("fedgraft: ")
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_everything_else_in_the_charter_survives_the_folder(tmp_path: Path) -> None:
    from fedgraft.deploy.application import write_app

    data = {
        "kind": "pixels",
        "shape": [8, 8, 3],
        "task": "classification:3",
        "mean": [0.5, 0.4, 0.3],
        "std": [0.1, 0.2, 0.3],
    }
    run = {"method": "fedppa", "model": "vgg-family", "normalise": "standard", "clip_norm": 2.0, "augment": True}
    made = Charter(directory="/srv/a b", sites=("a",), data=data, run=run)  # type: ignore[arg-type]
    write_app(tmp_path / "app", made)
    again = read(tmp_path / "app" / "charter.toml")
    assert again.fingerprint == made.fingerprint
    assert again.directory == "/srv/a b"
