"""The table of a comparison for a paper or a program."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from madeup import AUC, RMSE, compared, result
from typer.testing import CliRunner

import fedgraft as fg
from fedgraft.base.errors import UserError
from fedgraft.cli import app
from fedgraft.report.export import FORMATS, table

EVIL = r"a_b & 50% #1 {x} $y$ ~z^ \\input | *m* <b>"

TWO_SEEDS = {
    "local": [result([54.5] * 12, [54.5 + s] * 12, metrics=[RMSE], seed=s) for s in (0, 1)],
    "ditto": [result([54.5] * 12, [51.25 + s] * 12, metrics=[RMSE], seed=s) for s in (0, 1)],
    EVIL: [result([54.5] * 12, [60.0 + s] * 12, metrics=[RMSE], seed=s) for s in (0, 1)],
}


def test_latex_has_rules_bold_best_and_escapes() -> None:
    made = table(compared(TWO_SEEDS, dataset="100%_sure\nx"), "latex")
    lines = [line for line in made.splitlines() if not line.startswith("%")]
    assert lines[0] == r"\begin{tabular}{lrrrrrr}"
    assert [line for line in lines if "rule" in line] == [r"\toprule", r"\midrule", r"\bottomrule"]
    ditto = next(line for line in lines if line.startswith("ditto"))
    assert r"\textbf{51.8 $\pm$ 0.7}" in ditto, "the least RMSE is the best"
    assert r"\textbf{+3.250}" in ditto
    evil = lines[-3]
    assert evil.startswith(r"a\_b \& 50\% \#1 \{x\} \$y\$ \textasciitilde{}z\textasciicircum{} \textbackslash{}")
    assert "$-$5.500" in evil
    assert all(len(re.findall(r"(?<!\\)&", line)) == 6 for line in lines if line.endswith(r" \\"))
    assert lines[-1] == r"\end{tabular}"
    assert "% 100%_sure x, 12 clients" in made, "no name leaves its comment"
    assert "RMSE (less is better), as trained, ± deviation over 2 seeds." in made


def test_markdown_has_as_many_cells_in_every_row() -> None:
    lines = table(compared(TWO_SEEDS), "md").splitlines()
    rows = lines[: lines.index("")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {8}
    assert "| ditto | **51.8±0.7** |" in rows[3]
    assert r"\<b\>" in rows[4]
    assert "less is better" in lines[-2]


def test_csv_is_exact_and_empty_where_nothing_is_known() -> None:
    local, ditto, _ = csv.DictReader(io.StringIO(table(compared(TWO_SEEDS), "csv")))
    assert float(ditto["mean"]) == 51.75
    assert float(ditto["gain"]) == pytest.approx(3.25)
    assert (ditto["metric"], ditto["point"], ditto["seeds"], ditto["better"]) == ("rmse", "trained", "2", "24")
    assert local["gain"] == local["p"] == ""


def test_what_is_shown_can_be_chosen() -> None:
    values = {"auc": [0.75] * 4, "rmse": [2.0] * 4}
    other = {"auc": [0.5] * 4, "rmse": [1.0] * 4}
    study = compared({"local": [result(other, values, metrics=[AUC, RMSE])]})
    assert "| local | 75.0 |" in table(study, "md")
    assert "| local | 1.000 |" in table(study, "md", "received", "rmse")
    assert json.loads(table(study, "json", "received", "rmse"))["rows"][0]["mean"]["received"]["mean"] == 1.0
    assert "RMSE after the last round" in table(study, "text", metric="rmse")


def test_the_command_prints_a_comparison_and_a_run(folder: Path, comparison: fg.Comparison[fg.Run]) -> None:
    for form in FORMATS:
        for place, labels in ((folder, list(comparison.runs)), (folder / "apfl-seed0", ["apfl"])):
            done = CliRunner().invoke(app, ["table", str(place), "--format", form])
            assert done.exit_code == 0, done.output
            assert all(label in done.output for label in labels)
    assert json.loads(CliRunner().invoke(app, ["table", str(folder), "--format", "json"]).output) == json.loads(
        json.dumps(fg.read(folder).to_json())
    )
    wrong = CliRunner().invoke(app, ["table", str(folder), "--metric", "acuracy"])
    assert isinstance(wrong.exception, UserError)
    assert "did you mean 'accuracy'" in str(wrong.exception)
    assert CliRunner().invoke(app, ["table", str(folder), "--format", "word"]).exit_code == 2


METHODS = ["fedper", "ditto", "fedapa", "apfl", "apple"]


@pytest.mark.parametrize(("dataset", "title", "unit"), [("diabetes", "RMSE", ""), ("breast-cancer", "AUC", " in %")])
def test_regression_and_auc_go_through_comparison_table_and_report(
    dataset: str, title: str, unit: str, tmp_path: Path
) -> None:
    words = ["compare", *METHODS, "--dataset", dataset, "--partition", "iid", "--clients", "4", "--rounds", "2"]
    words += ["--seeds", "1", "--workers", "1", "--out", str(tmp_path / "all"), "--report"]
    words += ["--metrics", "auc,accuracy"] if title == "AUC" else []
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert f"{title}{unit} after the last round" in done.output
    made = CliRunner().invoke(app, ["table", str(tmp_path / "all"), "--format", "md"]).output
    assert f"{title}{unit}" in made
    rows = fg.read(tmp_path / "all").rows()
    assert [row.method for row in rows] == ["local", "fedavg", *METHODS]
    assert all(f"| {row.metric.shown(row.mean['trained'].mean)}" in made.replace("*", "") for row in rows)
    page = (tmp_path / "all" / "report.html").read_text()
    assert f'Communication against <span data-m="0">{title}</span>' in page
    text = CliRunner().invoke(app, ["report", str(tmp_path / "all"), "--text"]).output
    assert f"mean {title} of the clients by round" in text
    if title == "RMSE":
        assert "accuracy" not in re.sub(r"<script.*?</script>", "", page, flags=re.S)
        assert "accuracy" not in text + made
