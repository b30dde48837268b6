"""The compiled library behind ctypes: what it can do, and plans with their memory."""

import ctypes
import os
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedgraft.kernels.build import LIBRARY


class _Stage(Structure):
    _fields_ = (
        *((name, c_int32) for name in (
            "channels", "height", "width", "outputs", "kernel_y", "kernel_x", "stride_y", "stride_x", "pad_y", "pad_x",
            "pool", "activation", "activate_first", "norm",
        )),
        *((name, c_float) for name in ("slope", "epsilon", "momentum")),
    )  # fmt: skip


class _Tensor4(Structure):
    _fields_ = (("data", c_void_p), ("strides", c_int64 * 4))


class _Parameters(Structure):
    _fields_ = (
        ("weight", _Tensor4),
        *((name, c_void_p) for name in ("bias", "norm_weight", "norm_bias", "mean", "variance")),
    )


_SIZE = CFUNCTYPE(c_int64, c_void_p, c_int64)
_SIZE_OF_BLOCKS = CFUNCTYPE(c_int64, c_void_p, c_int64, c_int64)
_QUESTION = CFUNCTYPE(c_int64, c_void_p)
_FORWARD = CFUNCTYPE(
    None, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64
)  # fmt: skip
_BACKWARD = CFUNCTYPE(None, c_void_p, c_int64, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)


class _Kernels(Structure):
    _fields_ = (
        ("isa", c_char_p),
        ("lanes", c_int64),
        ("saved_bytes", _SIZE),
        ("scratch_bytes", _SIZE_OF_BLOCKS),
        ("by_patches", _QUESTION),
        ("forward", _FORWARD),
        ("backward", _BACKWARD),
        ("peak", CFUNCTYPE(c_double, c_int64)),
    )


@dataclass(frozen=True)
class Library:
    """What was found when the library was looked for: kernels, or the reason why there are none."""

    kernels: tuple[Any, ...] = ()
    """Best first; all of them can run on this CPU."""
    problem: str = ""

    def best(self) -> Any:
        return self.kernels[0]

    def by_patches(self, stage: "Stage") -> bool:
        """Whether the backward pass of a stage visits the winners of its pool alone."""
        structure = stage.structure()
        return bool(self.best().by_patches(ctypes.addressof(structure)))


@cache
def library() -> Library:
    """Load the library once per process."""
    path = Path(__file__).parent / LIBRARY
    if not path.exists():
        return Library(problem="they were not compiled; python -m fedgraft.kernels does that with a C++ compiler")
    try:
        entry = ctypes.CDLL(str(path)).fedgraft_kernels_3  # as in chain.h
    except OSError as error:
        return Library(problem=f"the compiled library cannot be loaded: {error}")
    except AttributeError:
        return Library(problem="they were compiled from other sources; python -m fedgraft.kernels does it again")
    entry.restype, entry.argtypes = POINTER(_Kernels), [c_int64]
    found: list[Any] = []
    while pointer := entry(len(found)):
        found.append(pointer.contents)
    if wanted := os.environ.get("FEDGRAFT_ISA"):
        found = [kernels for kernels in found if kernels.isa.decode() == wanted]
        if not found:
            return Library(problem=f"FEDGRAFT_ISA asks for {wanted!r}, which this library or this CPU does not have")
    return Library(tuple(found))


