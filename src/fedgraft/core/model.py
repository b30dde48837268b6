"""A network as one flat vector.

``Layout`` says where each tensor of a module lies in the vector, ``Model`` is a live module whose parameters are
views into one, and ``Architecture`` makes both from any ``nn.Module``. The vector is ordered

    [ extractor parameters | head parameters | extractor buffers | head buffers | frozen parameters ]

so that the optimizer, the bank and every message work on slices. "Buffers" are floating-point tensors that training
changes and does not step: BatchNorm statistics. Integer buffers stay with their client and are never averaged. Frozen
parameters (``requires_grad`` is off) stay as they began, everywhere: they never travel.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from fedgraft.base.errors import UserError
from fedgraft.core.streams import Key, seed_generators, seed_globals, torch_seed, untouched

Part = Literal["all", "extractor", "head", "nothing"]
"""A part of the network whose parameters are one slice of the vector, so that training can move it alone."""
Shared = Part | Literal["all but BatchNorm"]
"""What can travel of a network: a part, or the tensors of all layers that do not normalise batches."""
Buffers = Literal["average", "local", "keep"]
BATCHNORM = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class Slot:
    """The place of one named tensor in the flat vector."""

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    part: Literal["extractor", "head"]
    trained: bool
    channels_last: bool
    frozen: bool = False
    batchnorm: bool = False

    @property
    def layer(self) -> str:
        """The module that owns the tensor."""
        return self.name.rpartition(".")[0]

    def view(self, vector: Tensor) -> Tensor:
        """The tensor inside ``vector`` (no copy)."""
        flat = vector[self.start : self.stop]
        if self.channels_last:
            out, into, height, width = self.shape
            return flat.view(out, height, width, into).permute(0, 3, 1, 2)
        return flat.view(self.shape)


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of a network's tensors."""

    slots: tuple[Slot, ...]
    dtype: torch.dtype = torch.float32

    @cached_property
    def size(self) -> int:
        """Length of the vector."""
        return self.slots[-1].stop if self.slots else 0

    @cached_property
    def trained(self) -> int:
        """Length of the leading stretch that training steps."""
        return sum(slot.stop - slot.start for slot in self.slots if slot.trained)

    @cached_property
    def frozen(self) -> slice:
        """The parameters that stay as they began."""
        return slice(self.size - sum(slot.stop - slot.start for slot in self.slots if slot.frozen), self.size)

    def span(self, part: Part) -> slice:
        """The parameters of ``part``: always one slice."""
        return self._spans[part]

    @cached_property
    def _spans(self) -> dict[Part, slice]:
        extractor = sum(s.stop - s.start for s in self.slots if s.trained and s.part == "extractor")
        return {
            "all": slice(0, self.trained),
            "extractor": slice(0, extractor),
            "head": slice(extractor, self.trained),
            "nothing": slice(0, 0),
        }

    def buffers(self, part: Part) -> slice:
        """The buffers of ``part``: always one slice."""
        there = [s for s in self.slots if not (s.trained or s.frozen)]
        extractor = self.trained + sum(s.stop - s.start for s in there if s.part == "extractor")
        end = self.frozen.start
        return {
            "all": slice(self.trained, end),
            "extractor": slice(self.trained, extractor),
            "head": slice(extractor, end),
            "nothing": slice(end, end),
        }[part]

    def width(self, part: Shared, buffers: Buffers) -> int:
        """How many floats travel when ``part`` is shared."""
        return self._journey(part, buffers)[1]

    def take(self, vector: Tensor, part: Shared, buffers: Buffers) -> Tensor:
        """Copy what travels when ``part`` is shared out of ``vector`` (its last dimension)."""
        return torch.cat([vector[..., span] for span in self._journey(part, buffers)[0]], dim=-1)

    def put(self, vector: Tensor, values: Tensor, part: Shared, buffers: Buffers) -> Tensor:
        """Return a copy of ``vector`` in which ``part`` has the received ``values``."""
        (spans, width), start = self._journey(part, buffers), 0
        result = torch.empty_like(vector) if width == self.size else vector.clone()
        for span in spans:
            width = span.stop - span.start
            result[span] = values[start : start + width]
            start += width
        return result

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of all tensors in ``vector`` by name."""
        return {slot.name: slot.view(vector) for slot in self.slots}

    @cached_property
    def _journeys(self) -> dict[tuple[Shared, Buffers], tuple[tuple[slice, ...], int]]:
        return {}

    def _journey(self, part: Shared, buffers: Buffers) -> tuple[tuple[slice, ...], int]:
        """What travels when ``part`` is shared, and how many floats that are; worked out once."""
        key = (part, buffers)
        if key not in self._journeys:
            spans = tuple(span for span in self._travelling(part, buffers) if span.start < span.stop)
            spans = spans or (slice(0, 0),)
            self._journeys[key] = spans, sum(span.stop - span.start for span in spans)
        return self._journeys[key]

    def _travelling(self, part: Shared, buffers: Buffers) -> tuple[slice, ...]:
        if part == "all but BatchNorm":
            there = (slot for slot in self.slots if slot.trained or (buffers == "average" and not slot.frozen))
            return tuple(slice(slot.start, slot.stop) for slot in there if not slot.batchnorm)
        spans = (self.span(part),)
        return (*spans, self.buffers(part)) if buffers == "average" else spans


class Model:
    """A live module whose parameters and gradients are views into flat vectors."""

    def __init__(self, module: nn.Module, head: nn.Module, layout: Layout, device: torch.device) -> None:
        self.module, self.head, self.layout, self.device = module.to(device), head, layout, device
        self.stateful, self.takes_integers = False, False
        self.vector = torch.zeros(layout.size, dtype=layout.dtype, device=device)
        self.gradient = torch.zeros(layout.trained, dtype=layout.dtype, device=device)
        self.normalises_batches = any(isinstance(m, BATCHNORM) for m in module.modules())
        self._parts = list(module.modules())
        self._plain = all(type(part).train is nn.Module.train for part in self._parts)
        self._edit: Callable[[Tensor], Tensor] | None = None
        self._features: Tensor | None = None
        self._lent: Tensor | None = None
        self.penalised = False
        """Whether somebody asked for ``weights``: what a loss makes of them is not seen at any layer."""
        self.batch: tuple[Tensor, Tensor] | None = None
        """The samples of the step that is made now, for what a method trains beside: a loss may see them one by one."""
        self._parameters: dict[str, list[nn.Parameter]] = {"extractor": [], "head": []}
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        for slot in layout.slots:
            tensor = tensors[slot.name]
            slot.view(self.vector).copy_(tensor.detach())
            tensor.data = slot.view(self.vector)
            if slot.trained and isinstance(tensor, nn.Parameter):
                tensor.grad = slot.view(self.gradient)
                self._parameters[slot.part].append(tensor)
        self._integers = [b for b in module.buffers() if not b.is_floating_point()]
        head.register_forward_pre_hook(self._before_head)

    def _before_head(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        features = inputs[0] if self._edit is None else self._edit(inputs[0])
        self._features = features
        return (features, *inputs[1:])

    def __call__(self, x: Tensor) -> Tensor:
        if not x.is_floating_point() and not self.takes_integers:
            x = x.to(self.layout.dtype)
        logits: Tensor = self.module(x)
        return logits

    def score(self, x: Tensor, edit: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Return features (the input of the head) and logits; ``edit`` may change the features in between."""
        self._edit = edit
        try:
            logits = self(x)
        finally:
            self._edit = None
        features, self._features = self._features, None
        if features is None:
            raise UserError("the module's forward never called its head, so it has no features")
        return features, logits

    @property
    def weights(self) -> Tensor:
        """The trained parameters as live tensors joined into one vector: differentiable, for penalties."""
        self.penalised = True
        if self._lent is not None:
            return self._lent
        return torch.cat(
            [
                (p.permute(0, 2, 3, 1) if slot.channels_last else p).reshape(-1)
                for slot, p in zip(self.layout.slots, self._trained(), strict=False)
            ]
        )

    @contextmanager
    def lending(self, weights: Tensor) -> Iterator[None]:
        """Let ``weights`` be another vector: a sample's own copy, whose gradient is the sample's."""
        self._lent = weights
        try:
            yield
        finally:
            self._lent = None

    def _trained(self) -> list[nn.Parameter]:
        return self._parameters["extractor"] + self._parameters["head"]

    def load(self, vector: Tensor) -> "Model":
        """Become the network that ``vector`` describes."""
        self.vector.copy_(vector)
        return self

    @property
    def integers(self) -> Tensor:
        """All integer buffers, joined (a copy)."""
        if not self._integers:
            return torch.zeros(0, dtype=torch.int64)
        return torch.cat([b.detach().reshape(-1).to(torch.int64) for b in self._integers])

    @integers.setter
    def integers(self, values: Tensor) -> None:
        _distribute(values, self._integers)

    def differentiate(self, loss: Tensor) -> Tensor:
        """Back-propagate and return the live flat gradient (overwritten by the next call)."""
        self.gradient.zero_()
        if not loss.requires_grad and not any(p.requires_grad for p in self._trained()):
            return self.gradient  # all of the part that is to be trained is frozen
        loss.backward()  # type: ignore[no-untyped-call]
        return self.gradient

    def train_on(self, samples: int) -> "Model":
        """Training mode. BatchNorm cannot train on a single sample: there it stays in evaluation mode."""
        mode = not (self.normalises_batches and samples == 1)
        if not self._plain or any(part.training != mode for part in self._parts):  # else every client would pay for it
            self.module.train(mode)
        return self

    @contextmanager
    def only(self, part: Part) -> Iterator[slice]:
        """Let gradients reach ``part`` alone; yields its slice of the vector."""
        frozen = {"all": (), "extractor": ("head",), "head": ("extractor",), "nothing": ("extractor", "head")}[part]
        parameters = [p for name in frozen for p in self._parameters[name]]
        for parameter in parameters:
            parameter.requires_grad_(False)
        try:
            yield self.layout.span(part)
        finally:
            for parameter in parameters:
                parameter.requires_grad_(True)

    @contextmanager
    def evaluating(self) -> Iterator["Model"]:
        """Evaluation mode (BatchNorm, dropout) without gradients; the former mode is restored."""
        was_training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                yield self
        finally:
            self.module.train(was_training)


