"""The layers of a network in the order in which it runs them, so that different networks can share a beginning.

A layer is a module with weights, together with the normalisation behind it and whatever follows without weights
(activation, pooling, dropout) up to the next module with weights: the stages of a VGG are convolution,
normalisation, pooling, ReLU. A module that holds weights of its own is one layer with all that is inside it.

Two layers are the same if their modules have the same names, types and shapes, and two networks agree up to a layer
if all layers up to it are the same. What travels of leading layers is their weights one layer after another, so that
a layer lies in the same columns for all clients that agree up to it, however their networks go on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedgraft.core.model import Architecture, Buffers, Model, Slot

NORMALISATIONS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


@dataclass(frozen=True)
class Layer:
    """One layer of an architecture.

    ``modules`` run one after another in it, and ``end`` counts all that have run when it is over. ``chained`` says
    that each takes what the one before gave, so that the layer can be run by itself on the output of the last.
    """

    signature: tuple[tuple[object, ...], ...]
    slots: tuple[Slot, ...]
    modules: tuple[str, ...]
    end: int
    chained: bool
    fully_connected: bool

    @property
    def spans(self) -> list[slice]:
        """Where its trained weights lie in the network's vector."""
        return [slice(slot.start, slot.stop) for slot in self.slots if slot.trained]

    def travelling(self, buffers: Buffers) -> list[Slot]:
        """Return the tensors that travel when the layer is shared."""
        return [slot for slot in self.slots if slot.trained or (buffers == "average" and not slot.frozen)]


@lru_cache(maxsize=64)
def layers_of(architecture: Architecture) -> tuple[Layer, ...]:
    """Return the layers of an architecture, found by running it once on its example."""
    model = architecture.model()
    units, calls = dict(_units(model.module)), _calls(model, architecture.example)
    slots = {name: tuple(s for s in architecture.layout.slots if _within(s.name, name)) for name in units}
    stages: list[list[_Call]] = [[]]
    met: set[str] = set()
    for call in calls:
        if slots[call.name] and call.name not in met:
            if met and not isinstance(units[call.name], NORMALISATIONS):
                stages.append([])
            met.add(call.name)
        stages[-1].append(call)
    found, known = [], set[str]()
    for stage, end in zip(stages, accumulate(map(len, stages)), strict=True):
        owners = list(dict.fromkeys(c.name for c in stage if slots[c.name] and c.name not in known))
        known.update(owners)
        found.append(
            Layer(
                tuple((type(units[o]).__name__, s.name, s.shape, s.trained) for o in owners for s in slots[o]),
                tuple(slot for owner in owners for slot in slots[owner]),
                tuple(call.name for call in stage),
                end,
                all(call.chained for call in stage),
                bool(owners) and isinstance(units[owners[0]], nn.Linear),
            )
        )
    return tuple(found)


def before_classifier(network: Sequence[Layer]) -> int:
    """How many layers come before the classifier: the fully connected layers that end the network.

    A network that is fully connected throughout has its head alone as classifier.
    """
    kept = len(network)
    while kept and network[kept - 1].fully_connected:
        kept -= 1
    return kept or sum(all(slot.part == "extractor" for slot in layer.slots) for layer in network)


def agreeing(networks: Sequence[Sequence[Layer]]) -> list[list[list[int]]]:
    """Return for each depth the groups of networks that agree up to and including the layer there."""
    depths: list[list[list[int]]] = []
    groups = [list(range(len(networks)))]
    while groups:
        depth = len(depths)
        finer: dict[tuple[object, ...], list[int]] = {}
        for number, group in enumerate(groups):
            for network in group:
                if depth < len(networks[network]):
                    finer.setdefault((number, networks[network][depth].signature), []).append(network)
        groups = list(finer.values())
        depths.append(groups)
    return depths[:-1]


