"""A site looks at its own data before it takes part: what is wrong is said in words that fit where the person is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("pandas")
pytest.importorskip("flwr", reason="the extra fedgraft[flower] is not installed")

from fedgraft.base.errors import UserError
from fedgraft.data.federation import federate
from fedgraft.data.sources.fitted import Fitted, Input
from fedgraft.deploy import certificates
from fedgraft.deploy.charter import charter, read
from fedgraft.deploy.check import Check
from fedgraft.deploy.processes import free_port
from fedgraft.deploy.serving import branch
from fedgraft.deploy.voice import telling
from fedgraft.engines.flower.reach import NotYetError

Write = Any
PREPARED = Fitted(
    target="ill",
    inputs=(Input(name="age", kind="number", mean=50, deviation=10), Input(name="dose", kind="number")),
    labels=("no", "yes"),
)


def checked(folder: Path, data: str, *, shape: tuple[int, ...] = (2,), fitted: Fitted | None = None, **run: Any) -> str:
    """What `fedgraft deploy check` says of the data at site a."""
    kind = "pixels" if len(shape) > 1 else "features"
    return looked_at(
        folder, data, {"kind": kind, "shape": list(shape), "task": "classification:2", "preparation": fitted}, **run
    )


def looked_at(folder: Path, data: str, told: dict[str, Any], **run: Any) -> str:
    made = charter({"directory": "run", "sites": ["a"], "data": told, "run": {"method": "fedavg", **run}})
    made.write(folder / "charter.toml")
    (folder / "a.toml").write_text(f'name = "a"\ndata = "{data}"\nstate = "state"\n')
    said: list[str] = []
    before = sorted(folder.rglob("*"))
    try:
        Check(folder / "a.toml").at_home(said.append)
    finally:
        assert sorted(folder.rglob("*")) == before
    return "\n".join(said)


def table(folder: Path, rows: int = 40, *, header: str = "age,dose,ill", ill: str = "no yes", odd: str = "") -> str:
    words = ill.split()
    lines = [f"{30 + n},{odd if odd and n % 9 == 0 else n % 7},{words[n % len(words)]}" for n in range(rows)]
    (folder / "a.csv").write_text("\n".join([header, *lines]) + "\n")
    return "a.csv"


def images(folder: Path, *classes: str, count: int = 12) -> str:
    image = pytest.importorskip("PIL.Image")
    for name in classes:
        (folder / "scans" / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.full((4, 4), number, np.uint8)
            image.fromarray(pixels).save(folder / "scans" / name / f"{number}.png")
    return "scans"


def test_a_table_with_agreed_columns_is_in_order(tmp_path: Path) -> None:
    said = checked(tmp_path, table(tmp_path), fitted=PREPARED)
    assert "data: 30 samples to train on and 10 to test on, as agreed" in said
    assert "mind" not in said


@pytest.mark.parametrize(
    ("made", "fitted", "said"),
    [
        ({"header": "age,dose,sick"}, PREPARED, "ill"),
        ({"header": "age,dose,sick"}, None, "say with `target` under [run] in charter.toml which column of a.csv"),
        ({"rows": 12}, PREPARED, "a has 12 rows, too few to split: a site needs 20, or a column `set`"),
        ({"odd": "much"}, PREPARED, "dose in row 1 of a is 'much', not a number"),
        ({"ill": "no maybe"}, PREPARED, "maybe"),
        ({"header": "age,dose,label"}, None, "label of"),
    ],
)
def test_wrong_turns_with_a_table(made: Write, fitted: Fitted | None, said: str, tmp_path: Path) -> None:
    data = table(tmp_path, **made)
    with pytest.raises(UserError) as error:
        checked(tmp_path, data, fitted=fitted)
    assert said in str(error.value)
    assert "--" not in str(error.value)


def test_a_wrong_target_names_the_nearest_column(tmp_path: Path) -> None:
    data = table(tmp_path, ill="0 1")
    with pytest.raises(UserError, match="did you mean 'ill'"):
        checked(tmp_path, data, target="illl")


def test_windows_that_are_too_long(tmp_path: Path) -> None:
    data = table(tmp_path, rows=24)
    with pytest.raises(UserError, match=r"choose a shorter `window` under \[run\] in charter.toml"):
        checked(tmp_path, data, fitted=PREPARED.model_copy(update={"window": 15}), window=15)


def test_one_class_is_said(tmp_path: Path) -> None:
    assert "mind: every training sample is of class 1" in checked(tmp_path, table(tmp_path, ill="yes"), fitted=PREPARED)


def test_arrays(tmp_path: Path) -> None:
    x, y = np.zeros((6, 2), np.float32), np.zeros(6, np.int64)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    said = checked(tmp_path, "a.npz", target="ill")
    assert "mind: target = 'ill' has no effect on a.npz, which holds arrays" in said
    assert "mind: every training sample is of class 0" in said
    np.savez(tmp_path / "a.npz", x_train=x, x_test=x)
    with pytest.raises(UserError, match="lacks y_train, y_test"):
        checked(tmp_path, "a.npz")


def test_images(tmp_path: Path) -> None:
    data = images(tmp_path, "0-well", "1-ill")
    (tmp_path / data / "labels.csv").write_text("file,label\n")
    said = checked(tmp_path, data, shape=(4, 4), target="label")
    assert "mind: target = 'label' has no effect on scans, which holds images" in said
    assert "mind: labels.csv in scans is not read" in said


def test_wrong_turns_with_images(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 8 images, too few to split"):
        checked(tmp_path, images(tmp_path, "0", "1", count=4), shape=(4, 4))
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="does not begin with the number of its class"):
        checked(tmp_path / "other", images(tmp_path / "other", "well", "ill"), shape=(4, 4))
    (tmp_path / "tables").mkdir()
    table(tmp_path / "tables")
    with pytest.raises(UserError, match=r"holds no images.*of a table, name the file"):
        checked(tmp_path, "tables", shape=(4, 4))


def test_a_text_is_read_as_in_a_simulation(tmp_path: Path) -> None:
    """The characters and the window stand in the charter; the site's samples are those that a simulation gives it."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("to be or not to be " * 20)
    (tmp_path / "texts" / "b.txt").write_text("that is the question " * 20)
    simulated = federate(str(tmp_path / "texts"), window=8)
    assert simulated.fitted is not None
    told = {
        "kind": "tokens", "shape": [8], "task": f"next-token:{simulated.task.outputs}", "preparation": simulated.fitted,
    }  # fmt: skip
    said = looked_at(tmp_path, "texts/a.txt", told, model="embed")
    assert f"data: {len(simulated.clients[0].train)} samples to train on" in said
    held = branch(read(tmp_path / "charter.toml"), tmp_path / "a.toml").workshop.data[0]
    for here, there in ((held.train, simulated.clients[0].train), (held.test, simulated.clients[0].test)):
        for mine, theirs in zip(here.batch(slice(None)), there.batch(slice(None)), strict=True):
            assert torch.equal(mine, theirs)


