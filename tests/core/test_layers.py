"""Layers: where a network is cut, which networks agree, what travels, and running one layer by layer."""

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedgraft import models
from fedgraft.core.layers import Layer, Walk, agreeing, before_classifier, edges, identical, layers_of, put, take
from fedgraft.core.model import Architecture


def architecture(module: Callable[[], nn.Module], *shape: int, head: str | None = None) -> Architecture:
    return Architecture(module, torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)), head)


def shipped(name: str, *shape: int) -> Architecture:
    return architecture(lambda: models.build(name, shape, 10), *shape, head="head")


def chain(**layers: nn.Module) -> Architecture:
    """A chain of named layers on vectors of one number."""
    return architecture(lambda: nn.Sequential(OrderedDict(layers)), 1)


def scalar() -> nn.Linear:
    return nn.Linear(1, 1, bias=False)


def names(network: tuple[Layer, ...]) -> list[tuple[str, ...]]:
    return [layer.modules for layer in network]


# ---- cutting


def test_a_stage_of_a_vgg_is_convolution_normalisation_pooling_activation() -> None:
    network = layers_of(shipped("vgg13:0.0625", 1, 8, 8))
    stages = names(network)
    assert stages[0] == ("extractor.0", "extractor.1", "extractor.2"), "convolution, BatchNorm, ReLU"
    assert stages[1] == ("extractor.3", "extractor.4", "extractor.5", "extractor.6"), "with pooling before the ReLU"
    assert stages[-1] == ("head",)
    assert len(network) == 13
    assert [slot.name.rpartition(".")[2] for slot in network[0].slots] == [
        "weight", "bias", "weight", "bias", "running_mean", "running_var",
    ]  # fmt: skip
    assert all(layer.chained for layer in network)


@pytest.mark.parametrize(
    ("name", "shape", "layers", "classifier"),
    [
        ("vgg11:0.0625", (3, 32, 32), 11, 3),
        ("vgg19:0.0625", (3, 32, 32), 19, 3),
        ("lenet5", (1, 28, 28), 5, 3),
        ("mlp:7-6-5", (9,), 4, 1),  # fully connected throughout: the head alone
        ("linear", (9,), 1, 1),
    ],
)
def test_the_classifier_is_the_fully_connected_end(
    name: str, shape: tuple[int, ...], layers: int, classifier: int
) -> None:
    network = layers_of(shipped(name, *shape))
    assert len(network) == layers
    assert before_classifier(network) == layers - classifier


def test_every_weight_is_in_exactly_one_layer() -> None:
    kind = shipped("vgg16:0.0625", 3, 32, 32)
    slots = [slot for layer in layers_of(kind) for slot in layer.slots]
    assert sorted(slot.name for slot in slots) == sorted(slot.name for slot in kind.layout.slots)


def test_a_normalisation_belongs_to_what_is_before_it_unless_it_comes_first() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 4), nn.ReLU(), nn.LayerNorm(4), nn.Linear(4, 2))

    assert names(layers_of(architecture(build, 3))) == [("0",), ("1", "2", "3"), ("4",)]


class Backwards(nn.Module):
    """Registers its layers in another order than it runs them in, and one ReLU for all."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.relu = nn.ReLU()
        self.second = nn.Linear(5, 4)
        self.first = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.relu(self.second(self.relu(self.first(x)))))


def test_the_order_is_that_of_the_forward_pass() -> None:
    network = layers_of(architecture(Backwards, 3, head="last"))
    assert names(network) == [("first", "relu"), ("second", "relu"), ("last",)]
    assert before_classifier(network) == 2


class Scaled(nn.Module):
    """A block with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.inner(x)


def test_a_module_with_weights_of_its_own_is_one_layer() -> None:
    network = layers_of(architecture(lambda: nn.Sequential(nn.Linear(3, 4), Scaled(), nn.Linear(4, 2)), 3))
    assert names(network) == [("0",), ("1",), ("2",)]
    assert [slot.name for slot in network[1].slots] == ["1.scale", "1.inner.weight", "1.inner.bias"]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.act, self.head = nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.cell(self.act(self.cell(x)))))


def test_weights_that_are_used_twice_are_in_one_layer() -> None:
    network = layers_of(architecture(Twice, 3))
    assert names(network) == [("cell", "act", "cell", "act"), ("head",)]
    assert [len(layer.slots) for layer in network] == [2, 2]


# ---- agreeing


def contributors(networks: list[tuple[Layer, ...]]) -> list[list[int]]:
    """|C| for each network and layer."""
    groups = agreeing(networks)
    return [
        [next(len(C) for C in groups[depth] if number in C) for depth in range(len(network))]
        for number, network in enumerate(networks)
    ]