def identical(networks: Sequence[Sequence[Layer]]) -> list[list[int]]:
    """Return the groups of networks that are the same throughout."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, network in enumerate(networks):
        groups.setdefault(tuple(layer.signature for layer in network), []).append(number)
    return list(groups.values())


# ---- what travels of a vector


def edges(network: Sequence[Layer], buffers: Buffers) -> list[int]:
    """Return where each layer begins among all that travels of ``network``, and where the last one ends."""
    widths = (sum(slot.stop - slot.start for slot in layer.travelling(buffers)) for layer in network)
    return list(accumulate(widths, initial=0))


def take(vector: Tensor, network: Sequence[Layer], buffers: Buffers) -> Tensor:
    """Copy what travels of the layers, each tensor in its plain order, which does not depend on the layout."""
    slots = [slot for layer in network for slot in layer.travelling(buffers)]
    return torch.cat([vector[:0], *(slot.view(vector).reshape(-1) for slot in slots)])


def put(vector: Tensor, values: Tensor, network: Sequence[Layer], buffers: Buffers) -> Tensor:
    """Return a copy of ``vector`` in which the layers have the received ``values``."""
    result, start = vector.clone(), 0
    for slot in (slot for layer in network for slot in layer.travelling(buffers)):
        stop = start + slot.stop - slot.start
        slot.view(result).copy_(values[start:stop].view(slot.shape))
        start = stop
    return result


# ---- running a network layer by layer


class Walk:
    """A live model, run layer by layer along ``path``, the leading layers of its network."""

    def __init__(self, model: Model, path: Sequence[Layer]) -> None:
        self.model, self.path = model, path
        self.chained = all(layer.chained for layer in path)
        self._pieces = [_piece(model.module, layer.modules) for layer in path] if self.chained else []

    def outputs(self, x: Tensor, first: int, last: int) -> list[Tensor]:
        """Return the outputs of the layers ``first`` to ``last`` - 1; ``x`` is the input as ``pass_on`` gave it."""
        if not self.chained:
            return self._overheard(x, [layer.end for layer in self.path[first:last]])
        results = []
        for piece in self._pieces[first:last]:
            for part in piece:
                x = part(x)
            results.append(x)
        return results

    def pass_on(self, x: Tensor, layer: int, chunk: int) -> Tensor:
        """Return what the next layer needs of all samples, without gradients, computed in chunks.

        It is the layer's output, or the network's input again if the layers cannot be run by themselves.
        """
        if not self.chained:
            return x
        result = x
        with torch.no_grad():
            for start in range(0, len(x), chunk):
                (output,) = self.outputs(x[start : start + chunk], layer, layer + 1)
                if start == 0:
                    # in the memory order of the output, which the next convolution prefers
                    result = torch.empty_like(output[:1].expand(len(x), *output.shape[1:]))
                result[start : start + chunk] = output
        return result

    def _overheard(self, x: Tensor, ends: Sequence[int]) -> list[Tensor]:
        """Run the network as far as needed, and keep what its modules give at the calls ``ends``."""
        results: list[Tensor] = []
        calls = 0

        def listen(_: nn.Module, __: object, output: Any) -> None:
            nonlocal calls
            calls += 1
            if calls in ends:
                results.append(_tensor(output))
            if calls == ends[-1]:
                raise _FarEnough

        names = {name for layer in self.path for name in layer.modules}
        hooks = [self.model.module.get_submodule(name).register_forward_hook(listen) for name in names]
        try:
            self.model(x)
        except _FarEnough:
            pass
        finally:
            for hook in hooks:
                hook.remove()
        return results


def _piece(module: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """What runs these modules one after another: a slice of their container, which may know a faster way, or they."""
    homes = {name.rpartition(".")[0] for name in names}
    container = module.get_submodule(homes.pop()) if len(homes) == 1 else None
    if isinstance(container, nn.Sequential):
        children, wanted = list(container._modules), [name.rpartition(".")[2] for name in names]
        start = children.index(wanted[0])
        if children[start : start + len(wanted)] == wanted:
            return [container[start : start + len(wanted)]]
    return [module.get_submodule(name) for name in names]


class _FarEnough(Exception):  # noqa: N818  (not an error)
    """Ends a forward pass whose rest is not needed."""


class _Call(NamedTuple):
    name: str
    chained: bool


def _units(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Modules that are not taken apart: those without children, and those with weights of their own."""
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    children = list(module.named_children())
    if own or not children:
        yield name, module
    else:
        for child, inner in children:
            yield from _units(inner, f"{name}.{child}" if name else child)


def _calls(model: Model, example: Tensor) -> list[_Call]:
    """Run the model and note which units it calls, in order, and whether each takes what the last one gave."""
    calls: list[_Call] = []
    last: Any = example

    def note(name: str, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal last
        calls.append(_Call(name, len(inputs) == 1 and inputs[0] is last and isinstance(output, Tensor)))
        last = output

    hooks = [
        unit.register_forward_hook(lambda _, inputs, output, name=name: note(name, inputs, output))
        for name, unit in _units(model.module)
    ]
    try:
        with torch.random.fork_rng(devices=[]), model.evaluating():
            model(example)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _within(slot: str, unit: str) -> bool:
    return not unit or slot.startswith(unit + ".")


def _tensor(output: Any) -> Tensor:
    """The first tensor of an output: recurrent modules give several."""
    while not isinstance(output, Tensor):
        output = output[0]
    return output
