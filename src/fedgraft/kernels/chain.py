"""Chains of Conv2d, pooling and activation: recognising them, and running them natively under autograd."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedgraft.kernels.native import Lease, Plan, Stage

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

    def torch(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The same in PyTorch's operations."""
        x = F.conv2d(x, weight, bias, self.stride, self.pad)
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
    first, *rest = layers[:3]
    if not isinstance(first, nn.Conv2d) or why_not(first):
        return None
    padding = _padding(first)
    assert padding is not None
    pool, activation, slope, activate_first, count = False, NONE, 0.0, False, 1
    for layer in rest:
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
        activate_first, slope,
    )  # fmt: skip
    return step, count


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


def run(
    plan: Plan, steps: tuple[Step, ...], x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> Tensor:
    """Run a chain natively, and differentiably where PyTorch would."""
    everything = (x, *weights, *biases)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in everything):
        result: Tensor = _Native.apply(plan, steps, x, *weights, *biases)  # type: ignore[no-untyped-call]
        return result
    return plan.forward(x, weights, biases, keep=False)[0]


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
    def forward(ctx: Any, plan: Plan, steps: tuple[Step, ...], x: Tensor, *parameters: Tensor | None) -> Tensor:
        weights, biases = parameters[: len(steps)], parameters[len(steps) :]
        output, ctx.lease = plan.forward(x, weights, biases, keep=True)  # type: ignore[arg-type]
        ctx.plan, ctx.steps = plan, steps
        ctx.save_for_backward(x, *parameters)  # x only for second derivatives: the lease holds the kernels' copy
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        return None, None, *(_again(ctx, gradient) if torch.is_grad_enabled() else _native_backward(ctx, gradient))


def _native_backward(ctx: _Context, gradient: Tensor) -> list[Tensor | None]:
    x, *parameters = ctx.saved_tensors
    count = len(ctx.steps)
    wanted = ctx.needs_input_grad[2:]
    results = [torch.empty_like(p) if want else None for p, want in zip(parameters, wanted[1:], strict=True)]
    into = torch.empty(x.shape) if wanted[0] else None
    ctx.plan.backward(gradient, parameters[:count], ctx.lease, results[:count], results[count:], into)
    return [into, *results]


def _again(ctx: _Context, gradient: Tensor) -> list[Tensor | None]:
    """Somebody will differentiate the gradient: PyTorch does the chain once more, in operations that know how."""
    tensors = ctx.saved_tensors
    count = len(ctx.steps)
    x, weights, biases = tensors[0], tensors[1 : 1 + count], tensors[1 + count :]
    y = x
    for step, weight, bias in zip(ctx.steps, weights, biases, strict=True):
        y = step.torch(y, weight, bias)
    wanted = ctx.needs_input_grad[2:]
    inputs = [t for t, want in zip(tensors, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(y, inputs, gradient, create_graph=True))
    return [next(found) if want else None for want in wanted]
