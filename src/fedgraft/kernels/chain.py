"""Chains of Conv2d, BatchNorm2d, pooling and activation: recognising them, and running them under autograd."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedgraft.kernels.native import Layer, Lease, Plan, Stage

NONE, RELU, LEAKY = 0, 1, 2


class Step(NamedTuple):
    """A convolution with what follows it, for inputs of any size."""

    channels: int
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

    def torch(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        norm_weight: Tensor | None = None,
        norm_bias: Tensor | None = None,
    ) -> Tensor:
        """The same in PyTorch's operations, normalised by the moments of the batch."""
        x = F.conv2d(x, weight, bias, self.stride, self.pad)
        if self.norm is not None:
            x = F.batch_norm(x, None, None, norm_weight, norm_bias, training=True, eps=self.norm[0])
        for turn in (True, False):
            if self.activation and self.activate_first == turn:
                x = F.relu(x) if self.activation == RELU else F.leaky_relu(x, self.slope)
            if self.pool and turn:
                x = F.max_pool2d(x, 2)
        return x


def longest(layers: Sequence[nn.Module]) -> int:
    """How many of ``layers``, from the first one on, form a chain; every shorter beginning is a chain as well."""
    taken = 0
    while taken < len(layers) and (found := _step_at(layers[taken:])) is not None:
        taken += found[1]
    return taken


def steps(layers: Sequence[nn.Module]) -> tuple[Step, ...]:
    """The steps of layers that form a chain."""
    made: list[Step] = []
    taken = 0
    while taken < len(layers):
        found = _step_at(layers[taken:])
        assert found is not None
        made.append(found[0])
        taken += found[1]
    return tuple(made)


def why_not(convolution: nn.Conv2d) -> str | None:
    """The reason why a convolution stays with PyTorch, or None if the kernels can do it."""
    if type(convolution) is not nn.Conv2d:
        return f"it is a {type(convolution).__name__}"
    if convolution.groups != 1:
        return f"it has {convolution.groups} groups"
    if convolution.dilation != (1, 1):
        return f"it is dilated by {convolution.dilation}"
    if convolution.padding_mode != "zeros" or _padding(convolution) is None:
        return f"its padding is {convolution.padding!r} ({convolution.padding_mode})"
    return None


