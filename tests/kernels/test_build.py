"""The compiled code by itself: sanitizers, no threads, nothing but C at its borders."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from fedgraft import kernels
from fedgraft.kernels import build, native

SOURCES = Path(build.__file__).parent


def compiler() -> list[str]:
    try:
        return build.compiler()
    except build.BuildError as error:
        pytest.skip(str(error))


def test_without_a_compiler_the_build_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "HERE", tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert build.main() == 1
    assert "no-such-compiler cannot be run" in capsys.readouterr().err
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler"):
        build.compiler()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not kernels.available(), reason=f"no native kernels: {native.library().problem}")
def test_no_thread_is_started() -> None:
    library = (SOURCES / build.LIBRARY).read_bytes()
    assert b"pthread_create" not in library
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("this system does not list its threads")
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    module(torch.randn(64, 1, 16, 16)).sum().backward()  # whatever PyTorch starts, it has started now
    before = set(tasks.iterdir())
    kernels.accelerate(module, torch.randn(2, 1, 16, 16), "native")
    module(torch.randn(64, 1, 16, 16)).sum().backward()
    assert set(tasks.iterdir()) == before


def instruction_sets() -> list[str]:
    """The best of this machine, and the plainest."""
    return list(dict.fromkeys((*(each.isa.decode() for each in native.library().kernels[:1]), "baseline")))


@pytest.mark.slow
@pytest.mark.parametrize("isa", [*instruction_sets(), "16 lanes"])
def test_sanitizers_find_nothing(isa: str, tmp_path: Path) -> None:
    """The driver runs random chains in buffers of exactly the right size and compares them with plain loops.

    Vectors of AVX-512's length are tried on every CPU: the compiler makes them of shorter ones.
    """
    command = compiler()
    program = tmp_path / "driver"
    flags = [f for f in build.FLAGS if f != "-O3"] + ["-O0", "-g0", "-DISA=baseline"]
    flags += ["-DLANES=16"] if isa == "16 lanes" else build.VARIANTS.get(isa, ())
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [str(SOURCES / "chain.cpp"), str(SOURCES / "dispatch.cpp"), str(Path(__file__).parent / "driver.cpp")]
    made = subprocess.run(
        [*command, *flags, *checks, f"-I{SOURCES}", *sources, "-o", str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"this compiler has no sanitizers on {platform.machine()}: {made.stderr.strip()[-200:]}")
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "chains agree" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["cortex-a53", pytest.param("max", marks=pytest.mark.long)])
def test_they_agree_with_plain_loops_on_an_emulated_arm(cpu: str, tmp_path: Path) -> None:
    cross, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
    if cross is None or emulator is None:
        pytest.skip("no cross compiler or no emulator (Debian: apt-get install g++-aarch64-linux-gnu qemu-user)")
    program = tmp_path / "driver"
    sources = [str(SOURCES / "chain.cpp"), str(SOURCES / "dispatch.cpp"), str(Path(__file__).parent / "driver.cpp")]
    flags = [*build.FLAGS, "-static", "-DISA=baseline", f"-I{SOURCES}"]
    subprocess.run([cross, *flags, *sources, "-o", str(program)], check=True)
    done = subprocess.run([emulator, "-cpu", cpu, str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "chains agree" in done.stdout
