"""Tables of sites: one file for each, or one for all; prepared by what the sites announce, and by nothing else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.data.federation import federate
from fedgraft.data.sources import find, read_own
from fedgraft.data.sources.fitted import Announcement, Column, Fitted
from fedgraft.data.sources.source import Reading

TARGET = {"target": "ill"}


def hospital(seed: int, rows: int = 40, **changes: object) -> pd.DataFrame:
    """Ages, a category, a date and a target; some cells are empty."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": rng.integers(20, 90, rows).astype(float),
            "blood": rng.choice(["A", "B", "AB"], rows),
            "seen": [f"2024-0{month}-11" for month in rng.integers(1, 9, rows)],
            "dose": rng.normal(1e6, 1e5, rows),
            "ill": rng.choice(["no", "yes"], rows),
        }
    )
    table.loc[::7, "age"] = np.nan
    return table.assign(**changes)


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    folder = tmp_path / "hospitals"
    folder.mkdir()
    for seed, name in enumerate(("north", "south", "west")):
        hospital(seed).to_csv(folder / f"{name}.csv", index=False)
    return folder


def test_a_folder_of_tables_becomes_a_federation_of_its_sites(hospitals: Path) -> None:
    fed = federate(hospitals, **TARGET)
    assert fed.names == ("north", "south", "west")
    assert fed.task.name == "classification"
    assert fed.fitted is not None
    assert fed.fitted.labels == ("no", "yes")
    names = ["age", "age missing", "blood=A", "blood=AB", "blood=B", "blood=other", "seen", "dose"]
    assert fed.fitted.names == names
    assert fed.input_shape == (8,)
    everybody = np.concatenate([client.train.inputs.numpy() for client in fed.clients])
    np.testing.assert_allclose(everybody[:, [6, 7]].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(everybody[:, [6, 7]].std(axis=0), 1, atol=1e-5)
    known = everybody[everybody[:, 1] == 0, 0]
    assert abs(known.mean()) < 1e-5
    assert set(everybody[everybody[:, 1] == 1, 0]) == {0.0}, "a missing age is the mean one"
    assert (everybody[:, 2:6].sum(axis=1) == 1).all()


def test_one_table_with_a_column_of_sites_is_the_same_federation(hospitals: Path, tmp_path: Path) -> None:
    several = federate(hospitals, **TARGET)
    tables = [pd.read_csv(file).assign(hospital=file.stem) for file in sorted(hospitals.glob("*.csv"))]
    together = pd.concat(tables).sample(frac=1, random_state=0).sort_values("hospital", kind="stable")
    together = pd.concat(tables)
    for name in ("all.csv", "all.parquet"):
        (together.to_csv if name.endswith("csv") else together.to_parquet)(tmp_path / name, index=False)
        one = federate(tmp_path / name, site_column="hospital", **TARGET)
        assert one.names == several.names
        assert one.fingerprints == several.fingerprints, name


def test_semicolons_and_a_byte_order_mark_are_read(hospitals: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file in hospitals.glob("*.csv"):
        pd.read_csv(file).to_csv(other / file.name, index=False, sep=";", encoding="utf-8-sig")
    assert federate(other, **TARGET).fingerprints == federate(hospitals, **TARGET).fingerprints


def test_what_a_site_tells_is_all_that_the_preparation_needs() -> None:
    def told(**columns: Column) -> Announcement:
        return Announcement(target="ill", kind="words", labels=("no", "yes"), columns=columns)

    both = {
        "a": told(age=Column(kind="number", known=2, missing=1, total=10.0, squares=2.0)),
        "b": told(
            age=Column(kind="number", known=2, total=30.0, squares=8.0), town=Column(kind="category", values=("X",))
        ),
    }
    fitted, task, notes = Fitted.of(both)
    # values 4, 6 and 13, 17: mean 10, squares 36 + 16 + 9 + 49
    assert (fitted.inputs[0].mean, fitted.inputs[0].deviation) == (10.0, pytest.approx((110 / 4) ** 0.5))
    assert task == "classification:2"
    assert notes == ["the column town is not at a: it is missing in every row there"]
    assert fitted.names == ["age", "age missing", "town=X", "town=other", "town missing"]
    assert Fitted.model_validate_json(fitted.model_dump_json()) == fitted
    cells = {"age": np.array([np.nan, 10.0]), "town": np.array(["Y", None], dtype=object)}
    assert fitted.sample_values(cells).tolist() == [[0, 1, 0, 1, 0], [0, 0, 0, 0, 1]]


def test_words_of_few_rows_are_told_to_nobody(hospitals: Path) -> None:
    table = pd.read_csv(hospitals / "north.csv")
    table.loc[:1, "blood"] = "0 negative"
    table.to_csv(hospitals / "north.csv", index=False)
    fed = federate(hospitals, **TARGET)
    assert fed.fitted is not None
    assert "0 negative" not in fed.fitted.model_dump_json()


@pytest.mark.parametrize("split", ["random", "stratified", "group:patient", "time:day"])
def test_splits(tmp_path: Path, split: str) -> None:
    rows = 80
    for name in ("a", "b"):
        table = hospital(
            3, rows, patient=np.arange(rows) // 4, day=[f"2024-{1 + n // 20:02}-{1 + n % 20:02}" for n in range(rows)]
        )
        table["marker"] = np.arange(rows)
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    fed = federate(tmp_path, split=split, **TARGET)
    assert fed.fitted is not None
    marker = fed.fitted.names.index("marker")
    parts = []
    for part in (fed.clients[0].train, fed.clients[0].test):
        scale = fed.fitted.inputs[-1]
        parts.append(np.rint(part.inputs[:, marker].numpy() * scale.deviation + scale.mean).astype(int))
    train, test = parts
    assert sorted([*train, *test]) == list(range(rows))
    assert len(test) == pytest.approx(rows / 4, abs=4)
    if split.startswith("group"):
        assert not set(train // 4) & set(test // 4), "a patient is on both sides"
        assert "patient" not in fed.fitted.names
    if split.startswith("time"):
        assert train.max() < test.min()
    other = federate(tmp_path, split=split, seed=1, **TARGET)
    same = [a == b for a, b in zip(fed.fingerprints, other.fingerprints, strict=True)]
    assert all(same) == split.startswith("time"), "another seed is another split"


def test_a_column_set_decides_also_for_validation(hospitals: Path) -> None:
    for file in hospitals.glob("*.csv"):
        pd.read_csv(file).assign(set=["train"] * 20 + ["val"] * 5 + ["test"] * 15).to_csv(file, index=False)
    fed = federate(hospitals, **TARGET)
    assert [(len(c.train), len(c.validation), len(c.test)) for c in fed.clients] == [(20, 5, 15)] * 3
    assert fed.fitted is not None
    assert "set" not in fed.fitted.names


def test_targets_that_are_numbers(hospitals: Path) -> None:
    amounts = federate(hospitals, target="dose", ignore=["ill"])
    assert amounts.task.name == "regression"
    for number, file in enumerate(sorted(hospitals.glob("*.csv"))):
        pd.read_csv(file).assign(grade=np.arange(40) % 3 + 3, count=np.arange(40) + number).to_csv(file, index=False)
    graded = federate(hospitals, target="grade")
    assert graded.fitted is not None
    assert graded.fitted.labels == ("3", "4", "5")
    assert federate(hospitals, target="count", task="regression").task.name == "regression"
    with pytest.raises(UserError, match="42 different whole numbers: say whether they are amounts"):
        federate(hospitals, target="count")


def test_windows_of_a_time_series(tmp_path: Path) -> None:
    for site in "ab":
        rows = np.arange(100)
        pd.DataFrame({"t": rows, "sway": np.sin(rows), "label": rows // 10 % 2}).to_csv(
            tmp_path / f"{site}.csv", index=False
        )
    fed = federate(tmp_path, window=10, split="time:t")
    assert fed.input_shape == (10, 1)
    assert (len(fed.clients[0].train), len(fed.clients[0].test)) == (14, 4)
    assert federate(tmp_path, window=10, ignore=["t"]).fingerprints == fed.fingerprints, "rows are in order anyway"
    with pytest.raises(UserError, match="choose a shorter --window"):
        federate(tmp_path, window=60)


@pytest.mark.parametrize(
    ("changes", "settings", "sentence"),
    [
        ({}, {"target": "il"}, "no column of north is called 'il'; did you mean 'ill'"),
        ({}, {}, "say with --target which column of north is to be learned: age, blood, seen, dose, ill"),
        ({"ill": "yes"}, TARGET, "ill is 'yes' in every row of every site: there are no two classes"),
        ({"age": ["old", *range(39)]}, TARGET, r"has 39 numbers and 1 cells that are none, such as 'old' in row 1"),
        (
            {"age": ["1e200", *range(39)]},
            TARGET,
            "age in row 1 of north is '1e.200', and numbers beyond 1e.100 cannot",
        ),
        ({"ill": [None, *["yes", "no"] * 19, "no"]}, TARGET, "ill is missing in 1 of 40 rows of north"),
        ({"ill": ["None", "yes"] * 20}, TARGET, r"ill is missing in 20 of 40 rows .*cells that say .*, None, <NA> are"),
        ({"name": [f"Mr {n} {n}" for n in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"]}, TARGET, None),
        ({}, TARGET | {"ignore": ["agee"]}, "no column of the tables is called 'agee'"),
        ({}, TARGET | {"site_column": "blood"}, "site_column = 'blood' is of no effect on .*, which holds tables"),
        ({}, TARGET | {"task": "next-token"}, "for classification or regression, not for next-token"),
        ({}, TARGET | {"split": "group:patient"}, "no column of north is called 'patient'"),
        ({}, TARGET | {"split": "time:blood"}, "blood of north has to be a date or a number in every row"),
        ({}, TARGET | {"clients": 5}, "there cannot be 5 clients"),
        ({}, TARGET | {"normalise": "standard"}, "normalise = standard is for images"),
    ],
)
def test_wrong_turns_end_in_a_sentence_and_write_nothing(
    hospitals: Path, tmp_path: Path, changes: dict[str, Any], settings: dict[str, Any], sentence: str | None
) -> None:
    for seed, file in enumerate(sorted(hospitals.glob("*.csv"))):
        hospital(seed, **changes).to_csv(file, index=False)
    out = tmp_path / "out"
    if sentence is None:  # every cell is told by less than three rows: nothing but `other` is left of such a column
        fed = federate(hospitals, **settings)
        assert "Mr a a" not in str(fed.fitted)
        assert (
            "the column name has no word that 3 training rows of a site share, as with names or texts" in fed.notes[0]
        )
        return
    with pytest.raises(UserError, match=sentence) as refused:
        fg.run("local", dataset=str(hospitals), out=out, rounds=1, workers=1, **settings)
    assert "\n" not in str(refused.value)
    assert not out.exists()


def test_twelve_rows_are_too_few_to_split(hospitals: Path) -> None:
    hospital(0, 12).to_csv(hospitals / "north.csv", index=False)
    with pytest.raises(UserError, match="north has 12 rows, too few to split: a site needs 20, or a column `set`"):
        federate(hospitals, **TARGET)
    hospital(0, 12, set=["train"] * 8 + ["test"] * 4).to_csv(hospitals / "north.csv", index=False)
    assert len(federate(hospitals, **TARGET).clients[0].test) == 4


def test_sites_that_write_a_column_differently(hospitals: Path) -> None:
    hospital(0, age="old").to_csv(hospitals / "north.csv", index=False)
    with pytest.raises(UserError, match=r"the column age is words at north and numbers at .*--ignore age"):
        federate(hospitals, **TARGET)
    assert federate(hospitals, ignore=["age"], **TARGET).input_shape == (6,)


def test_two_kinds_of_data_in_a_folder(hospitals: Path) -> None:
    np.savez(
        hospitals / "north.npz", x_train=np.zeros((4, 2)), y_train=[0, 1, 0, 1], x_test=np.zeros((2, 2)), y_test=[0, 1]
    )
    with pytest.raises(UserError, match="holds arrays and tables: keep one kind"):
        find(hospitals, Reading())
    chosen = find(hospitals, Reading(target="ill"))
    assert chosen.name == "tables"
    assert "also holds arrays: they are not read, only the tables" in fg.federate(hospitals, target="ill").notes[0]


def test_sites_of_one_table(tmp_path: Path) -> None:
    file = tmp_path / "all.csv"
    hospital(0, 60, hospital=["a", "b"] * 30).to_csv(file, index=False)
    with pytest.raises(UserError, match=r"say with --site-column which column of all.csv names the site"):
        federate(file, **TARGET)
    with pytest.raises(UserError, match="dose has 60 values in 60 rows: that names rows, not sites"):
        federate(file, site_column="dose", **TARGET)
    with pytest.raises(UserError, match="there is nothing at"):
        federate(tmp_path / "none.csv", **TARGET)


def test_a_run_keeps_its_preparation_and_a_deployed_site_reads_the_same(hospitals: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = fg.run("local", dataset=str(hospitals), rounds=1, workers=1, out=out, **TARGET)
    kept = Fitted.model_validate(json.loads((out / "preparation.json").read_text()))
    assert kept == done.federation.fitted
    site = read_own(hospitals / "south.csv", Reading(**TARGET), "classification", 0, kept, "south")
    np.testing.assert_array_equal(site.x_train, done.federation.clients[1].train.inputs.numpy())
    np.testing.assert_array_equal(site.y_test, done.federation.clients[1].test.labels.numpy())


def test_a_date_is_no_target_and_sites_share_columns(tmp_path: Path) -> None:
    for site in "ab":
        rows = [f"{at},2024-01-{1 + at % 28:02}" for at in range(30)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,seen", *rows]))
    with pytest.raises(UserError, match="seen of a holds dates, which are neither classes nor amounts"):
        federate(tmp_path, target="seen")
    rows = [f"{at},{at % 2}" for at in range(30)]
    (tmp_path / "a.csv").write_text("\n".join(["age,ill", *rows]))
    (tmp_path / "b.csv").write_text("\n".join(["weight,ill", *rows]))
    with pytest.raises(UserError, match=r"a has none of the other sites' columns \(weight\) but age: call them alike"):
        federate(tmp_path, target="ill")
    (tmp_path / "b.csv").write_text("age,ill\n1,2\n1,2,3,4\n")
    with pytest.raises(UserError, match=r"b.csv is not a table: Expected 2 fields in line 3, saw 4"):
        federate(tmp_path, target="ill")


@pytest.mark.parametrize("extra", ["", "\n7,5,1,ja"])
def test_rows_with_more_cells_than_columns_are_not_shifted(tmp_path: Path, extra: str) -> None:
    rows = [f"{at},5,{at % 3},{'ja' if at % 2 else 'nein'}" for at in range(30)]
    (tmp_path / "a.csv").write_text("\n".join(["dose,code,ill", *rows]) + extra)
    with pytest.raises(UserError, match=r"a\.csv has more cells in line 2 than the 3 columns .*: write 3\.5 for 3,5"):
        federate(tmp_path, target="ill")
    (tmp_path / "a.csv").write_text("dose;ill\n1;2;3\n")
    with pytest.raises(UserError, match=r"has more cells in line 2 than the 2 columns that its first line names$"):
        federate(tmp_path, target="ill")
    closed = [f"{at},{'ja' if at % 2 else 'nein'}," for at in range(30)]
    (tmp_path / "a.csv").write_text("\n".join(["dose,ill", *closed]))
    assert federate(tmp_path, target="ill").input_shape == (1,), "a comma at the end of each line is no cell"


def test_semicolons_and_decimal_commas(tmp_path: Path) -> None:
    for site in "ab":
        rows = [f"{at},5;x,{at % 3};{'ja' if at % 2 else 'nein'}" for at in range(30)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["dose;code;ill", *rows]))
    fed = federate(tmp_path, target="ill", split="random")
    assert fed.fitted is not None
    dose, code = fed.fitted.inputs
    assert (dose.kind, code.kind) == ("number", "category")
    assert 10 < dose.mean < 20
    assert code.values == ("x,0", "x,1", "x,2"), "a comma in a word is a comma"
