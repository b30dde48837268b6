"""The table of deliberate breaks follows the code, and covers every contract."""

import subprocess
import sys
from pathlib import Path

import pytest

from trials.mutations import ROOT, Mutant, table

TABLE = table()


@pytest.mark.parametrize("mutant", TABLE, ids=str)
def test_every_break_still_applies(mutant: Mutant) -> None:
    text = (ROOT / mutant.path).read_text("utf-8")
    broken = mutant.apply(text)
    assert broken != text
    compile(broken, mutant.file, "exec")
    for path in mutant.tests:
        assert not path.startswith("tests/") or (ROOT / path).exists(), path


def test_every_contract_is_broken() -> None:
    assert {mutant.contract for mutant in TABLE} == set(range(1, 9))


def test_a_break_whose_text_is_gone_is_an_error() -> None:
    with pytest.raises(LookupError, match="0 times, not once"):
        Mutant(1, "nothing", "methods/fedavg.py", "no such text", "").apply("some text")
    with pytest.raises(LookupError, match="2 times, not once"):
        Mutant(1, "too much", "methods/fedavg.py", "a", "b").apply("a a")


@pytest.mark.slow
def test_the_script_tells_a_break_that_is_noticed_from_one_that_is_not(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "src" / "fedgraft").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "pyproject.toml").touch()
    (root / "src" / "fedgraft" / "__init__.py").touch()
    (root / "src" / "fedgraft" / "sums.py").write_text("def add(a, b):\n    return a + b\n\n\nIDLE = 1\n")
    (root / "tests" / "test_sums.py").write_text(
        "from fedgraft.sums import add\n\n\ndef test_add():\n    assert add(2, 1) == 3\n"
    )
    script = f"""
from pathlib import Path
from trials.mutations import Mutant, Workshop
workshop = Workshop(Path({str(tmp_path)!r}), Path({str(root)!r}))
good = (workshop.tree / "src/fedgraft/sums.py").read_text()
for old, new in (("a + b", "a - b"), ("IDLE = 1", "IDLE = 2"), ("def add", "def sub")):
    print(workshop.try_out(Mutant(1, "", "sums.py", old, new, ("tests/test_sums.py",))))
assert (workshop.tree / "src/fedgraft/sums.py").read_text() == good
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "('noticed', 'tests/test_sums.py::test_add')", "('survived', '')", "('noticed', 'tests/test_sums.py')"
    ], done.stdout + done.stderr  # fmt: skip
