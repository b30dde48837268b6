"""Any module as one flat vector, split into extractor and head."""

import pytest
import torch
from torch import Tensor, nn

from fedgraft.base.errors import UserError
from fedgraft.core.model import Architecture

IMAGES = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Convolutional(nn.Module):
    """A usual user's module: head in the middle of the attribute order, BatchNorm, a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(4 * 6 * 6, 5)
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.scale = nn.Parameter(torch.full((1,), 2.0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.relu(self.norm(self.conv(x * self.scale))).flatten(1))


class Viewing(Convolutional):
    """Uses `view`, which channels_last tensors do not survive."""

    def forward(self, x: Tensor) -> Tensor:
        z = torch.relu(self.norm(self.conv(x)))
        return self.classifier(z.view(z.shape[0], -1))


def architecture(kind: type[nn.Module] = Convolutional) -> Architecture:
    return Architecture(kind, IMAGES, "classifier")


def test_the_vector_holds_extractor_then_head_then_buffers() -> None:
    layout = architecture().layout
    conv, head = 3 * 4 * 9 + 4 + 8, 144 * 5 + 5
    assert (layout.trained, layout.size) == (conv + head, conv + head + 1 + 8)
    assert [slot.name for slot in layout.slots] == [
        "conv.weight", "conv.bias", "norm.weight", "norm.bias", "classifier.weight", "classifier.bias",
        "norm.running_mean", "norm.running_var", "scale",
    ]  # fmt: skip
    assert layout.span("extractor") == slice(0, conv)
    assert layout.span("head") == slice(conv, conv + head)
    assert layout.span("all") == slice(0, conv + head)
    assert layout.width("extractor", "average") == conv + 8
    assert layout.width("all", "average") == conv + head + 8
    assert (layout.frozen, layout.slots[-1].frozen) == (slice(conv + head + 8, conv + head + 9), True)
    assert layout.width("extractor", "local") == conv
    assert layout.width("nothing", "average") == 0


def test_frozen_parameters_do_not_travel() -> None:
    layout = architecture().layout
    vector = torch.arange(float(layout.size))
    for buffers in ("average", "local", "keep"):
        values = layout.take(vector, "all", buffers)
        assert float(values.max()) < layout.frozen.start
        assert torch.equal(layout.put(torch.zeros_like(vector), values, "all", buffers)[layout.frozen], torch.zeros(1))


def test_a_module_of_which_nothing_is_trained_is_refused() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).requires_grad_(False)

    with pytest.raises(UserError, match="all parameters of the module are frozen"):
        Architecture(build, torch.zeros(2, 3))


@pytest.mark.parametrize("kind", [Convolutional, Viewing])
def test_the_live_model_computes_what_the_module_computes(kind: type[nn.Module]) -> None:
    torch.manual_seed(3)
    module = kind().eval()
    subject = architecture(kind)
    assert subject.channels_last == (kind is Convolutional)
    model = subject.model()
    vector = torch.zeros(subject.layout.size)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            subject.layout.named(vector)[name].copy_(tensor)
    with model.load(vector).evaluating():
        torch.testing.assert_close(model(IMAGES), module(IMAGES))


def test_parameters_and_gradients_are_views() -> None:
    model = architecture().model()
    model.load(torch.zeros_like(model.vector))
    assert all(float(p.detach().abs().sum()) == 0 for p in model.module.parameters())
    model.load(architecture().initial(1))
    gradient = model.differentiate(model(IMAGES).square().sum())
    for slot in model.layout.slots[:6]:
        parameter = model.module.get_parameter(slot.name)
        assert parameter.grad is not None
        assert torch.equal(slot.view(gradient), parameter.grad)
        assert float(parameter.grad.abs().sum()) > 0 or slot.name == "conv.bias"  # BatchNorm takes a bias away
    gradient.fill_(1.0)
    assert float(model.module.get_parameter("conv.weight").grad.sum()) == 108.0  # type: ignore[union-attr]


def test_weights_are_the_vector_and_differentiable() -> None:
    model = architecture().model().load(architecture().initial(1))
    assert torch.equal(model.weights.detach(), model.vector[: model.layout.trained])
    gradient = model.differentiate(model.weights.square().sum() / 2)
    assert torch.equal(gradient, model.vector[: model.layout.trained])


def test_features_are_the_input_of_the_head_and_can_be_edited() -> None:
    model = architecture().model().load(architecture().initial(1))
    with model.evaluating():
        features, logits = model.score(IMAGES)
        assert features.shape == (2, 144)
        torch.testing.assert_close(model.head(features), logits)
        _, moved = model.score(IMAGES, edit=lambda z: z + 1)
        torch.testing.assert_close(moved, model.head(features + 1))
        torch.testing.assert_close(model(IMAGES), logits)
    assert architecture().features == (144,)


def test_take_and_put_are_inverse() -> None:
    layout = architecture().layout
    one, two = torch.arange(float(layout.size)), -torch.arange(float(layout.size))
    for part in ("all", "extractor", "head", "nothing"):
        for policy in ("average", "local"):
            taken = layout.take(one, part, policy)
            assert len(taken) == layout.width(part, policy)
            merged = layout.put(two, taken, part, policy)
            assert torch.equal(layout.take(merged, part, policy), taken)
            untouched = merged == two
            assert int((~untouched).sum()) == int((taken != -taken).sum())
    bank = torch.stack([one, two])
    assert torch.equal(layout.take(bank, "head", "average")[1], layout.take(two, "head", "average"))


def test_only_lets_gradients_reach_one_part() -> None:
    model = architecture().model().load(architecture().initial(1))
    for part, other in (("head", "extractor"), ("extractor", "head")):
        with model.only(part) as span:  # type: ignore[arg-type]
            gradient = model.differentiate(model(IMAGES).square().sum())
            assert float(gradient[span].abs().sum()) > 0
            assert float(gradient[model.layout.span(other)].abs().sum()) == 0  # type: ignore[arg-type]
    assert all(p.requires_grad for n, p in model.module.named_parameters() if n != "scale")


def test_initial_weights_depend_on_the_key_alone() -> None:
    torch.manual_seed(0)
    one = architecture().initial(7, 0)
    torch.manual_seed(99)
    assert torch.equal(one, architecture().initial(7, 0))
    assert not torch.equal(one, architecture().initial(7, 1))


def test_the_head_is_the_last_layer_unless_named() -> None:
    plain = Architecture(lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.zeros(1, 4))
    assert plain.head == "2"
    with pytest.raises(UserError, match="no submodule 'fc'"):
        Architecture(Convolutional, IMAGES, "fc")
    with pytest.raises(UserError, match="no layer that could be its head"):
        Architecture(nn.Identity, torch.zeros(1, 4))


def test_a_forward_without_its_head_is_told_so() -> None:
    class Bypass(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    with pytest.raises(UserError, match="never called its head"):
        Architecture(Bypass, torch.zeros(1, 4))


def test_float64_modules_work_and_mixed_ones_are_refused() -> None:
    double = Architecture(lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double(), torch.zeros(1, 4).double())
    assert double.initial(0).dtype == torch.float64

    def mixed() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2).double())

    with pytest.raises(UserError, match="mixes tensors"):
        Architecture(mixed, torch.zeros(1, 4))
