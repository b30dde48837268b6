"""Gradients of single samples, each clipped, then summed: what training with differential privacy is made of.

``torch.func.vmap`` evaluates the loss of every sample alone, so that no sample reaches the gradient of another,
whatever the loss does. There are two ways from there to the sum, and they give the same up to rounding.

- By layers: where every parameter belongs to an ``nn.Linear`` or ``nn.Conv2d`` that is called once, the gradient of a
  sample is a product of what entered the layer and of the gradient at its output. Both come from one backward pass,
  and the gradients of the dense layers are never laid out.
- By copies: each sample gets a copy of all parameters, whose gradient is then that sample's. This does for any module,
  and for penalties on ``Model.weights``.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from fedgraft.core.model import Model

Loss = Callable[[Model, Tensor, Tensor], Tensor]
Layer = nn.Linear | nn.Conv2d


class Separate:
    """The gradients of single samples with respect to one part of a live model, for one loss."""

    def __init__(self, model: Model, span: slice, loss: Loss) -> None:
        self._model, self._span, self._loss = model, span, loss
        self._slots = [slot for slot in model.layout.slots if slot.trained]
        self._moved = [slot for slot in self._slots if span.start <= slot.start and slot.stop <= span.stop]
        self._layers: dict[str, Layer] | None = None
        self._shapes: dict[str, tuple[int, ...]] = {}

    def clipped(self, x: Tensor, y: Tensor, norm: float) -> Tensor:
        """Return the sum of the samples' gradients, each drawn in to ``norm``: as long as the part.

        A gradient that is not finite counts nothing, for it has no norm that could be drawn in.
        """
        if not len(y):
            return self._model.vector.new_zeros(self._span.stop - self._span.start)
        if self._layers is None:
            self._layers = self._found(x[:1], y[:1])
        return self._by_layers(x, y, norm) if self._layers else self._by_copies(x, y, norm)

    # ---- by copies
    def _by_copies(self, x: Tensor, y: Tensor, norm: float) -> Tensor:
        rows = self._rows(x, y)
        squares = rows.square().sum(dim=1)
        if not bool((fine := squares.isfinite()).all()):
            return self.clipped(x[fine], y[fine], norm)
        return _factors(squares, norm) @ rows

    def _rows(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of each sample, in a row."""
        vector, end = self._model.vector, self._slots[-1].stop
        before, after = vector[: self._span.start], vector[self._span.stop : end]
        copies = vector[self._span].expand(len(y), -1).clone().requires_grad_()

        def one(x: Tensor, y: Tensor, moved: Tensor) -> Tensor:
            whole = torch.cat([before, moved, after])
            with self._model.lending(whole):
                named = {slot.name: slot.view(whole) for slot in self._slots}
                return self._alone(named, x, y)

        losses = vmap(one, randomness="different")(x, y, copies)
        (rows,) = torch.autograd.grad(losses.sum(), copies)
        return rows

    # ---- by layers
    def _by_layers(self, x: Tensor, y: Tensor, norm: float) -> Tensor:
        assert self._layers is not None
        entered, left = self._passes(x, y)
        products = {name: _Products(layer, entered[name], left[name]) for name, layer in self._layers.items()}
        squares = torch.stack([each.squares() for each in products.values()]).sum(dim=0)
        if not bool((fine := squares.isfinite()).all()):
            return self.clipped(x[fine], y[fine], norm)
        factors = _factors(squares, norm)
        total = self._model.vector.new_zeros(self._span.stop)
        sums = {name: each.summed(factors) for name, each in products.items()}
        for slot in self._moved:
            weight, bias = sums[slot.layer]
            slot.view(total).copy_((bias if slot.name.endswith("bias") else weight).view(slot.shape))
        return total[self._span]

    def _passes(self, x: Tensor, y: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What enters each layer, and the gradient of each sample's loss at what leaves it."""
        fixed = {slot.name: slot.view(self._model.vector) for slot in self._slots}
        taps = {n: self._model.vector.new_zeros(len(y), *s).requires_grad_() for n, s in self._shapes.items()}

        def one(x: Tensor, y: Tensor, taps: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            entered: dict[str, Tensor] = {}
            with self._hooked(lambda name, a, z: (entered.update({name: a.detach()}), z + taps[name])[1]):
                return self._alone(fixed, x, y), entered

        losses, entered = vmap(one, randomness="different")(x, y, taps)
        return entered, dict(zip(taps, torch.autograd.grad(losses.sum(), list(taps.values())), strict=True))

    def _found(self, x: Tensor, y: Tensor) -> dict[str, Layer]:
        """The layers whose inputs and outputs tell all about a sample's gradient; none, if anything else matters."""
        owners = {slot.layer: self._model.module.get_submodule(slot.layer) for slot in self._moved}
        layers = {name: owner for name, owner in owners.items() if isinstance(owner, nn.Linear | nn.Conv2d)}
        if len(layers) < len(owners) or not all(map(_plain, layers.values())):
            return {}
        self._layers, calls = layers, []

        def seen(name: str, entered: Tensor, left: Tensor) -> Tensor:
            calls.append(name)
            self._shapes[name] = tuple(left.shape)
            return left

        self._model.penalised = False
        with torch.random.fork_rng(devices=[]), torch.no_grad(), self._hooked(seen):
            self._loss(self._model, x, y)
        if sorted(calls) != sorted(layers) or self._model.penalised:
            return {}
        with torch.random.fork_rng(devices=[]):
            exact = self._rows(x, y)[0]
        with torch.random.fork_rng(devices=[]):
            found = self._by_layers(x, y, torch.inf)
        return layers if torch.allclose(found, exact, rtol=1e-3, atol=1e-5 * (1 + float(exact.abs().max()))) else {}

    @contextmanager
    def _hooked(self, tell: Callable[[str, Tensor, Tensor], Tensor]) -> Iterator[None]:
        assert self._layers is not None
        hooks = [
            layer.register_forward_hook(lambda _, inputs, output, name=name: tell(name, inputs[0], output))
            for name, layer in self._layers.items()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _alone(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """The loss of one sample, as a batch of its own."""
        loss = Whole(self._model, self._loss)
        named = {f"module.{name}": tensor for name, tensor in parameters.items()}
        value: Tensor = functional_call(loss, named, (x.unsqueeze(0), y.unsqueeze(0)))
        return value


class Whole(nn.Module):
    """A module whose output is the loss, so that its parameters can be exchanged for a call."""

    def __init__(self, model: Model, loss: Loss) -> None:
        super().__init__()
        self.module, self._model, self._loss = model.module, model, loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self._loss(self._model, x, y)


def _plain(layer: Layer) -> bool:
    """Whether the layer is one whose gradient we can write down."""
    if type(layer) is nn.Linear:
        return True
    usual = type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"
    return usual and isinstance(layer.padding, tuple)


def _factors(squares: Tensor, norm: float) -> Tensor:
    """What each gradient is multiplied with, so that none is longer than ``norm``."""
    return torch.clamp(norm / squares.sqrt().clamp(min=1e-12), max=1.0)


class _Products:
    """The samples' gradients of one layer, as products; laid out only where a layer is applied at several places."""

    def __init__(self, layer: Layer, entered: Tensor, left: Tensor) -> None:
        count = len(entered)
        if isinstance(layer, nn.Conv2d):
            self._a, d = _windows(layer, entered.flatten(0, 1)), left.reshape(count, left.shape[2], -1)
            self._d, whole = d.sum(dim=2), torch.bmm(d, self._a)
        else:
            self._a, self._d, whole = entered.reshape(count, -1), left.reshape(count, -1), None
            if left.dim() > 3:  # (samples, 1, places, width)
                a, d = entered.reshape(count, -1, entered.shape[-1]), left.reshape(count, -1, left.shape[-1])
                self._d, whole = d.sum(dim=1), torch.bmm(d.transpose(1, 2), a)
        self._rows = None if whole is None else whole.flatten(1)
        self._biased = layer.bias is not None

    def squares(self) -> Tensor:
        """The squared norm of each sample's gradient."""
        at = self._d.square().sum(dim=1)
        bias = at if self._biased else torch.zeros_like(at)
        if self._rows is None:
            return self._a.square().sum(dim=1) * at + bias
        return self._rows.square().sum(dim=1) + bias

    def summed(self, factors: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of weight and bias, multiplied with the samples' factors and summed."""
        scaled = self._d * factors[:, None]
        weight = scaled.T @ self._a if self._rows is None else factors @ self._rows
        return weight, scaled.sum(dim=0)


def _windows(layer: nn.Conv2d, images: Tensor) -> Tensor:
    """What the filters see at each place, as (samples, places, filter): torch's own unfold takes ten times as long."""
    (height, width), (down, across), padding = layer.kernel_size, layer.stride, layer.padding
    if layer.dilation != (1, 1):
        shape = layer.kernel_size, layer.dilation, padding, layer.stride
        return functional.unfold(images, *shape).transpose(1, 2)  # type: ignore[arg-type]
    assert not isinstance(padding, str)
    if any(padding):
        images = functional.pad(images, (padding[1], padding[1], padding[0], padding[0]))
    views = images.unfold(2, height, down).unfold(3, width, across)  # samples, channels, rows, columns, height, width
    return views.permute(0, 1, 4, 5, 2, 3).reshape(len(images), images.shape[1] * height * width, -1).transpose(1, 2)
