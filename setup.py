"""Builds the native kernels where there is a C++ compiler; everything else is in pyproject.toml.

Without a compiler the installation succeeds all the same, and fedgraft runs its convolutions in plain PyTorch.
"""

import importlib.util
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

KERNELS = "src/fedgraft/kernels"

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


setup(
    ext_modules=[
        Extension(
            "fedgraft.kernels._native",
            [f"{KERNELS}/chain.cpp", f"{KERNELS}/dispatch.cpp"],
            depends=[f"{KERNELS}/chain.h", f"{KERNELS}/build.py"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildKernels},
)
