"""The pass that finds chains in any module, and the container that runs them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from fedgraft.base.errors import UserError, unknown
from fedgraft.kernels import chain
from fedgraft.kernels.chain import Step
from fedgraft.kernels.native import Layer, Stage, library

Choice = Literal["auto", "native", "torch"]

_chosen: Choice = "auto"


def available() -> bool:
    """Whether the compiled kernels are there and this CPU can run them."""
    return bool(library().kernels)


def choose(choice: str) -> Choice:
    """Set what ``accelerate`` does in this process unless it is told otherwise."""
    global _chosen
    _chosen = checked(choice)
    return _chosen


def checked(choice: str) -> Choice:
    """The choice, if there is such a one and it can be had here."""
    known: Choice
    for known in get_args(Choice):
        if choice == known:
            if known == "native" and not available():
                raise UserError(f"kernels 'native' cannot be had: {library().problem}; 'auto' does without them")
            return known
    raise unknown("choice of kernels", choice, get_args(Choice))


def describe(choice: str | None = None) -> str:
    """One sentence: which kernels are in use, and why."""
    choice = checked(choice or _chosen)
    if choice == "torch":
        return "convolutions run in PyTorch, as asked for (kernels: torch)"
    if not available():
        return f"convolutions run in PyTorch, because there are no native kernels: {library().problem}"
    best = library().best()
    which = "every chain of layers they can do" if choice == "native" else "chains of layers where they are faster"
    return (
        f"native kernels for {best.isa.decode()} ({best.lanes} images to a vector) run {which} (kernels: {choice}); "
        f"PyTorch runs the rest"
    )


MEASURED = ("avx512", "avx2")
"""Instruction sets on which the rule of ``auto`` was checked against PyTorch; elsewhere ``auto`` stays with PyTorch."""


@lru_cache(maxsize=1024)
def worthwhile(stages: tuple[Stage, ...], batch: int) -> bool:
    """Whether the native kernels are the faster ones (the rule of ``auto``).

    It looks at shapes only, never at a clock: the bits differ in the last places, and a run must give the same ones
    every time. The costs are multiply-adds for training on one thread, fitted to the measurements in
    docs/kernels.md: PyTorch fills its vectors with channels and walks over every map again for normalisation,
    pooling and activation; the native kernels fill theirs with images, and in the backward pass of a pool with
    patches of the images that are there.
    """
    best = library().best()
    if best.isa.decode() not in MEASURED:
        return False
    images = -(-batch // best.lanes) * best.lanes / batch
    torchs, natives = 0.0, 0.0
    for stage in stages:
        height, width = stage.convolved
        values = stage.outputs * height * width
        taps = stage.channels * stage.kernel[0] * stage.kernel[1]
        channels = -(-stage.outputs // best.lanes) * best.lanes / stage.outputs
        passes = 80 if stage.pool else 16 if stage.kernel != (1, 1) else 0
        backward = 0.55 if library().by_patches(stage) else images
        natives += values * taps * (images + 2 * backward) / 3
        if stage.norm is not None:
            passes += 80 * channels
            natives += values * 40 * images
        torchs += values * (0.85 * taps * channels + passes)
    return torchs > 1.05 * natives


USUAL_BATCHES = (1, 10, 16, 20, 32, 50, 64, 100, 128, 256)


@dataclass(frozen=True)
class Found:
    """A chain of layers in a module, and the usual batch sizes at which it runs natively (None: size unknown)."""

    container: str
    layers: tuple[str, ...]
    native_at: tuple[int, ...] | None

    def __str__(self) -> str:
        names = [f"{self.container}.{layer}" if self.container else layer for layer in self.layers]
        place = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
        if self.native_at is None:
            return f"{place}: native where it is faster"
        if self.native_at == USUAL_BATCHES:
            return f"{place}: native"
        return (
            f"{place}: native at batch {', '.join(map(str, self.native_at))}" if self.native_at else f"{place}: PyTorch"
        )


@dataclass(frozen=True)
class Report:
    """What ``accelerate`` did."""

    module: nn.Module
    choice: Choice
    chains: tuple[Found, ...] = ()
    left: tuple[tuple[str, str], ...] = ()
    """Convolutions that always stay with PyTorch, and why."""

    def __str__(self) -> str:
        lines = [describe(self.choice), *map(str, self.chains)]
        return "\n".join(lines + [f"{name}: PyTorch, because {reason}" for name, reason in self.left])


def accelerate(module: nn.Module, example: Tensor | None = None, choice: str | None = None) -> Report:
    """Let the native kernels run what they can of ``module``, in place.

    Every parameter and buffer stays the object it was, under its name. ``example`` is a batch that the module
    accepts: both ways of computing are compared on it, and a module that computes something else with its layers
    fused is left as it was. Without an example nothing is compared.
    """
    kernels = checked(choice or _chosen)
    if kernels == "torch" or not available():
        for container in module.modules():
            if type(container) is FusedSequential:
                container.kernels = kernels
        return Report(module, kernels)
    containers = {
        name: container
        for name, container in module.named_modules()
        if type(container) in PLAIN and any(segment.steps for segment in _cut(container))
    }
    sizes = {} if example is None else _compared(module, containers, example)
    if sizes is None:
        reason = "the module computes something else with its layers fused"
        return Report(module, kernels, left=tuple((name, reason) for name in _convolutions(module)))
    for container in containers.values():
        _fuse(container, kernels)
    segments = [(name, s) for name, container in containers.items() for s in _cut(container) if s.steps]
    found = tuple(Found(name, s.names, _native_at(kernels, sizes.get(id(s.modules[0])))) for name, s in segments)
    fused = {id(layer) for _, segment in segments for layer in segment.convolutions}
    left = tuple(
        (name, chain.why_not(layer) or "it is not a layer of an nn.Sequential")
        for name, layer in _convolutions(module).items()
        if id(layer) not in fused
    )
    return Report(module, kernels, found, left)


def _native_at(choice: Choice, stages: tuple[Stage, ...] | None) -> tuple[int, ...] | None:
    if choice == "native":
        return USUAL_BATCHES
    return None if stages is None else tuple(batch for batch in USUAL_BATCHES if worthwhile(stages, batch))


def _fuse(container: nn.Module, choice: Choice) -> None:
    container.__class__ = FusedSequential
    container.__dict__["kernels"] = choice


def _convolutions(module: nn.Module) -> dict[str, nn.Conv2d]:
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Conv2d)}


def _compared(
    module: nn.Module, containers: dict[str, nn.Module], example: Tensor
) -> dict[int, tuple[Stage, ...]] | None:
    """The sizes that the chains meet, by their first modules; None if fused layers compute something else."""
    before = {name: (type(container), container.__dict__.copy()) for name, container in containers.items()}
    plain = _evaluated(module, example)
    for container in containers.values():
        _fuse(container, "native")
    try:
        with _watched() as seen:
            fused = _evaluated(module, example)
    finally:
        for name, container in containers.items():
            container.__class__, container.__dict__ = before[name]
    same = len(plain) == len(fused) and all(
        torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True) for a, b in zip(plain, fused, strict=True)
    )
    return seen if same else None


def _evaluated(module: nn.Module, example: Tensor) -> list[Tensor]:
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            return list(_tensors(module(example)))
    finally:
        for part, training in modes:
            part.training = training


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in what a module returned."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _tensors(inner)


# The sizes that chains met, by the identity of their first module, while somebody watches.
_seen: dict[int, tuple[Stage, ...]] | None = None


@contextmanager
def _watched() -> Iterator[dict[int, tuple[Stage, ...]]]:
    global _seen
    _seen = {}
    try:
        yield _seen
    finally:
        _seen = None


@dataclass
class Segment:
    """Neighbouring layers of a container: a chain, or one layer that is none."""

    names: tuple[str, ...]
    children: tuple[nn.Module, ...]
    modules: tuple[nn.Module, ...]
    """The children and all that is inside them."""
    convolutions: tuple[nn.Conv2d, ...] = ()
    norms: tuple[nn.BatchNorm2d | None, ...] = ()
    """The normalisation behind each convolution."""
    steps: tuple[Step, ...] = ()

    def plainly(self, x: Tensor) -> Tensor:
        for child in self.children:
            x = child(x)
        return x

    def natively(self, x: Tensor, *, always: bool) -> Tensor | None:
        """The chain's output, or None where PyTorch should run the layers."""
        if x.dim() != 4 or x.shape[1] != self.steps[0].channels or any(map(_hooked, self.modules)):
            return None
        layers = [_layer(*both) for both in zip(self.convolutions, self.norms, strict=True)]
        if not all(map(_readable, layers)):
            return None
        stages = chain.stages(self.steps, x.shape[2], x.shape[3])
        if stages is None or not (always or worthwhile(stages, x.shape[0])):
            return None
        norms = [norm for norm in self.norms if norm is not None]
        learn = bool(norms) and norms[0].training
        if norms and not self._normalises(x, stages, layers, learn=learn):
            return None
        if _seen is not None:
            _seen[id(self.modules[0])] = stages
        if learn:
            for norm in norms:
                norm.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        return chain.run(chain.plan(stages), self.steps, x, layers, learn=learn)

    def _normalises(self, x: Tensor, stages: tuple[Stage, ...], layers: list[Layer], *, learn: bool) -> bool:
        """Whether the normalisations are as the kernels have them: all in one mode, with what they were made with.

        In training they have gradients, in evaluation none, and a batch of a single number is left to PyTorch's error.
        """
        for norm, step, layer in zip(self.norms, self.steps, layers, strict=True):
            if norm is not None and (
                norm.training != learn or chain.norm_of(norm) != step.norm or any(t is None for t in layer[2:])
            ):
                return False
        if learn:
            return all(math.prod(stage.convolved) * len(x) > 1 for stage in stages if stage.norm is not None)
        return not chain.differentiated(x, layers)