def _padding(convolution: nn.Conv2d) -> tuple[int, int] | None:
    if isinstance(convolution.padding, str):
        height, width = convolution.kernel_size
        if convolution.padding == "valid":
            return 0, 0
        return ((height - 1) // 2, (width - 1) // 2) if height % 2 and width % 2 else None
    height, width = convolution.padding
    return height, width


def _step_at(layers: Sequence[nn.Module]) -> tuple[Step, int] | None:
    first, *rest = layers[:4]
    if not isinstance(first, nn.Conv2d) or why_not(first):
        return None
    padding = _padding(first)
    assert padding is not None
    pool, activation, slope, activate_first, count = False, NONE, 0.0, False, 1
    norm = norm_of(rest[0]) if rest else None
    if norm is not None:
        rest, count = rest[1:], 2
    for layer in rest[:2]:
        if not pool and _is_pool(layer):
            pool = True
        elif activation == NONE and type(layer) is nn.ReLU:
            activation, activate_first = RELU, not pool
        elif activation == NONE and type(layer) is nn.LeakyReLU and layer.negative_slope >= 0:
            activation, activate_first, slope = LEAKY, not pool, float(layer.negative_slope)
        else:
            break
        count += 1
    (kernel_y, kernel_x), (stride_y, stride_x) = first.kernel_size, first.stride
    step = Step(
        first.in_channels, first.out_channels, (kernel_y, kernel_x), (stride_y, stride_x), padding, pool, activation,
        activate_first, slope, norm,
    )  # fmt: skip
    return step, count


def norm_of(layer: nn.Module) -> tuple[float, float] | None:
    """Epsilon and momentum of a batch normalisation, if the layer is one that the kernels can do."""
    if type(layer) is not nn.BatchNorm2d or not (layer.affine and layer.track_running_stats):
        return None
    return None if layer.momentum is None else (layer.eps, layer.momentum)


def _is_pool(layer: nn.Module) -> bool:
    return (
        type(layer) is nn.MaxPool2d
        and layer.kernel_size in (2, (2, 2))
        and layer.stride in (2, (2, 2))
        and layer.padding in (0, (0, 0))
        and layer.dilation in (1, (1, 1))
        and not layer.ceil_mode
        and not layer.return_indices
    )


@lru_cache(maxsize=256)
def stages(steps: tuple[Step, ...], height: int, width: int) -> tuple[Stage, ...] | None:
    """The steps for images of one size, or None if nothing would be left of them."""
    made: list[Stage] = []
    for step in steps:
        made.append(Stage(step.channels, height, width, *step[1:]))
        _, height, width = made[-1].shape
        if min(height, width) < 1:
            return None
    return tuple(made)


@lru_cache(maxsize=256)
def plan(stages: tuple[Stage, ...]) -> Plan:
    """The plan of these stages: one per process, because it owns the memory."""
    return Plan(stages)


def run(plan: Plan, steps: tuple[Step, ...], x: Tensor, layers: Sequence[Layer], *, learn: bool = False) -> Tensor:
    """Run a chain natively, and differentiably where PyTorch would.

    Where it normalises, ``learn`` says whether by the moments of the batch; gradients are made of those alone.
    """
    if differentiated(x, layers):
        parameters = [t for layer in layers for t in layer[:PARAMETERS]]
        moments = [layer[PARAMETERS:] for layer in layers]
        result: Tensor = _Native.apply(plan, steps, moments, x, *parameters)  # type: ignore[no-untyped-call]
        return result
    return plan.forward(x, layers, keep=False, learn=learn)[0]


PARAMETERS = 4
"""The first tensors of a layer are parameters; the others are running moments."""


def differentiated(x: Tensor, layers: Sequence[Layer]) -> bool:
    """Whether a graph is being made of what these tensors do."""
    return torch.is_grad_enabled() and (
        x.requires_grad or any(t is not None and t.requires_grad for layer in layers for t in layer[:PARAMETERS])
    )


@dataclass
class _Context:
    """What a graph node remembers (the attributes that ``forward`` puts on its context)."""

    plan: Plan
    steps: tuple[Step, ...]
    lease: Lease
    saved_tensors: tuple[Any, ...]
    needs_input_grad: tuple[bool, ...]


class _Native(torch.autograd.Function):
    """The chain as a node of autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any, plan: Plan, steps: tuple[Step, ...], moments: list[tuple[Tensor | None, ...]], x: Tensor,
        *parameters: Tensor | None,
    ) -> Tensor:  # fmt: skip
        layers = [Layer(*own, *running) for own, running in zip(_by_layer(parameters), moments, strict=True)]
        output, ctx.lease = plan.forward(x, layers, keep=True, learn=plan.normalises)
        ctx.plan, ctx.steps = plan, steps
        ctx.save_for_backward(x, *parameters)  # x only for second derivatives: the lease holds the kernels' copy
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        found = _again(ctx, gradient) if torch.is_grad_enabled() else _native_backward(ctx, gradient)
        return None, None, None, *found


def _by_layer(parameters: Sequence[Tensor | None]) -> list[tuple[Tensor | None, ...]]:
    return [tuple(parameters[start : start + PARAMETERS]) for start in range(0, len(parameters), PARAMETERS)]


def _native_backward(ctx: _Context, gradient: Tensor) -> list[Tensor | None]:
    x, *parameters = ctx.saved_tensors
    wanted = ctx.needs_input_grad[3:]
    results = [torch.empty_like(p) if want else None for p, want in zip(parameters, wanted[1:], strict=True)]
    into = torch.empty(x.shape) if wanted[0] else None
    layers, gradients = ([Layer(*own) for own in _by_layer(each)] for each in (parameters, results))
    ctx.plan.backward(gradient, layers, ctx.lease, gradients, into)
    return [into, *results]


def _again(ctx: _Context, gradient: Tensor) -> list[Tensor | None]:
    """Somebody will differentiate the gradient: PyTorch does the chain once more, in operations that know how."""
    tensors = ctx.saved_tensors
    y, *parameters = tensors
    for step, own in zip(ctx.steps, _by_layer(parameters), strict=True):
        y = step.torch(y, *own)  # type: ignore[arg-type]
    wanted = ctx.needs_input_grad[3:]
    inputs = [t for t, want in zip(tensors, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(y, inputs, gradient, create_graph=True))
    return [next(found) if want else None for want in wanted]
