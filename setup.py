"""Builds the native kernels and names the wheel by what is in it; everything else is in pyproject.toml.

`FEDGRAFT_KERNELS` says what becomes of the kernels: `required` (a wheel for one platform, or no wheel), `none` (the
wheel that runs anywhere), or nothing: they are built where there is a C++ compiler, and left out where there is none or
it fails. Without them fedgraft runs its convolutions in plain PyTorch.
"""

import importlib.util
import os
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, OptionError

KERNELS = "src/fedgraft/kernels"
WANTED = os.environ.get("FEDGRAFT_KERNELS", "")

found = importlib.util.spec_from_file_location("build_kernels", Path(__file__).parent / KERNELS / "build.py")
assert found is not None
assert found.loader is not None
build_kernels = importlib.util.module_from_spec(found)
found.loader.exec_module(build_kernels)


class BuildKernels(build_ext):
    """A plain shared library instead of a Python extension: it is loaded with ctypes and serves every Python."""

    def get_ext_filename(self, fullname: str) -> str:
        *package, _ = fullname.split(".")
        return str(Path(*package, build_kernels.LIBRARY))

    def build_extension(self, ext: Extension) -> None:
        try:
            made = build_kernels.compile_library(Path(self.get_ext_fullpath(ext.name)))
        except build_kernels.BuildError as error:
            raise CompileError(f"the native kernels are left out, and PyTorch will do their work: {error}") from error
        print(f"built the native kernels for {', '.join(made)}")


class Wheel(bdist_wheel):
    """One wheel for every Python 3: of one platform with the kernels in it, of any without."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", platform if any(Path(self.bdist_dir).rglob(build_kernels.LIBRARY)) else "any"


def extensions() -> list[Extension]:
    """The kernels, unless they are not wanted."""
    if WANTED not in ("", "required", "none"):
        raise OptionError(f"FEDGRAFT_KERNELS is 'required', 'none' or empty, not {WANTED!r}")
    kernels = Extension(
        "fedgraft.kernels._native",
        [f"{KERNELS}/chain.cpp", f"{KERNELS}/dispatch.cpp"],
        depends=[f"{KERNELS}/{name}" for name in ("chain.h", "pooled.h", "normed.h", "build.py")],
        optional=WANTED != "required",
    )
    return [] if WANTED == "none" else [kernels]


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel})