def _layer(convolution: nn.Conv2d, norm: nn.BatchNorm2d | None) -> Layer:
    own = (convolution.weight, convolution.bias)
    return Layer(*own) if norm is None else Layer(*own, norm.weight, norm.bias, norm.running_mean, norm.running_var)


def _readable(layer: Layer) -> bool:
    """Whether the kernels can read all tensors of a layer."""
    weight, *vectors = layer
    return (
        weight is not None
        and _ordinary(weight)
        and all(v is None or (_ordinary(v) and v.stride() == (1,)) for v in vectors)
    )


class FusedSequential(nn.Sequential):
    """An ``nn.Sequential`` that runs chains of its layers natively where it can, and one by one where it cannot.

    ``accelerate`` makes a container one of these by changing its class: the layers stay the objects they were under
    the names they had, so that state_dicts, flat layouts, hooks and copies do not notice.
    """

    kernels: Choice = "auto"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_known_segments"}

    def __getitem__(self, idx: slice | int) -> Any:
        found = super().__getitem__(idx)
        if isinstance(idx, slice):
            found.__dict__["kernels"] = self.kernels
        return found

    def forward(self, input: Tensor) -> Tensor:
        x, always = input, self.kernels == "native"
        native = self.kernels != "torch" and available() and _ordinary(x) and not _watched_by_torch()
        for segment in _segments(self):
            result = segment.natively(x, always=always) if native and segment.steps else None
            x = segment.plainly(x) if result is None else result
        return x


