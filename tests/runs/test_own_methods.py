"""Methods of one's own: run, compared, interrupted, resumed and told apart like those of the registry."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import blobs, small_network
from program import fedgraft

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.core.method import Method, hyper
from fedgraft.core.rounds import Round
from fedgraft.data.federation import Federation
from fedgraft.methods import METHODS
from fedgraft.methods.fedavg import FedAvg
from fedgraft.report.page import write
from fedgraft.runs.config import read
from fedgraft.runs.directory import folder_name
from fedgraft.runs.question import contestants
from fedgraft.runs.reading import read_all
from fedgraft.runs.run import Run

SETTINGS: dict[str, Any] = {"rounds": 3, "lr": 0.1, "batch_size": 8, "workers": 1, "checkpoint_every": 1}


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """An own method with a hyper-parameter that is declared, and one that is not."""

    name = "fedavg-m"
    beta: float = hyper(0.9, "how much of the old model stays", low=0, high=1)
    plain: float = 0.0
    layers: tuple[int, ...] = (1, 2)
    extras: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Nameless(FedAvg):
    """It kept the name of the registered method that it derives from."""


class Undeclared(FedAvg):
    name = "undeclared"

    def __init__(self, gamma: float = 1.0) -> None:
        super().__init__()
        object.__setattr__(self, "gamma", gamma)


class Interrupt:
    def __init__(self, after: int) -> None:
        self.left = after

    def begin(self, run: Run) -> None: ...

    def round(self, run: Run, this: Round) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def end(self, run: Run) -> None: ...


def test_labels_are_distinct_for_distinct_methods() -> None:
    given: list[Method] = [
        FedAvg(), Nameless(), FedAvgM(), FedAvgM(beta=0.5), FedAvgM(plain=0.5), FedAvgM(layers=(3,)),
        FedAvgM(extras=[1]), Undeclared(), Undeclared(0.5),
    ]  # fmt: skip
    labels = [METHODS.label(each) for each in given]
    assert labels == [
        "fedavg", "Nameless", "fedavg-m", "fedavg-m:beta=0.5", "fedavg-m:plain=0.5", "fedavg-m:layers=(3,)",
        "fedavg-m:extras=[1]", "undeclared:gamma=1.0", "undeclared:gamma=0.5",
    ]  # fmt: skip
    assert list(contestants(given)) == ["local", *labels]
    assert list(contestants([FedAvgM(), FedAvgM()])) == ["local", "fedavg", "fedavg-m"]


def test_two_methods_of_one_name_are_refused() -> None:
    twin = type("Twin", (FedAvg,), {"name": "fedavg-m"})
    with pytest.raises(UserError, match="two methods are called 'fedavg-m'; give one of them another name"):
        contestants([FedAvgM(), twin()])


def test_folders_are_distinct_and_not_too_long() -> None:
    labels = ["a:x=b/c", "a:x=b-c", "a:x=b c", "plain", "m:x=" + "y" * 500, "m:x=" + "y" * 499 + "z"]
    folders = [folder_name(label) for label in labels]
    assert len(set(folders)) == len(labels)
    assert folders[3] == "plain"
    assert max(map(len, folders)) < 200


@pytest.mark.parametrize("method", [FedAvgM(beta=0.5, layers=(3,)), Nameless(), Undeclared(0.5)], ids=METHODS.label)
def test_an_own_method_is_found_again(fed: Federation, tmp_path: Path, method: Method) -> None:
    whole = fg.run(method, fed, model=small_network(), **SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        fg.run(method, fed, model=small_network(), out=tmp_path / "run", watchers=[Interrupt(2)], **SETTINGS)
    assert read(tmp_path / "run" / "config.toml")["method"] == f"{__name__}:{type(method).__name__}"
    resumed = fg.resume(tmp_path / "run", fed, model=small_network())
    assert type(resumed.method) is type(method)
    assert resumed.method.parameters() == method.parameters()
    assert [r["trained"] for r in resumed.records] == [r["trained"] for r in whole.records]


def test_one_that_cannot_be_found_is_given_again(fed: Federation, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Inside(FedAvg):
        name = "inside"
        beta: float = 0.1

    with pytest.raises(KeyboardInterrupt):
        fg.run(Inside(beta=0.2), fed, model=small_network(), out=tmp_path / "run", watchers=[Interrupt(2)], **SETTINGS)
    with pytest.raises(UserError, match=r"had a method of your own, 'inside', .* give it as method=$"):
        fg.resume(tmp_path / "run", fed, model=small_network())
    with pytest.raises(UserError, match=r"holds another run \(beta is 0.2 there and 0.1 here\)"):
        fg.resume(tmp_path / "run", fed, model=small_network(), method=Inside())
    assert len(fg.resume(tmp_path / "run", fed, model=small_network(), method=Inside(beta=0.2)).records) == 3


def test_a_parameter_that_no_file_can_hold_is_refused_before_anything_is_written(
    fed: Federation, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="a hyper-parameter cannot be written to a file"):
        fg.run(Undeclared(print), fed, model=small_network(), out=tmp_path / "run", **SETTINGS)  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_comparison_keeps_variants_apart_in_its_report(tmp_path: Path) -> None:
    given = ["fedper", FedAvgM(), FedAvgM(beta=0.5)]
    done = fg.compare(given, seeds=1, federation=lambda seed: blobs(seed=seed), model=small_network(),
                      out=tmp_path / "all", **SETTINGS)  # fmt: skip
    labels = ["local", "fedavg", "fedper", "fedavg-m", "fedavg-m:beta=0.5"]
    assert [row.method for row in done.rows()] == labels
    reading = read_all([tmp_path / "all"])
    assert [run.label for run in reading.runs] == labels
    told = [row["method"] for row in json.loads((tmp_path / "all" / "comparison.json").read_text())["rows"]]
    assert told == labels
    html = done.report(tmp_path / "report.html").read_text()
    assert "fedavg-m:beta=0.5" in html


def test_a_report_imports_no_code(tmp_path: Path, fed: Federation) -> None:
    fg.run("fedavg", fed, model=small_network(), out=tmp_path / "run", **SETTINGS)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'harm')!r}, 'w')\n")
    for file, old in (("result.json", '"fedavg"'), ("config.toml", '"fedavg"')):
        path = tmp_path / "run" / file
        path.write_text(path.read_text().replace(old, f'"{tmp_path}/evil.py:X"'))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    del result["digest"]
    (tmp_path / "run" / "result.json").write_text(json.dumps(result))
    write(read_all([tmp_path / "run"]), tmp_path / "report.html")
    assert not (tmp_path / "harm").exists()


FILE = """
from dataclasses import dataclass
import fedgraft as fg