def test_a_text_without_agreed_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("to be or not to be " * 20)
    with pytest.raises(UserError, match="the federation has to agree on its characters first"):
        checked(tmp_path, "a.txt")


def test_without_a_charter(tmp_path: Path) -> None:
    table(tmp_path, header="age,dose,sick")
    (tmp_path / "a.toml").write_text('name = "a"\ndata = "a.csv"\nstate = "state"\n')
    with pytest.raises(UserError, match=r"say with `target` under \[run\] in charter.toml"):
        Check(tmp_path / "a.toml").at_home(lambda _: None)


def test_a_server_that_is_not_there_is_named_once(tmp_path: Path) -> None:
    certificates.make(tmp_path, server=["127.0.0.1"], sites=["a"])
    home = tmp_path / "sites" / "a"
    (home / "a.toml").write_text('name = "a"\ndata = "a.csv"\nstate = "state"\n')
    with pytest.raises(NotYetError) as error:
        Check(home / "a.toml", f"127.0.0.1:{free_port()}").on_the_way(lambda _: None)
    assert str(error.value).count("cannot be reached: Connection refused") == 1
    assert ";" not in str(error.value)


def test_every_line_has_its_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with telling(tmp_path / "site.log") as say:
        say("data: 30 samples\nmind: they are few")
    first, second = capsys.readouterr().err.splitlines()
    assert (first[:10], second[8:]) == (second[:10], "  mind: they are few")


def test_images_beside_tables_are_named_where_the_tables_are_read(tmp_path: Path) -> None:
    for site in "ab":
        table(tmp_path)
        (tmp_path / "a.csv").rename(tmp_path / f"site-{site}.csv")
    images(tmp_path, "x/0", "x/1")
    (tmp_path / "scans").rename(tmp_path / "kept")
    (tmp_path / "kept" / "x").rename(tmp_path / "x")
    (tmp_path / "kept").rmdir()
    notes = federate(str(tmp_path), target="ill").notes
    assert f"{tmp_path} also holds images: they are not read, only the tables" in notes
