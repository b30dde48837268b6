"""Break the contracts on purpose, one at a time, and see whether the tests notice.

    python -m trials.mutations [NUMBER ...]         # of contracts

The breaks stand in mutations.toml, those that no tool would make: mutmut changes operators, numbers and arguments
(`make mutants`). Every one is put into a copy of the tree, alone, and only the tests that ought to notice are run, in a
process of their own; the test that notices has to pass while nothing is broken. A break whose text is not found is an
error: the table has to follow the code.
"""

import argparse
import compileall
import importlib
import os
import py_compile
import shutil
import signal
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Literal

import pytest

# what takes long to import and is not ours: the forks that run the tests have it already
for name in ("hypothesis", "numpy", "pydantic", "safetensors.torch", "scipy.optimize", "sklearn.datasets", "torch"):
    importlib.import_module(name)

ROOT = Path(__file__).parents[1]
SECONDS = 600  # what the tests of one break may take; a break that hangs them is noticed too
# of the contract tests that run with every method, three are enough
CONTRACTS = ("tests/core/test_contracts.py", "-k", "not bits_do or fedavg or fedapa or local")
Verdict = Literal["noticed", "survived", "hung"]
HUNG = -1
PASSED = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
FAILED: dict[int, Verdict] = {
    pytest.ExitCode.TESTS_FAILED: "noticed",
    pytest.ExitCode.INTERRUPTED: "noticed",  # the tests cannot even be collected
    HUNG: "hung",
}


@dataclass(frozen=True)
class Mutant:
    """One deliberate break."""

    contract: int
    how: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = CONTRACTS

    def __str__(self) -> str:
        return f"contract {self.contract}: {self.how}"

    @property
    def path(self) -> Path:
        return Path("src/fedgraft") / self.file

    def apply(self, text: str) -> str:
        """Return the broken text; the place has to be there, and only once."""
        if text.count(self.old) != 1:
            raise LookupError(f"{self}: its text is in {self.path} {text.count(self.old)} times, not once")
        return text.replace(self.old, self.new)


def table() -> list[Mutant]:
    """Read all deliberate breaks."""
    content = tomllib.loads((Path(__file__).parent / "mutations.toml").read_text("utf-8"))
    return [Mutant(**{**entry, "tests": tuple(entry.get("tests", CONTRACTS))}) for entry in content["mutant"]]


class Workshop:
    """A copy of the tree in which one thing at a time is broken, and tests that are tried on it."""

    def __init__(self, room: Path, root: Path = ROOT) -> None:
        self.tree, self._sound = room / "tree", dict[str, bool]()
        left_out = shutil.ignore_patterns("__pycache__", ".mypy_cache", "*.egg-info")
        for folder in ("src", "tests", "trials"):
            if (root / folder).exists():
                shutil.copytree(root / folder, self.tree / folder, ignore=left_out)
        shutil.copy(root / "pyproject.toml", self.tree)
        # by hash: to the usual bytecode, two breaks of one length in one second look alike
        by_hash = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(self.tree / "src", quiet=2, invalidation_mode=by_hash)

    def try_out(self, mutant: Mutant) -> tuple[Verdict, str]:
        """Break the copy, run the tests, mend it; say whether they noticed, and which first."""
        place = self.tree / mutant.path
        good = place.read_text("utf-8")
        place.write_text(mutant.apply(good), "utf-8")
        try:
            code, output = self.tests([*mutant.tests, "-x"])
        finally:
            place.write_text(good, "utf-8")
        if code in PASSED:
            return "survived", ""
        if code not in FAILED:
            raise RuntimeError(f"pytest ended with {code}:\n{output}")
        names = [line.split(" - ")[0] for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
        by = names[0].partition(" ")[2] if names else ""
        if by and not self.sound(by):
            raise RuntimeError(f"{by} fails even if nothing is broken")
        return FAILED[code], by

    def sound(self, test: str) -> bool:
        """Whether a test passes while nothing is broken."""
        if test not in self._sound:
            self._sound[test] = self.tests([test])[0] in PASSED
        return self._sound[test]

    def tests(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run tests in a process of their own: a fork of this one, which has never imported the package."""
        assert not any(name.partition(".")[0] == "fedgraft" for name in sys.modules)
        with TemporaryFile("w+") as output:
            child = os.fork()
            if not child:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                os.chdir(self.tree)
                os.environ["PYTHONPATH"] = str(self.tree / "src")  # for programs that tests start
                os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they cost more than most tests
                sys.path[:] = [str(self.tree / "src"), *sys.path]
                signal.alarm(SECONDS)  # a break that hangs the tests ends them
                code = 3
                try:
                    code = int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments]))
                finally:
                    sys.stdout.flush()
                    os._exit(code)
            status = os.waitpid(child, 0)[1]
            output.seek(0)
            code = HUNG if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
            return code, output.read()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trials.mutations", description=__doc__)
    parser.add_argument("contracts", nargs="*", type=int, metavar="NUMBER", help="a contract to break (default: all)")
    options = parser.parse_args()
    chosen = [mutant for mutant in table() if not options.contracts or mutant.contract in options.contracts]
    started, survivors = time.perf_counter(), 0
    with TemporaryDirectory(prefix="fedgraft-mutations-") as room:
        workshop = Workshop(Path(room))
        for mutant in chosen:
            verdict, by = workshop.try_out(mutant)
            print(f"{verdict:9} {mutant}" + (f"  <- {by}" if by else ""), flush=True)
            survivors += verdict == "survived"
    print(f"{len(chosen) - survivors} of {len(chosen)} noticed, {time.perf_counter() - started:.0f} s")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