class Stage(NamedTuple):
    """A convolution with what follows it, for inputs of one size; the fields of ``Stage`` in chain.h."""

    channels: int
    height: int
    width: int
    outputs: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]
    pool: bool
    activation: int
    activate_first: bool
    slope: float
    norm: tuple[float, float] | None = None
    """Epsilon and momentum of a batch normalisation right behind the convolution."""

    @property
    def convolved(self) -> tuple[int, int]:
        """Height and width behind the convolution; 0 or less where the kernel does not fit."""
        height, width = (
            (side + 2 * pad - kernel) // stride + 1
            for side, pad, kernel, stride in zip(
                (self.height, self.width), self.pad, self.kernel, self.stride, strict=True
            )
        )
        return height, width

    @property
    def shape(self) -> tuple[int, int, int]:
        """What comes out for one image."""
        height, width = self.convolved
        return (self.outputs, height // 2, width // 2) if self.pool else (self.outputs, height, width)

    def structure(self) -> _Stage:
        return _Stage(
            self.channels, self.height, self.width, self.outputs, *self.kernel, *self.stride, *self.pad,
            self.pool, self.activation, self.activate_first, self.norm is not None, self.slope, *(self.norm or (0, 0)),
        )  # fmt: skip


class Layer(NamedTuple):
    """The tensors of a stage, or their gradients; None where there is none, or none is wanted."""

    weight: Tensor | None
    bias: Tensor | None
    norm_weight: Tensor | None = None
    norm_bias: Tensor | None = None
    mean: Tensor | None = None
    variance: Tensor | None = None
    """The running moments of a batch normalisation."""


class Lease:
    """Memory that goes back to its plan when the last user forgets it, be that a call or an autograd graph."""

    __slots__ = ("_home", "address", "memory")

    def __init__(self, home: list[Tensor], size: int) -> None:
        self._home = home
        try:
            memory = home.pop()
        except IndexError:
            memory = None
        if memory is None or memory.numel() < size + 64:
            # zeros: the kernels count on borders that nobody has written to
            memory = torch.zeros(size + 64, dtype=torch.uint8)
        self.memory: Tensor = memory
        self.address = memory.data_ptr() + -memory.data_ptr() % 64

    def __del__(self) -> None:
        if len(self._home) < 8:
            self._home.append(self.memory)


@dataclass(frozen=True, eq=False)
class Plan:
    """A chain of stages for one input size, with the memory that its calls use again and again.

    A forward pass keeps its lease until its graph is gone, so that several may be alive at once (teacher and
    student, two batches, retained graphs).
    """

    stages: tuple[Stage, ...]
    kernels: Any = field(default_factory=lambda: library().best())
    _structures: Any = field(init=False)
    _saved: list[Tensor] = field(init=False, default_factory=list)
    _scratch: list[Tensor] = field(init=False, default_factory=list)
    _block_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        structures = (_Stage * len(self.stages))(*(stage.structure() for stage in self.stages))
        object.__setattr__(self, "_structures", structures)
        object.__setattr__(self, "_block_bytes", self.kernels.saved_bytes(structures, len(self.stages)))

    @cached_property
    def normalises(self) -> bool:
        """Whether all images of a batch go through a stage together when it is trained."""
        return any(stage.norm is not None for stage in self.stages)

    def forward(self, x: Tensor, layers: Sequence[Layer], *, keep: bool, learn: bool = False) -> tuple[Tensor, Lease]:
        """Run the chain; with ``keep``, the lease holds what the backward pass needs.

        A chain that normalises does so by the running moments, or, with ``learn``, by those of the batch, towards which
        the running ones then move.
        """
        x = in_known_order(x)
        batch = x.shape[0]
        output = torch.empty((batch, *self.stages[-1].shape))
        blocks = -(-batch // self.kernels.lanes) if keep or learn else 1
        saved, scratch = Lease(self._saved, blocks * self._block_bytes), self._lend_scratch(1)
        source = _Tensor4(x.data_ptr(), x.stride())
        self.kernels.forward(
            self._structures, len(self.stages), batch, ctypes.addressof(source), _parameters(layers),
            output.data_ptr(), saved.address, scratch.address, keep, learn,
        )  # fmt: skip
        return output, saved

    def backward(
        self,
        gradient: Tensor,
        layers: Sequence[Layer],
        saved: Lease,
        gradients: Sequence[Layer],
        input_gradient: Tensor | None,
    ) -> None:
        """Fill the gradients that are not None, from the memory that the forward pass left."""
        gradient = gradient.contiguous()
        batch = gradient.shape[0]
        scratch = self._lend_scratch(-(-batch // self.kernels.lanes) if self.normalises else 1)
        self.kernels.backward(
            self._structures, len(self.stages), batch, gradient.data_ptr(), _parameters(layers), _parameters(gradients),
            None if input_gradient is None else input_gradient.data_ptr(), saved.address, scratch.address,
        )  # fmt: skip

    def _lend_scratch(self, blocks: int) -> Lease:
        return Lease(self._scratch, self.kernels.scratch_bytes(self._structures, len(self.stages), blocks))


def in_known_order(x: Tensor) -> Tensor:
    """``x`` itself if the kernels can read it: batch innermost, or each image in one piece; otherwise a copy."""
    _, channels, height, width = x.shape
    image, channel, row, column = x.stride()
    if image == 1 and x.shape[0] > 1:
        return x
    planar = (channel == height * width or channels == 1) and row == width and column == 1
    interleaved = channel == 1 and column == channels and row == width * channels
    if (planar or interleaved) and (image > 1 or x.shape[0] == 1):
        return x
    return x.contiguous()


def _parameters(layers: Sequence[Layer]) -> Any:
    array = (_Parameters * len(layers))()
    for entry, layer in zip(array, layers, strict=True):
        weight, *vectors = layer
        if weight is not None:
            entry.weight.data = weight.data_ptr()
            entry.weight.strides[:] = weight.stride()
        for name, vector in zip(Layer._fields[1:], vectors, strict=True):
            if vector is not None:
                setattr(entry, name, vector.data_ptr())
    return array