def test_contributors_of_the_eight_vggs() -> None:
    kinds = [shipped(f"vgg{depth}:0.0625", 3, 32, 32) for depth in (11, 13, 16, 19)]
    counts = contributors([layers_of(kinds[client // 2]) for client in range(8)])
    assert counts[0] == counts[1] == [8] + 10 * [2]
    assert counts[2] == counts[3] == [8] + 5 * [6] + 7 * [2]
    assert counts[4] == counts[5] == [8] + 5 * [6] + [4] + 9 * [2]
    assert counts[6] == counts[7] == [8] + 5 * [6] + [4] + 12 * [2]


def test_the_end_of_a_network_is_a_difference() -> None:
    a, b, c = chain(x=scalar()), chain(x=scalar(), y=scalar()), chain(x=scalar(), y=scalar(), z=scalar())
    networks = [layers_of(kind) for kind in (a, b, c)]
    assert agreeing(networks) == [[[0, 1, 2]], [[1, 2]], [[2]]]
    assert identical([*networks, networks[1]]) == [[0], [1, 3], [2]]


@pytest.mark.parametrize(
    "other",
    [
        chain(y=nn.Linear(1, 1), z=nn.Linear(1, 1)),  # another name
        chain(x=nn.Linear(1, 1, bias=False), z=nn.Linear(1, 1)),  # other weights
        chain(x=nn.Linear(1, 2), z=nn.Linear(2, 1)),  # another shape
        chain(x=nn.Sequential(nn.Linear(1, 1)), z=nn.Linear(1, 1)),  # another place
        chain(x=type("Other", (nn.Linear,), {})(1, 1), z=nn.Linear(1, 1)),  # another type
        chain(x=nn.Linear(1, 1), n=nn.BatchNorm1d(1), z=nn.Linear(1, 1)),  # a normalisation more
    ],
)
def test_names_types_and_shapes_count(other: Architecture) -> None:
    kind = chain(x=nn.Linear(1, 1), z=nn.Linear(1, 1))
    assert agreeing([layers_of(kind), layers_of(kind)])[0] == [[0, 1]]
    assert agreeing([layers_of(kind), layers_of(other)])[0] == [[0], [1]]


def test_equal_layers_behind_a_difference_do_not_agree() -> None:
    a = layers_of(chain(x=scalar(), y=nn.Linear(1, 1), z=scalar()))
    b = layers_of(chain(x=scalar(), y=scalar(), z=scalar()))
    assert a[2].signature == b[2].signature
    assert agreeing([a, b]) == [[[0, 1]], [[0], [1]], [[0], [1]]]


# ---- what travels


def test_what_travels_comes_back() -> None:
    kind = shipped("vgg11:0.0625", 1, 8, 8)
    network, vector = layers_of(kind), torch.randn(kind.layout.size)
    for buffers, width in (
        ("average", kind.layout.size),
        ("local", kind.layout.trained),
        ("keep", kind.layout.trained),
    ):
        travelling = take(vector, network, buffers)
        assert len(travelling) == width == edges(network, buffers)[-1]
        returned = put(torch.zeros_like(vector), travelling, network, buffers)
        assert torch.equal(returned[:width], vector[:width])
        assert not returned[width:].any()
    assert take(vector, network[:0], "average").shape == (0,)
    # conv1 and its normalisation: 9 * 4 + 4 + 4 + 4 weights, 8 statistics
    assert edges(network[:1], "keep") == [0, 48]
    assert edges(network[:1], "average") == [0, 56]


def test_a_common_layer_lies_in_the_same_columns() -> None:
    a, b = (shipped(name, 3, 32, 32) for name in ("vgg13:0.0625", "vgg16:0.0625"))
    va, vb = torch.zeros(a.layout.size), torch.zeros(b.layout.size)
    slot = "extractor.7.weight"  # the third convolution
    a.layout.named(va)[slot].copy_(torch.arange(8 * 4 * 9.0).view(8, 4, 3, 3))
    b.layout.named(vb)[slot].copy_(torch.arange(8 * 4 * 9.0).view(8, 4, 3, 3))
    common = edges(layers_of(a), "average")[6]
    assert torch.equal(take(va, layers_of(a), "average")[:common], take(vb, layers_of(b), "average")[:common])
    assert take(va, layers_of(a), "average").any()


class Viewing(nn.Module):
    """A ``view`` in its forward forbids channels_last, so that its vector has another order inside."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.head = nn.Linear(48, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).view(len(x), -1))


class Flattening(Viewing):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).flatten(1))


def test_the_order_inside_a_tensor_does_not_depend_on_the_layout() -> None:
    plain, fast = architecture(Viewing, 2, 4, 4), architecture(Flattening, 2, 4, 4)
    assert (plain.channels_last, fast.channels_last) == (False, True)
    kernel = torch.randn(3, 2, 3, 3)
    sent = []
    for kind in (plain, fast):
        vector = torch.zeros(kind.layout.size)
        kind.layout.named(vector)["conv.weight"].copy_(kernel)
        sent.append(take(vector, layers_of(kind), "keep"))
        back = put(torch.zeros_like(vector), sent[-1], layers_of(kind), "keep")
        assert torch.equal(kind.layout.named(back)["conv.weight"], kernel)
    assert torch.equal(*sent)


# ---- running layer by layer


def by_hand(module: nn.Module, x: Tensor, stages: list[tuple[str, ...]]) -> list[Tensor]:
    outputs = []
    for stage in stages:
        for name in stage:
            x = module.get_submodule(name)(x)
        outputs.append(x)
    return outputs


def test_a_chain_is_run_stage_by_stage() -> None:
    kind = shipped("vgg11:0.0625", 1, 8, 8)
    model, network = kind.model(seed=1), layers_of(kind)
    model.module.eval()
    x = torch.randn(5, 1, 8, 8)
    expected = by_hand(model.module, x, names(network))
    walk = Walk(model, network)
    with torch.no_grad():
        for ours, theirs in zip(walk.outputs(x, 0, len(network)), expected, strict=True):
            assert torch.equal(ours, theirs)
        assert torch.equal(walk.outputs(expected[1], 2, 3)[0], expected[2]), "from the middle on"
        torch.testing.assert_close(walk.pass_on(expected[1], 2, chunk=2), expected[2])
        assert torch.equal(expected[-1], model(x))


def test_stages_are_run_by_slices_of_their_container() -> None:
    """A container may know a faster way than one module after another; modules that are no neighbours have none."""
    asked: list[tuple[str, ...]] = []

    class Fast(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            asked.append(tuple(type(layer).__name__ for layer in self))
            return super().forward(input)

    kind = architecture(
        lambda: Fast(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()), 3, head="2"
    )
    model, network, x = kind.model(), layers_of(kind), torch.randn(5, 3)
    model.module.eval()
    asked.clear()
    outputs = Walk(model, network).outputs(x, 0, 2)
    assert asked == [("Linear", "Tanh"), ("Linear", "BatchNorm1d", "ReLU")]
    for ours, theirs in zip(outputs, by_hand(model.module, x, names(network)), strict=True):
        assert torch.equal(ours, theirs)


class Residual(nn.Module):
    """Functional activations and a way around: only the whole network can run it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.act = nn.Tanh()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.first(x))
        h = self.act(h + self.norm(self.second(h)))
        return self.head(h)


def test_any_other_network_is_overheard() -> None:
    kind = architecture(Residual, 3)
    network, model = layers_of(kind), kind.model(seed=1)
    assert names(network) == [("first",), ("second", "norm", "act"), ("head",)]
    assert [layer.chained for layer in network] == [True, False, True]
    module = model.module.eval()
    x = torch.randn(5, 3)
    first = module.first(x)
    hidden = functional.relu(first)
    second = module.act(hidden + module.norm(module.second(hidden)))
    walk = Walk(model, network[:2])
    heads: list[object] = []
    module.head.register_forward_pre_hook(lambda *_: heads.append(None))
    assert [torch.equal(a, b) for a, b in zip(walk.outputs(x, 0, 2), (first, second), strict=True)] == [True, True]
    assert torch.equal(walk.outputs(x, 1, 2)[0], second)
    assert not heads, "what comes behind is not run"
    assert walk.pass_on(x, 0, chunk=2) is x, "the next layer, too, has to be reached from the input"
    assert not any(len(m._forward_hooks) for m in module.modules()), "nobody listens any longer"
    assert torch.equal(model(x), module.head(second))


def test_one_activation_for_all_is_told_apart_by_its_turn() -> None:
    kind = architecture(Backwards, 3, head="last")
    model, network, x = kind.model(), layers_of(kind), torch.randn(4, 3)
    walk = Walk(model, network)
    expected = by_hand(model.module, x, names(network))
    walk.chained = False
    for ours, theirs in zip(walk.outputs(x, 0, 3), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_words_become_numbers_on_the_way() -> None:
    kind = Architecture(
        lambda: nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 2)), torch.zeros(2, 2, dtype=torch.int64)
    )
    model, x = kind.model(), torch.tensor([[1, 2], [3, 4], [5, 6]])
    assert torch.equal(Walk(model, layers_of(kind)).pass_on(x, 0, chunk=2), model.module[:2](x))


def test_outputs_of_a_recurrent_layer_are_its_first_tensor() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRU(3, 4, batch_first=True)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cell(x)[0][:, -1])

    kind = architecture(Recurrent, 5, 3)
    model, x = kind.model(), torch.randn(2, 5, 3)
    walk = Walk(model, layers_of(kind)[:1])
    assert torch.equal(walk.outputs(x, 0, 1)[0], model.module.cell(x)[0])