class Architecture:
    """Any ``nn.Module``, made by ``build``, with a named head; everything else is the extractor.

    ``state`` names the attributes in which the module keeps state in Python: none in most.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        example: Tensor,
        head: str | None = None,
        name: str = "custom",
    ) -> None:
        self.build, self.name = build, name
        module = self._construct(0)
        self.example = example = as_taken(module, example)
        self.head = head or _last_layer(module)
        if self.head not in dict(module.named_modules()):
            raise UserError(f"the module has no submodule {self.head!r} to be its head")
        self.channels_last = _takes_channels_last(module, example)
        self.layout = _layout(module, self.head, self.channels_last)
        self.state: tuple[str, ...] = ()
        model = self.model()
        self.integers = model.integers
        with untouched(), model.evaluating():
            features, logits = model.score(example)
        self.state = _python_state(self.model(), example)
        self.features = tuple(features.shape[1:])
        self.outputs = logits.shape[1]

    def _construct(self, seed: int) -> nn.Module:
        with untouched():
            seed_generators(seed, everywhere=True)
            seed_globals("module", seed)
            return self.build()

    def model(self, device: torch.device | None = None, seed: int = 0) -> Model:
        """Make a live model."""
        module = self._construct(seed)
        head = module.get_submodule(self.head)
        made = Model(module, head, self.layout, device or torch.device("cpu"))
        made.stateful, made.takes_integers = bool(self.state), not self.example.is_floating_point()
        return made

    def module(self, vector: Tensor, integers: Tensor) -> nn.Module:
        """Make a plain module of these weights, which shares no memory with anything and can be taken away."""
        module = self._construct(0)
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        whole = [buffer for buffer in module.buffers() if not buffer.is_floating_point()]
        with torch.no_grad():
            for name, tensor in self.layout.named(vector).items():
                own[name].copy_(tensor)
            _distribute(integers, whole)
        return module

    def insist_on_batches(self, size: int) -> None:
        """Refuse batches of one sample for a module that cannot train on one: BatchNorm has no spread to go by."""
        if size > 1 or not (model := self.model()).normalises_batches:
            return
        try:
            with untouched():
                model.module.train()(self.example[:1])
        except ValueError:
            raise UserError(
                "BatchNorm cannot train on batches of one sample: batch_size has to be at least 2"
            ) from None

    def initial(self, *key: Key) -> Tensor:
        """Return freshly initialised weights; the same key gives the same bits."""
        return self.model(seed=torch_seed("initial", *key)).vector


def _distribute(values: Tensor, buffers: Sequence[Tensor]) -> None:
    """Copy joined values into the buffers that they came from."""
    start = 0
    for buffer in buffers:
        buffer.copy_(values[start : start + buffer.numel()].view(buffer.shape))
        start += buffer.numel()


def _last_layer(module: nn.Module) -> str:
    owners = [name.rpartition(".")[0] for name, _ in module.named_parameters()]
    if not owners or owners[-1] == "":
        raise UserError("the module has no layer that could be its head; name one with head=...")
    return owners[-1]


def as_taken(module: nn.Module, example: Tensor) -> Tensor:
    """Return an example as the module takes it: whole numbers as such if it can (tokens), else as floats."""
    dtype = next((parameter.dtype for parameter in module.parameters()), torch.float32)
    if example.is_floating_point():
        if example.dtype != dtype:
            weights, inputs = (str(each).removeprefix("torch.") for each in (dtype, example.dtype))
            raise UserError(f"the module has {weights} weights and the samples are {inputs}: call its .float() first")
        return example
    try:
        with untouched(), torch.no_grad():
            module.eval()(example)
    except (RuntimeError, TypeError, ValueError):
        return example.to(dtype)
    return example


def _python_state(model: Model, example: Tensor) -> tuple[str, ...]:
    """Name the attributes of the module that a training step changes and that are neither parameters nor buffers."""
    before = _attributes(model.module)
    with untouched():
        try:
            model.train_on(len(example))(example).sum().backward()  # type: ignore[no-untyped-call]
        except RuntimeError:  # whatever is wrong with it, training says it better
            return ()
    after = _attributes(model.module)
    return tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))


def _attributes(module: nn.Module) -> dict[str, object]:
    """What a module and its parts call their state and is not torch's, each as something that can be compared."""
    torchs = vars(nn.Module()).keys()
    return {
        f"{name}.{key}".removeprefix("."): _comparable(value)
        for name, part in module.named_modules()
        for key, value in dict(part.__getstate__()).items()
        if key not in torchs
    }