PLAIN = (nn.Sequential, FusedSequential)


def _segments(container: FusedSequential) -> list[Segment]:
    """The container's segments; worked out once, and again when a layer was exchanged."""
    inside = tuple(_inside(container))
    known: tuple[tuple[nn.Module, ...], list[Segment]] | None = container.__dict__.get("_known_segments")
    if known is None or len(known[0]) != len(inside) or any(a is not b for a, b in zip(known[0], inside, strict=True)):
        known = inside, list(_cut(container))
        container.__dict__["_known_segments"] = known
    return known[1]


def _inside(container: nn.Module) -> Iterator[nn.Module]:
    for child in container._modules.values():
        assert child is not None
        yield child
        if type(child) in PLAIN:
            yield from _inside(child)


def _leaves(child: nn.Module) -> list[nn.Module]:
    """The layers of a child; those of a plain container inside a container may belong to its chains."""
    if type(child) not in PLAIN:
        return [child]
    return [leaf for inner in child.children() for leaf in _leaves(inner)]


def _cut(container: nn.Module) -> Iterator[Segment]:
    children = [(name, child) for name, child in container._modules.items() if child is not None]
    position = 0
    while position < len(children):
        leaves: list[nn.Module] = []
        ends = []
        for _, child in children[position:]:
            leaves += _leaves(child)
            ends.append(len(leaves))
        longest = chain.longest(leaves)
        # a chain may end inside a nested container: then the last one that it covers wholly
        count = max((n for n, end in enumerate(ends, start=1) if end <= longest), default=0)
        taken = children[position : position + max(count, 1)]
        names, modules = tuple(name for name, _ in taken), tuple(child for _, child in taken)
        everything = tuple(inner for child in modules for inner in child.modules())
        if count and ends[count - 1]:
            layers = leaves[: ends[count - 1]]
            convolutions = tuple(layer for layer in layers if isinstance(layer, nn.Conv2d))
            norms = tuple(
                behind if isinstance(behind, nn.BatchNorm2d) else None
                for layer, behind in zip_longest(layers, layers[1:])
                if isinstance(layer, nn.Conv2d)
            )
            yield Segment(names, modules, everything, convolutions, norms, chain.steps(layers))
        else:
            yield Segment(names, modules, everything)
        position += len(taken)


def _hooked(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
    )


def _ordinary(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.numel() > 0
    )


def _watched_by_torch() -> bool:
    """Whether something wants to see PyTorch's own operations: tracing, transforms, autocast, dispatch modes, hooks."""
    internals: Any = torch._C
    return bool(
        internals._get_tracing_state() is not None
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or internals._are_functorch_transforms_active()
        or internals._len_torch_dispatch_stack()
        or internals._len_torch_function_stack()
        or torch.autograd.forward_ad._current_level >= 0
        or torch_modules._has_any_global_hook()  # type: ignore[no-untyped-call]
    )
