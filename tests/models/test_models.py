"""The shipped models: sizes from the papers, shapes, equivalences, and the sentences for wrong names."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, cross_entropy, linear, max_pool2d, pad, relu

from fedgraft.base.errors import UserError
from fedgraft.models import build, catalogue, fleet, resolve

torch.set_num_threads(1)

GREY, COLOUR, DIGIT = (1, 28, 28), (3, 32, 32), (1, 8, 8)


def sizes(model: nn.Module) -> tuple[int, int]:
    head = sum(p.numel() for p in model.get_submodule("head").parameters())
    return sum(p.numel() for p in model.parameters()) - head, head


def convolution_names(name: str, shape: tuple[int, ...] = COLOUR) -> list[tuple[str, torch.Size]]:
    with torch.device("meta"):
        model = build(name, shape, 10)
    return [(key, p.shape) for key, p in model.named_parameters() if p.dim() == 4]


def batch(shape: tuple[int, ...], count: int = 4) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(1))


# Extractor and head, as the four papers and FlexiFed's code give them.
PAPERS = [
    ("lenet5", GREY, 10, 43_576, 850),
    ("lenet5", COLOUR, 10, 61_156, 850),
    ("lenet5", COLOUR, 100, 61_156, 8_500),
    ("cnn-apple", GREY, 10, 431_080 - 5_010, 5_010),
    ("cnn-apple", (3, 28, 28), 10, 432_080 - 5_010, 5_010),
    ("cnn-apple", GREY, 11, 431_581 - 5_511, 5_511),
    ("cnn-apple", (3, 28, 28), 9, 431_579 - 4_509, 4_509),
    ("cnn-fedgpa", GREY, 10, 115_776, 1_290),
    ("cnn-fedgpa", GREY, 62, 115_776, 7_998),
    ("cnn-fedgpa", COLOUR, 10, 106_400, 1_290),
    ("cnn-fedgpa", COLOUR, 100, 106_400, 12_900),
    ("vgg11", COLOUR, 10, 28_149_514 - 40_970, 40_970),
    ("vgg13", COLOUR, 10, 28_334_410 - 40_970, 40_970),
    ("vgg16", COLOUR, 10, 33_646_666 - 40_970, 40_970),
    ("vgg19", COLOUR, 10, 38_958_922 - 40_970, 40_970),
    ("vgg11", GREY, 10, 28_149_514 - 1_152 - 40_970, 40_970),
    ("vgg19", GREY, 10, 38_958_922 - 1_152 - 40_970, 40_970),
    # 16·9+16, 32·16·9+32, 128·64+64 and 64·10+10
    ("cnn-digits", DIGIT, 10, 160 + 4_640 + 8_256, 650),
    ("mlp:200", (64,), 10, 64 * 200 + 200, 2_010),
    ("mlp:30-20", (2, 3, 4), 5, 24 * 30 + 30 + 30 * 20 + 20, 105),
    ("linear", GREY, 10, 0, 7_850),
]


@pytest.mark.parametrize(("name", "shape", "classes", "extractor", "head"), PAPERS)
def test_parameter_counts(name: str, shape: tuple[int, ...], classes: int, extractor: int, head: int) -> None:
    with torch.device("meta"):
        assert sizes(build(name, shape, classes)) == (extractor, head)


FORWARD = [
    ("lenet5", GREY),
    ("lenet5", COLOUR),
    ("lenet5", (3, 64, 64)),
    ("lenet5", (1, 16, 40)),
    ("cnn-apple", GREY),
    ("cnn-apple", COLOUR),
    ("cnn-fedgpa", GREY),
    ("cnn-fedgpa", (1, 12, 12)),
    ("cnn-fedgpa", COLOUR),
    ("cnn-fedgpa", (3, 16, 16)),
    ("cnn-digits", DIGIT),
    ("cnn-digits", (3, 4, 5)),
    ("vgg11:0.05", COLOUR),
    ("vgg13:0.05", GREY),
    ("vgg16:0.05", (3, 31, 29)),
    ("vgg19:0.05", (1, 8, 8)),
    ("vgg11:0.05", (3, 64, 96)),
    ("mlp:20-10", (3, 5, 7)),
    ("mlp", (64,)),
    ("linear", DIGIT),
    ("linear", (13,)),
]


@pytest.mark.parametrize(("name", "shape"), FORWARD)
def test_forward_with_one_and_many_samples(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, shape, 7).eval()
    x = batch(shape)
    many = model(x)
    assert many.shape == (4, 7)
    torch.testing.assert_close(model(x[:1]), many[:1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "shape"), [pair for pair in FORWARD if len(pair[1]) == 3])
def test_channels_last_changes_nothing(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, shape, 7).eval()
    x = batch(shape)
    expected = model(x)
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.testing.assert_close(model(x.contiguous(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "shape"), FORWARD)
def test_features_are_the_input_of_the_head(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, shape, 7).eval()
    head = model.get_submodule("head")
    seen: list[Tensor] = []
    head.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    logits = model(batch(shape))
    assert isinstance(head, nn.Linear)
    assert seen[0].shape == (4, head.in_features)
    assert torch.equal(seen[0], model.get_submodule("extractor")(batch(shape)))
    assert torch.equal(head(seen[0]), logits)


@pytest.mark.parametrize(("name", "shape"), FORWARD)
def test_every_parameter_gets_a_gradient(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = build(name, shape, 7).train()
    for layer in model.modules():  # so that no small layer loses all its units
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    cross_entropy(model(batch(shape, 16)), torch.arange(16) % 7).backward()
    # In front of a normalisation a convolution's bias has no effect: its gradient is zero up to rounding.
    idle = {f"{key}.bias" for key, m in model.named_modules() if "vgg" in name and isinstance(m, nn.Conv2d)}
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert key in idle or parameter.grad.abs().sum() > 0, key


def test_pooling_first_equals_the_textbook_order_of_lenet5() -> None:
    model = build("lenet5", COLOUR, 10)
    p = dict(model.named_parameters())
    x = batch(COLOUR)
    h = max_pool2d(relu(conv2d(x, p["extractor.0.weight"], p["extractor.0.bias"])), 2)
    h = max_pool2d(relu(conv2d(h, p["extractor.3.weight"], p["extractor.3.bias"])), 2).flatten(1)
    h = relu(linear(h, p["extractor.7.weight"], p["extractor.7.bias"]))
    h = relu(linear(h, p["extractor.9.weight"], p["extractor.9.bias"]))
    assert torch.equal(model(x), linear(h, p["head.weight"], p["head.bias"]))


@pytest.mark.parametrize(
    ("name", "shape"),
    [("cnn-apple", GREY), ("cnn-fedgpa", COLOUR), ("cnn-digits", DIGIT), ("vgg13:0.05", COLOUR)],
)
def test_pooling_and_activation_commute_everywhere(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, shape, 10).eval()
    x = batch(shape)
    expected = model(x)
    layers = list(model.get_submodule("extractor").children())
    pools = [place for place, layer in enumerate(layers) if isinstance(layer, nn.MaxPool2d)]
    assert pools
    for place in pools:
        assert isinstance(layers[place + 1], nn.ReLU | nn.LeakyReLU)
        layers[place], layers[place + 1] = layers[place + 1], layers[place]
    assert torch.equal(model.get_submodule("head")(nn.Sequential(*layers)(x)), expected)


def test_fedgpa_uses_leaky_relu_and_apple_relu() -> None:
    def activations(name: str) -> set[type[nn.Module]]:
        return {type(m) for m in build(name, GREY, 10).modules()} & {nn.ReLU, nn.LeakyReLU}

    assert activations("cnn-fedgpa") == {nn.LeakyReLU}
    assert activations("cnn-apple") == {nn.ReLU}


def test_cnn_digits_learns_a_separable_toy_problem_fast() -> None:
    torch.manual_seed(0)
    labels = torch.arange(80) % 10
    x = 0.3 * torch.randn(80, *DIGIT)
    x[torch.arange(80), 0, labels // 2, labels % 2 * 4] += 3.0
    model = build("cnn-digits", DIGIT, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model(x), labels).backward()
        optimizer.step()
    assert (model(x).argmax(1) == labels).float().mean() > 0.95


# VGG


def test_vgg_pads_small_images_with_zeros() -> None:
    small, large = build("vgg11:0.05", GREY, 10).eval(), build("vgg11:0.05", (1, 32, 32), 10).eval()
    large.load_state_dict(small.state_dict())
    x = batch(GREY)
    torch.testing.assert_close(small(x), large(pad(x, (2, 2, 2, 2))), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("vgg11", "vgg13", 1),
        ("vgg11", "vgg16", 1),
        ("vgg11", "vgg19", 1),
        ("vgg13", "vgg16", 6),
        ("vgg13", "vgg19", 6),
        ("vgg16", "vgg19", 7),
    ],
)
@pytest.mark.parametrize("width", ["", ":0.25"])
def test_vgg_family_agrees_on_a_prefix(one: str, other: str, common: int, width: str) -> None:
    pairs = list(zip(convolution_names(one + width), convolution_names(other + width), strict=False))
    same = [a == b for a, b in pairs]
    assert same[:common] == [True] * common
    assert not same[common]


def test_vgg_layer_names_do_not_depend_on_the_image_size() -> None:
    assert convolution_names("vgg16", GREY) == convolution_names("vgg16", (1, 32, 32))


def test_vgg_width_scales_channels_and_classifier() -> None:
    with torch.device("meta"):
        quarter, narrowest = build("vgg16:0.25", COLOUR, 10), build("vgg16:0.0001", COLOUR, 10)
    assert quarter.get_parameter("extractor.0.weight").shape == (16, 3, 3, 3)
    assert quarter.get_parameter("head.weight").shape == (10, 1024)
    assert narrowest.get_parameter("extractor.0.weight").shape == (1, 3, 3, 3)


def test_vgg_convolutions_start_as_in_flexifed() -> None:
    torch.manual_seed(0)
    model = build("vgg11:0.25", COLOUR, 10)
    weight = model.get_parameter("extractor.4.weight")  # 32 output channels: std = sqrt(2 / (9·32)) = 1/12
    assert weight.shape == (32, 16, 3, 3)
    assert weight.std().item() == pytest.approx(1 / 12, rel=0.05)
    assert not model.get_parameter("extractor.4.bias").any()


# Names


@pytest.mark.parametrize(
    ("name", "shape", "canonical"),
    [
        ("auto", DIGIT, "cnn-digits"),
        ("auto", GREY, "lenet5"),
        ("auto", COLOUR, "lenet5"),
        ("auto", (3, 96, 96), "lenet5"),
        ("auto", (1, 12, 30), "cnn-digits"),
        ("auto", (1, 2, 2), "mlp:200"),
        ("auto", (64,), "mlp:200"),
        ("auto", (20, 4), "mlp:200"),
        ("MLP", (64,), "mlp:200"),
        ("mlp:0200-10", (64,), "mlp:200-10"),
        (" LeNet5 ", GREY, "lenet5"),
        ("vgg16:1.0", COLOUR, "vgg16"),
        ("vgg16:.25", COLOUR, "vgg16:0.25"),
        ("vgg16:2.0", COLOUR, "vgg16:2"),
        ("vgg-family:.5", GREY, "vgg-family:0.5"),
        ("vgg-family:1", GREY, "vgg-family"),
        ("vgg11, vgg13:.5 ,auto", GREY, "vgg11,vgg13:0.5,lenet5"),
    ],
)
def test_canonical_names(name: str, shape: tuple[int, ...], canonical: str) -> None:
    assert resolve(name, shape, 10) == canonical
    assert resolve(canonical, shape, 10) == canonical


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("lenet", GREY, "no model is called 'lenet'; did you mean 'lenet5'"),
        ("lenet5", DIGIT, r"lenet5 takes images of at least 16x16 pixels.*1x8x8; what fits it: .*cnn-digits"),
        ("cnn-apple", (3, 15, 28), "3x15x28"),
        ("cnn-fedgpa", (3, 15, 15), "16x16 with more"),
        ("cnn-digits", (1, 3, 3), "4x4"),
        ("cnn-digits", (64,), "samples of 64; what fits it: linear, mlp$"),
        ("vgg11", (64,), "images of any size"),
        ("vgg-family", (64,), "vgg-family takes images"),
        ("vgg16:0", COLOUR, "above 0 and up to 4"),
        ("vgg16:-1", COLOUR, "above 0"),
        ("vgg16:nan", COLOUR, "'nan' is not"),
        ("vgg16:inf", COLOUR, "'inf' is not"),
        ("vgg16:wide", COLOUR, "such as vgg16:0.25"),
        ("vgg-family:0", COLOUR, "above 0"),
        ("mlp:0", (64,), "from 1 to 65536"),
        ("mlp:" + "1" * 5000, (64,), "from 1 to 65536"),
        ("mlp:20-", (64,), "mlp:200-100"),
        ("mlp:1e3", (64,), "'1000.0' is not"),
        ("lenet5:2", GREY, "does not take a bare 2: write lenet5"),
        ("linear", (), "at least one value"),
        ("linear", (0, 3), "at least one value"),
        ("vgg11,,vgg13", COLOUR, "one comma"),
        ("", COLOUR, "no list of models"),
    ],
)
def test_errors_say_what_would_be_right(name: str, shape: tuple[int, ...], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        resolve(name, shape, 10)


def test_no_classes() -> None:
    with pytest.raises(UserError, match="at least one class"):
        build("linear", (64,), 0)


@pytest.mark.parametrize("name", ["vgg-family", "vgg11,vgg13"])
def test_build_wants_one_model(name: str) -> None:
    with pytest.raises(UserError, match="names several models"):
        build(name, COLOUR, 10)


def test_auto_builds_what_it_resolves_to() -> None:
    assert str(build("auto", DIGIT, 10)) == str(build("cnn-digits", DIGIT, 10))


# Every claim of the catalogue about sizes is checked at its edge.
@pytest.mark.parametrize(
    ("name", "channels", "smallest"),
    [
        ("cnn-digits", 1, 4),
        ("lenet5", 1, 16),
        ("cnn-apple", 3, 16),
        ("cnn-fedgpa", 1, 12),
        ("cnn-fedgpa", 3, 16),
    ],
)
def test_smallest_images(name: str, channels: int, smallest: int) -> None:
    assert f"{smallest}x{smallest}" in next(entry.inputs for entry in catalogue() if entry.name == name)
    with torch.device("meta"):
        model = build(name, (channels, smallest, smallest), 10)
        assert model(torch.empty(2, channels, smallest, smallest)).shape == (2, 10)
    with pytest.raises(UserError):
        resolve(name, (channels, smallest - 1, smallest), 10)


def test_catalogue_lists_what_can_be_built() -> None:
    entries = catalogue()
    assert {entry.name for entry in entries} == {
        "linear", "mlp", "embed", "cnn-digits", "lenet5", "cnn-apple", "cnn-fedgpa",
        "vgg11", "vgg13", "vgg16", "vgg19", "vgg-family",
    }  # fmt: skip
    for name, syntax, description, inputs in entries:
        assert resolve(name, (6,) if name == "embed" else COLOUR, 10).startswith(name)
        assert syntax.startswith(name)
        assert description
        assert inputs


# Fleets


def test_fleet_of_one_architecture() -> None:
    assert fleet("lenet5", 3) == ["lenet5"] * 3


@pytest.mark.parametrize("width", ["", ":0.25"])
def test_fleet_of_the_vgg_family(width: str) -> None:
    expected = ["vgg11", "vgg11", "vgg13", "vgg13", "vgg16", "vgg16", "vgg19", "vgg19"]
    assert fleet("vgg-family" + width, 8) == [name + width for name in expected]


@pytest.mark.parametrize("clients", [3, 4, 5, 10, 11])
def test_fleet_deals_in_consecutive_blocks_of_nearly_equal_size(clients: int) -> None:
    names = fleet("mlp:8,mlp:8-8,linear", clients)
    assert list(dict.fromkeys(names)) == ["mlp:8", "mlp:8-8", "linear"]
    assert names == sorted(names, key=["mlp:8", "mlp:8-8", "linear"].index)
    counts = [names.count(name) for name in set(names)]
    assert sum(counts) == clients
    assert max(counts) - min(counts) <= 1


def test_fleet_members_can_be_built() -> None:
    for name in fleet(resolve("vgg-family:.05, linear", GREY, 10), 5):
        assert build(name, GREY, 10).eval()(batch(GREY)).shape == (4, 10)


def test_fleet_needs_a_client_for_every_model() -> None:
    with pytest.raises(UserError, match="at least 4 clients; there are 3"):
        fleet("vgg-family", 3)


def test_tokens_are_embedded() -> None:
    with torch.device("meta"):
        # 10 vectors of 4; 6 of them side by side, to 8
        assert sizes(build("embed:hidden=8,width=4", (6,), 10)) == (10 * 4 + 24 * 8 + 8, 90)
        assert sizes(build("embed:hidden=8,width=4,vocabulary=50", (6,), 2)) == (50 * 4 + 24 * 8 + 8, 18)
    model = build("embed", (6,), 10)
    tokens = torch.tensor([[0, 1, 2, 3, 4, 9]])
    assert model(tokens).shape == (1, 10)
    beyond = torch.tensor([[0, 1, 2, 3, 4, 12]])
    assert torch.equal(model(beyond), model(tokens)), "an unknown token is the last one"
    assert resolve("auto", (6,), 10, tokens=True) == "embed"
    assert resolve("auto", (6,), 10) == "mlp:200"
    assert resolve("embed:width=4,vocabulary=50", (6,), 2, tokens=True) == "embed:width=4,vocabulary=50"
    with pytest.raises(UserError, match=r"mlp takes .*samples of 6 tokens; what fits it: embed"):
        resolve("mlp", (6,), 10, tokens=True)
    with pytest.raises(UserError, match=r"embed takes tokens .*samples of 6; what fits it: linear, mlp"):
        resolve("embed", (6,), 10, tokens=False)
    with pytest.raises(UserError, match="no model of ours takes several rows of tokens"):
        resolve("auto", (6, 6), 10, tokens=True)
    with pytest.raises(UserError, match="the width of embed is a whole number"):
        resolve("embed:width=0", (6,), 10, tokens=True)
