"""Build a release into dist/ and test what was built: `make dist`.

A source distribution, a wheel with the kernels for this platform and a wheel without them for any. Each is installed
into an empty environment outside the checkout with no compiler on the path, where the demonstration and the tests run
against it; every instruction set that this CPU has runs the kernels' tests. Where qemu-x86_64 is installed, the wheel
with the kernels also works on two CPUs that it emulates, one without AVX2 and one without AVX-512.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEMO = (
    "compare", "ditto", "fedper", "--dataset", "digits", "--clients", "13", "--partition", "blocks:train=40",
    "--model", "mlp:64", "--rounds", "2", "--batch-size", "10", "--seeds", "2", "--by-client", "--report",
)  # fmt: skip
FEW = ("fedper", "--rounds", "1", "--clients", "2", "--workers", "1")
QUICK = ("tests/kernels", "tests/models", "tests/test_cli.py", "tests/exports")
NOT_INSTALLED = ("tests/test_tables.py", "tests/trials", "tests/benchmarks", "tests/docs", "tests/release")
"""Tests of what lies in the checkout and not in the package."""
LIBRARY = "fedgraft/kernels/_native.so"
EMULATED = {"Nehalem": ("baseline",), "Haswell": ("avx2", "baseline")}
"""CPUs of qemu-x86_64, which has no AVX-512, and the kernels that have to be found on each."""


def say(text: str) -> None:
    """Tell how far it is."""
    print(f"release: {text}", flush=True)


def call(
    words: Sequence[str | Path], cwd: Path = ROOT, extra: Mapping[str, str] | None = None, quiet: bool = False
) -> None:
    """Run a program that has to succeed, without the checkout on its path."""
    tools = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PATH": tools} | dict(extra or {})
    told = subprocess.PIPE if quiet else None
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=environment, stdout=told, stderr=told, text=True, check=False
    )
    if done.returncode:
        print(done.stdout or "", done.stderr or "", file=sys.stderr)
        sys.exit(f"release: {' '.join(map(str, words))} failed")


# ---- building


def build(out: Path) -> None:
    """The source distribution, and both wheels from it rather than from the checkout."""
    shutil.rmtree(out, ignore_errors=True)
    call([sys.executable, "-m", "build", "--sdist", "--outdir", out, ROOT], quiet=True)
    source = next(out.glob("*.tar.gz"))
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(source, folder, filter="data")
        unpacked = next(Path(folder).iterdir())
        call(_wheel(unpacked, out), extra={"FEDGRAFT_KERNELS": "none"}, quiet=True)
        shutil.rmtree(unpacked / "build", ignore_errors=True)
        call(_wheel(unpacked, Path(folder) / "raw"), extra={"FEDGRAFT_KERNELS": "required"}, quiet=True)
        _named_by_platform(next(Path(folder, "raw").glob("*.whl")), out)


def _wheel(source: Path, out: Path) -> list[str | Path]:
    return [sys.executable, "-m", "build", "--wheel", "--outdir", out, source]


def _named_by_platform(wheel: Path, out: Path) -> None:
    """On Linux, auditwheel says how old a system may be; elsewhere the wheel's own name is right."""
    if sys.platform == "linux":
        call([sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", out, wheel], quiet=True)
    else:
        shutil.copy(wheel, out)


def inspect(out: Path) -> tuple[Path, Path, Path]:
    """Source, wheel with kernels, wheel without; what is in them is what their names say."""
    source = next(out.glob("*.tar.gz"))
    wheels = sorted(out.glob("*.whl"))
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            assert (LIBRARY in archive.namelist()) != wheel.name.endswith("-any.whl"), wheel.name
    (plain,) = (wheel for wheel in wheels if wheel.name.endswith("-any.whl"))
    (native,) = (wheel for wheel in wheels if wheel != plain)
    return source, native, plain


# ---- testing


TOOLS = ("sh", "env", "uname", "nproc", "git", "nginx", "chromium")
"""What a program may find on the path beside the environment: no compiler."""


class Scratch:
    """An empty environment without a compiler, and a folder with the tests and nothing else of the checkout."""

    def __init__(self, folder: Path, python: str) -> None:
        self.here = folder / "here"
        self.python = folder / "venv" / "bin" / "python"
        call([python, "-m", "venv", folder / "venv"])
        self.path = os.pathsep.join((str(self.python.parent), str(_without_a_compiler(folder / "tools"))))
        self.here.mkdir()
        for name in ("tests", "trials", "benchmarks"):
            shutil.copytree(ROOT / name, self.here / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", self.here)

    def pip(self, *words: str | Path) -> None:
        constraints: list[str | Path] = ["--constraint", ROOT / "constraints.txt"]
        self._call("pip", "install", "--quiet", *constraints, *words)

    def again(self, what: Path) -> None:
        """Another build of the same version takes its place."""
        self.pip("--force-reinstall", "--no-deps", what)

    def fedgraft(self, *words: str) -> None:
        self._call("fedgraft", *words)

    def _call(self, module: str, *words: str | Path, **extra: str) -> None:
        call([self.python, "-m", module, *words], self.here, {"PATH": self.path, **extra})

    def kernels(self) -> str:
        """The instruction sets that were found, best first; nothing without the library."""
        asked = "from fedgraft.kernels.native import library as l; print(*(k.isa.decode() for k in l().kernels))"
        done = subprocess.run(
            [str(self.python), "-c", asked], cwd=self.here, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def emulate(self, emulator: str, cpu: str, *words: str | Path) -> None:
        """Run Python on another CPU; one process, since what it starts would not be emulated."""
        call([emulator, "-cpu", cpu, self.python, *words], self.here, {"PATH": self.path, "OMP_NUM_THREADS": "1"})

    def test(self, *words: str, **extra: str) -> None:
        left_out = [f"--ignore={path}" for path in NOT_INSTALLED]
        self._call("pytest", *left_out, *words, **extra)


def _without_a_compiler(folder: Path) -> Path:
    """A folder with the few programs of this system that tests may start."""
    folder.mkdir()
    for name in TOOLS:
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


def other_cpus(scratch: Scratch) -> None:
    """The kernels on CPUs that have less than the one that built them."""
    emulator = shutil.which("qemu-x86_64")
    if emulator is None:
        say("no qemu-x86_64 (Debian: apt-get install qemu-user): no other CPU was tried")
        return
    for cpu, found in EMULATED.items():
        say(f"on an emulated {cpu}")
        scratch.emulate(emulator, cpu, ROOT / "release" / "emulated.py", *found)
        scratch.emulate(emulator, cpu, "-m", "fedgraft", "run", *FEW, "--out", f"on-{cpu}")


def check(out: Path, python: str, whole: bool) -> None:
    """Install what was built, one after another, and use it."""
    source, native, plain = inspect(out)
    with tempfile.TemporaryDirectory(prefix="fedgraft-release-") as folder:
        scratch = Scratch(Path(folder), python)
        scratch.pip(native)
        say(f"{native.name}: {scratch.kernels()}")
        scratch.fedgraft("doctor")
        scratch.fedgraft(*DEMO)
        scratch.pip(f"fedgraft[dev] @ {native.as_uri()}")
        scratch.test(*(("-n", "2", "--dist", "loadgroup") if whole else QUICK))
        for isa in scratch.kernels().split():
            say(f"{native.name}, held to {isa}")
            scratch.test("tests/kernels/test_chain.py", "tests/kernels/test_fusion.py", FEDGRAFT_ISA=isa)
        other_cpus(scratch)
        scratch.again(plain)
        assert not scratch.kernels(), "the plain wheel has kernels"
        say(f"{plain.name}: no kernels")
        scratch.test(*QUICK)
        scratch.again(source)
        assert not scratch.kernels(), "there was no compiler"
        say(f"{source.name}: installed without a compiler")
        scratch.fedgraft("run", *FEW, "--out", "from-source")


def main() -> None:
    """Build, and test what was built."""
    words = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    words.add_argument("--out", type=Path, default=ROOT / "dist")
    words.add_argument("--python", default=sys.executable, help="the interpreter to test with")
    words.add_argument("--check-only", action="store_true", help="test what is in dist/ already")
    words.add_argument("--whole", action="store_true", help="every test against the wheel, not those of a minute")
    given = words.parse_args()
    if not given.check_only:
        build(given.out)
    check(given.out.resolve(), given.python, given.whole)
    say("done: " + ", ".join(sorted(path.name for path in given.out.iterdir())))


if __name__ == "__main__":
    main()