@dataclass(frozen=True)
class Mine(fg.FedAvg):
    name = "mine"
    beta: float = 0.1
"""
RUN = [
    "--clients", "3", "--partition", "iid", "--rounds", "3", "--workers", "2", "--evaluate-every", "100",
    "--checkpoint-every", "1",
]  # fmt: skip


def cut(run: Path) -> None:
    """Set a finished run back to its second round."""
    (run / "result.json").unlink()
    for file in (run / "checkpoints" / "round-000003").iterdir():
        file.unlink()
    (run / "checkpoints" / "round-000003").rmdir()


@pytest.mark.slow
def test_the_command_line_takes_a_file(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(FILE)
    (tmp_path / "elsewhere").mkdir()
    done = fedgraft("run", "./my.py:Mine:beta=0.5", *RUN, "--out", "one", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "one" / "config.toml")["method"] == f"{tmp_path}/my.py:Mine"
    assert json.loads((tmp_path / "one" / "result.json").read_text())["label"] == "mine:beta=0.5"
    cut(tmp_path / "one")
    resumed = fedgraft("resume", "../one", cwd=tmp_path / "elsewhere")
    assert resumed.returncode == 0, resumed.stderr
    for words, sentence in (
        (["./my.py:Mne"], "has no 'Mne'; did you mean 'Mine'?"),
        (["./my.py:Mine:bta=1"], "has no parameter 'bta'; did you mean 'beta'?"),
        (["./no.py:Mine"], "there is no file"),
        (["./my.py:dataclass"], "is not a method: it has to be a class that derives from fedgraft.Method"),
    ):
        refused = fedgraft("run", *words, *RUN, "--out", "two", cwd=tmp_path)
        assert refused.returncode == 2
        assert sentence in refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_a_comparison_of_a_file_goes_on_by_its_directory(tmp_path: Path) -> None:
    (tmp_path / "my.py").write_text(FILE)
    words = ["./my.py:Mine", "./my.py:Mine:beta=0.5", "--seeds", "1", *RUN]
    done = fedgraft("compare", *words, "--out", "all", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "all" / "comparison.json").unlink()
    cut(tmp_path / "all" / "mine-beta=0.5-seed0")
    resumed = fedgraft("resume", "all", "--json", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert [row["method"] for row in json.loads(resumed.stdout)["rows"]] == ["local", "fedavg", "mine", "mine:beta=0.5"]