def _comparable(value: object) -> object:
    try:
        return pickle.dumps(value)
    except Exception:  # it can be anything
        return id(value)


def _takes_channels_last(module: nn.Module, example: Tensor) -> bool:
    """Whether the module computes the same with channels_last tensors (a ``view`` in its forward may forbid it)."""
    if example.dim() != 4:
        return False
    module.eval()
    with torch.no_grad():
        plain = module(example.contiguous())
        try:
            fast = module(example.contiguous(memory_format=torch.channels_last))
        except RuntimeError:
            return False
    return bool(torch.allclose(plain, fast, rtol=1e-3, atol=1e-4))


def _layout(module: nn.Module, head: str, channels_last: bool) -> Layout:
    inside = {"extractor": False, "head": True}
    tensors: list[tuple[str, Tensor, str]] = [
        (name, p, "trained" if p.requires_grad else "frozen") for name, p in module.named_parameters()
    ]
    tensors += [(n, b, "buffer") for n, b in module.named_buffers() if b.is_floating_point()]
    dtypes = {tensor.dtype for _, tensor, _ in tensors}
    if len(dtypes) != 1:
        raise UserError(f"the module mixes tensors of {sorted(map(str, dtypes))}; convert it to one type")
    normalising = {name for name, part in module.named_modules() if isinstance(part, BATCHNORM)}
    slots: list[Slot] = []
    start = 0
    for kind in ("trained", "buffer", "frozen"):
        for part in inside:
            for name, tensor, of in tensors:
                if of != kind or (name == head or name.startswith(head + ".")) != inside[part]:
                    continue
                stop, last = start + tensor.numel(), channels_last and tensor.dim() == 4
                slots.append(
                    Slot(
                        name, tuple(tensor.shape), start, stop, part, kind == "trained", last,  # type: ignore[arg-type]
                        frozen=kind == "frozen", batchnorm=name.rpartition(".")[0] in normalising,
                    )
                )  # fmt: skip
                start = stop
    if not any(slot.trained for slot in slots):
        raise UserError("all parameters of the module are frozen (requires_grad is off): there is nothing to train")
    return Layout(tuple(slots), dtypes.pop())
