"""Compile the kernels: ``python -m fedgraft.kernels`` puts them beside this file.

``setup.py`` loads this file by its path, before the package can be imported: it uses the standard library alone.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = "_native.so"

# -ffp-contract lets a product and a sum become one rounding. Nothing here lets the compiler assume that numbers are
# finite or reorder sums: a diverging client must end in NaN, and the same source must give the same bits.
FLAGS = (
    "-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math",
    "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra",
)  # fmt: skip
# Exactly the features that dispatch.cpp asks the CPU for.
VARIANTS = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mprefer-vector-width=512"),
    "avx2": ("-mavx2", "-mfma"),
}


class BuildError(RuntimeError):
    """There is no compiler, or it failed; the text says which."""


def compiler() -> list[str]:
    """The C++ compiler: ``CXX`` if it is set, otherwise the first usual one on the path."""
    if named := os.environ.get("CXX"):
        return shlex.split(named)
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise BuildError("no C++ compiler (c++, g++ or clang++) is on the path, and CXX does not name one")


def compile_library(target: Path, extra: Sequence[str] = ()) -> list[str]:
    """Compile ``target``, and return the instruction sets that are in it."""
    command = compiler()
    variants: dict[str, tuple[str, ...]] = {}
    if platform.machine().lower() in ("x86_64", "amd64"):
        variants = dict(VARIANTS)
    with tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder) / "baseline.o"]
        _run([*command, *FLAGS, *extra, "-DISA=baseline", "-c", str(HERE / "chain.cpp"), "-o", str(objects[0])])
        made = []
        for name, flags in variants.items():
            here = Path(folder) / f"{name}.o"
            source = ["-c", str(HERE / "chain.cpp"), "-o", str(here)]
            try:
                _run([*command, *FLAGS, *flags, *extra, f"-DISA={name}", *source])
            except BuildError:  # an old compiler that lacks an option: the other variants will do
                continue
            objects.append(here)
            made.append(name)
        have = [f"-DHAVE_{name}" for name in made]
        objects.append(Path(folder) / "dispatch.o")
        _run([*command, *FLAGS, *extra, *have, "-c", str(HERE / "dispatch.cpp"), "-o", str(objects[-1])])
        linked = Path(folder) / LIBRARY
        _run([*command, "-shared", *extra, *map(str, objects), "-o", str(linked)])
        target.parent.mkdir(parents=True, exist_ok=True)
        # A process that has the old library open keeps it: a new file takes the name.
        fresh = target.with_suffix(".new")
        shutil.copyfile(linked, fresh)
        fresh.replace(target)
    return [*made, "baseline"]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"the compiler {command[0]} cannot be run: {error}") from error
    if done.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{done.stderr.strip()}")


def main() -> int:
    """Compile into the package and say what was made."""
    target = HERE / LIBRARY
    try:
        variants = compile_library(target)
    except BuildError as error:
        print(f"the kernels were not built, so plain PyTorch will do the work: {error}", file=sys.stderr)
        return 1
    print(f"built {LIBRARY} for {', '.join(variants)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
