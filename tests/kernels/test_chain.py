"""The kernels against PyTorch: every shape, every gradient, every instruction set that this CPU has."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedgraft.kernels import available, chain
from fedgraft.kernels.chain import LEAKY, NONE, RELU, Step
from fedgraft.kernels.native import Layer, Plan, library

if not available():
    pytest.skip(f"no native kernels: {library().problem}", allow_module_level=True)

ISAS = {kernels.isa.decode(): kernels for kernels in library().kernels}


@st.composite
def networks(draw: st.DrawFn, norms: bool = False) -> tuple[tuple[Step, ...], tuple[int, int]]:
    """One to three steps, some of which normalise if they may, and an image size that survives them."""
    height, width = size = draw(st.integers(1, 15)), draw(st.integers(1, 15))
    channels = draw(st.integers(1, 8))
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, 3))):
        pad = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        tall, wide = height + 2 * pad[0], width + 2 * pad[1]
        kernel = draw(st.integers(1, min(tall, 7))), draw(st.integers(1, min(wide, 7)))
        stride = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        tall, wide = (tall - kernel[0]) // stride[0] + 1, (wide - kernel[1]) // stride[1] + 1
        pool = draw(st.booleans()) and min(tall, wide) > 1
        activation = draw(st.sampled_from([NONE, RELU, LEAKY]))
        outputs = draw(st.integers(1, 14))
        first = draw(st.booleans()) and activation != NONE
        norm = draw(st.sampled_from([None, (1e-5, 0.1), (0.125, 0.25)])) if norms else None
        steps.append(Step(channels, outputs, kernel, stride, pad, pool, activation, first, 0.125, norm))
        channels, height, width = outputs, tall // 2 if pool else tall, wide // 2 if pool else wide
    return tuple(steps), size


Results = tuple[Tensor, list[Tensor]]


def with_torch(steps: tuple[Step, ...], x: Tensor, parameters: list[Tensor], seed: int) -> Results:
    leaves = [t.clone().requires_grad_() for t in (x, *parameters)]
    y = leaves[0]
    for step, layer in zip(steps, layers(steps, leaves[1:]), strict=True):
        y = step.torch(y, *(t for t in layer[: chain.PARAMETERS] if t is not None))
    y.backward(whole_numbers(y.shape, seed).to(y.dtype))
    return y.detach(), [t.grad for t in leaves if t.grad is not None]


def natively(isa: str, steps: tuple[Step, ...], x: Tensor, parameters: list[Tensor], seed: int) -> Results:
    leaves = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, *parameters)]
    stages = chain.stages(steps, x.shape[2], x.shape[3])
    assert stages is not None
    y = chain.run(Plan(stages, ISAS[isa]), steps, leaves[0], layers(steps, leaves[1:]))
    y.backward(whole_numbers(y.shape, seed))
    return y.detach(), [t.grad for t in leaves if t.grad is not None]


def layers(steps: tuple[Step, ...], parameters: list[Tensor]) -> list[Layer]:
    """All weights, all biases, then weights and biases of the normalisations, in the order of ``drawn``."""
    count = len(steps)
    weights, biases, rest = parameters[:count], parameters[count : 2 * count], iter(parameters[2 * count :])
    made = []
    for step, weight, bias in zip(steps, weights, biases, strict=True):
        norm = () if step.norm is None else (next(rest), next(rest), torch.zeros(len(bias)), torch.ones(len(bias)))
        made.append(Layer(weight, bias, *norm))
    return made


def whole_numbers(shape: tuple[int, ...], seed: int, limit: int = 2) -> Tensor:
    return torch.randint(-limit, limit + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


def drawn(steps: tuple[Step, ...], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(s.outputs, s.channels, *s.kernel) for s in steps]
    weights = [torch.randn(s, generator=generator) / (s[1] * s[2] * s[3]) ** 0.5 for s in shapes]
    biases = [torch.randn(s[0], generator=generator) for s in shapes]
    return weights + biases + [torch.randn(s.outputs, generator=generator) for s in steps if s.norm for _ in range(2)]


def in_order(x: Tensor, order: str) -> Tensor:
    if order == "batch innermost":
        return x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2)
    if order == "channels_last":
        return x.contiguous(memory_format=torch.channels_last)
    if order == "gaps":
        return torch.stack([x, x], dim=-1)[..., 0]
    return x.contiguous()


def nearest_decision(steps: tuple[Step, ...], x: Tensor, parameters: list[Tensor]) -> float:
    """How far the closest pool is from another winner, or a number from a kink, beside the largest number.

    Numbers that are the same to the last bit do not count: padding makes them, and everybody takes the first.
    """
    nearest = torch.inf
    for step, layer in zip(steps, layers(steps, parameters), strict=True):
        own = [t for t in layer[: chain.PARAMETERS] if t is not None]
        y = step._replace(pool=False, activation=NONE).torch(x, *own)
        if step.activation:
            nearest = min(nearest, _smallest(y.abs()) / float(y.abs().max()))
        if step.pool:
            height, width = (side // 2 * 2 for side in y.shape[2:])
            windows = y[..., :height, :width].unfold(2, 2, 2).unfold(3, 2, 2).flatten(-2)
            best = windows.amax(-1, keepdim=True)
            nearest = min(nearest, _smallest(best - windows) / float(y.abs().max()))
        x = step.torch(x, *own)
    return nearest


def least_deviation(steps: tuple[Step, ...], x: Tensor, parameters: list[Tensor]) -> float:
    """The least deviation of a channel that is normalised, beside its largest number."""
    least = torch.inf
    for step, weight, layer in zip(steps, parameters, layers(steps, parameters), strict=False):
        if step.norm is not None:
            y = F.conv2d(x, weight, layer.bias, step.stride, step.pad).transpose(0, 1).flatten(1)
            least = min(least, float((y.std(dim=1, correction=0) / y.abs().amax(dim=1)).min()))
        x = step.torch(x, *(t for t in layer[: chain.PARAMETERS] if t is not None))
    return least


def _smallest(values: Tensor) -> float:
    return float(torch.where(values > 0, values, torch.inf).min())


def test_a_tie_that_rounding_decides_is_seen() -> None:
    """Two inputs of a pool that are 9e-9 apart: float32 has the same number for both."""
    steps = (Step(1, 1, (1, 1), (1, 1), (0, 0), True, NONE, False, 0.0),)
    x = torch.tensor([1.0, 1.0 + 9e-9, 0.5, 0.25], dtype=torch.float64).view(1, 1, 2, 2)
    one = [torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
    assert 0 < nearest_decision(steps, x, one) < 1e-8
    assert nearest_decision(steps, x.flip(-1) + torch.arange(4.0).view(2, 2), one) > 0.1
    beside_equals = torch.tensor([1.0, 1.0, 1.0 - 9e-9, 0.25], dtype=torch.float64).view(1, 1, 2, 2)
    assert 0 < nearest_decision(steps, beside_equals, one) < 1e-8, "two that are the same, and a third that is near"


ORDERS = st.sampled_from(["plain", "channels_last", "batch innermost", "gaps"])
BATCHES = st.one_of(st.integers(1, 40), st.sampled_from([64, 65]))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(network=networks(), batch=BATCHES, order=ORDERS, seed=st.integers(0, 999))
def test_whole_numbers_give_the_very_bits_of_torch(
    isa: str, network: tuple[tuple[Step, ...], tuple[int, int]], batch: int, order: str, seed: int
) -> None:
    """Small whole numbers have no rounding, so every order of summation gives the same bits, and windows are full
    of ties: this also proves that a tie goes to the same pixel (the first), because the gradient goes there.
    """
    steps, size = network
    steps = steps[:2]  # more would leave the range in which floats are exact
    x = in_order(whole_numbers((batch, steps[0].channels, *size), seed), order)
    parameters = [whole_numbers(tuple(p.shape), seed + i, 1) for i, p in enumerate(drawn(steps, 0))]
    expected, gradients = with_torch(steps, x, parameters, seed)
    result, ours = natively(isa, steps, x, parameters, seed)
    assert torch.equal(result, expected)
    for mine, theirs in zip(ours, gradients, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("outputs", [31, 32, 33, 70])
def test_whole_numbers_in_wide_stages(isa: str, outputs: int) -> None:
    """More channels than a mask has bits, more pools too, and more numbers under a row of the kernel than registers."""
    steps = (Step(26, outputs, (5, 5), (1, 1), (1, 2), True, RELU, False, 0.0),)
    x = whole_numbers((11, 26, 17, 14), outputs, 1)
    parameters = [whole_numbers((outputs, 26, 5, 5), 1, 1), whole_numbers((outputs,), 2)]
    expected, gradients = with_torch(steps, x, parameters, 3)
    result, ours = natively(isa, steps, x, parameters, 3)
    assert torch.equal(result, expected)
    for mine, theirs in zip(ours, gradients, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(network=networks(), batch=BATCHES, order=ORDERS, seed=st.integers(0, 999))
def test_rounding_is_no_worse_than_torchs(
    isa: str, network: tuple[tuple[Step, ...], tuple[int, int]], batch: int, order: str, seed: int
) -> None:
    """Against float64 as the truth: at most a few times the error that PyTorch's float32 has, or 4 units in the last
    place of the largest number, where PyTorch happens to be lucky. Where rounding decides who wins a pool, or on which
    side of a kink a number is, there is no one gradient to compare with.
    """
    steps, size = network
    generator = torch.Generator().manual_seed(seed)
    x = in_order(torch.randn((batch, steps[0].channels, *size), generator=generator), order)
    parameters = drawn(steps, seed)
    doubles = [p.double() for p in parameters]
    if nearest_decision(steps, x.double(), doubles) < 1e-6:
        return
    truth, true_gradients = with_torch(steps, x.double(), doubles, seed)
    single, single_gradients = with_torch(steps, x, parameters, seed)
    result, ours = natively(isa, steps, x, parameters, seed)
    for mine, theirs, true in zip((result, *ours), (single, *single_gradients), (truth, *true_gradients), strict=True):
        unit = torch.finfo(torch.float32).eps * max(float(true.abs().max()), 1.0)
        wrong = float((theirs - true).abs().max())
        assert float((mine - true).abs().max()) <= max(4 * wrong, 16 * unit)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(network=networks(norms=True), batch=BATCHES, order=ORDERS, seed=st.integers(0, 999))
def test_normalisation_rounds_no_worse_than_torchs(
    isa: str, network: tuple[tuple[Step, ...], tuple[int, int]], batch: int, order: str, seed: int
) -> None:
    """As above, with wider bounds, in units of the largest gradient: those through a normalisation are small rests of
    large terms, whose factors PyTorch has in double precision. A channel that hardly varies beside its mean makes
    errors of the last bits large, and nothing is compared.
    """
    steps, size = network
    generator = torch.Generator().manual_seed(seed)
    x = in_order(torch.randn((batch, steps[0].channels, *size), generator=generator), order)
    parameters = drawn(steps, seed)
    doubles = [p.double() for p in parameters]
    varied = least_deviation(steps, x.double(), doubles)
    if batch == 1 or varied < 0.05 or nearest_decision(steps, x.double(), doubles) < 1e-6:
        return
    truth, true_gradients = with_torch(steps, x.double(), doubles, seed)
    single, single_gradients = with_torch(steps, x, parameters, seed)
    result, ours = natively(isa, steps, x, parameters, seed)
    largest = max(1.0, *(float(g.abs().max()) for g in (truth, *true_gradients)))
    for mine, theirs, true in zip((result, *ours), (single, *single_gradients), (truth, *true_gradients), strict=True):
        wrong = float((theirs - true).abs().max())
        assert float((mine - true).abs().max()) <= max(8 * wrong, 64 * torch.finfo(torch.float32).eps * largest)


@pytest.mark.parametrize("isa", ISAS)
def test_gradients_agree_with_finite_differences(isa: str) -> None:
    """(f(w + h) - f(w - h)) / 2h for a smooth chain (no pool, no kink): f is at most quadratic in one weight of two
    stacked convolutions, so the central difference is exact up to rounding.
    """
    steps = (
        Step(2, 3, (3, 2), (1, 2), (1, 0), False, NONE, False, 0.0),
        Step(3, 2, (2, 2), (1, 1), (1, 1), False, NONE, False, 0.0),
    )
    generator = torch.Generator().manual_seed(0)
    x, parameters = torch.randn(5, 2, 6, 5, generator=generator), drawn(steps, 1)
    _, (into, *gradients) = natively(isa, steps, x, parameters, 7)

    def value(x: Tensor, parameters: list[Tensor]) -> float:
        y = x.double()
        for i, step in enumerate(steps):
            y = step.torch(y, parameters[i].double(), parameters[2 + i].double())
        return float((y * whole_numbers(y.shape, 7)).sum())

    for index, gradient in enumerate([into, *gradients]):
        for place in range(0, gradient.numel(), 7):
            values = []
            for h in (0.5, -0.5):
                changed = [t.double() for t in (x, *parameters)]
                changed[index] = changed[index].clone()
                changed[index].view(-1)[place] += h
                values.append(value(changed[0], changed[1:]))
            assert float(gradient.reshape(-1)[place]) == pytest.approx(values[0] - values[1], rel=1e-4, abs=1e-4)


def test_a_hand_made_normalisation() -> None:
    """Two images of one pixel, 1 and 3, under the kernel [[2]] and bias 5: 7 and 11, mean 9, variance 4 + eps.

    With eps = 0, weight 3 and bias 1 they become 1 - 3 and 1 + 3. Of the gradients 1 and 2 the normalisation's bias
    gets 3 and its weight -1 + 2. What shifts or scales both inputs alike, as a bias or the kernel does, changes
    nothing. The running mean 1 goes half the way to 9, the running variance 2 half the way to the unbiased one, 8.
    """
    for isa in ISAS.values():
        step = Step(1, 1, (1, 1), (1, 1), (0, 0), False, NONE, False, 0.0, norm=(0.0, 0.5))
        stages = chain.stages((step,), 1, 1)
        assert stages is not None
        x = torch.tensor([1.0, 3.0]).view(2, 1, 1, 1).requires_grad_()
        kernel = torch.full((1, 1, 1, 1), 2.0, requires_grad=True)
        bias, factor, shift = (torch.tensor([value], requires_grad=True) for value in (5.0, 3.0, 1.0))
        layer = Layer(kernel, bias, factor, shift, mean := torch.tensor([1.0]), variance := torch.tensor([2.0]))
        y = chain.run(plan := Plan(stages, isa), (step,), x, [layer], learn=True)
        assert y.flatten().tolist() == [-2.0, 4.0]
        y.backward(torch.tensor([1.0, 2.0]).view(2, 1, 1, 1))
        gradients = [t.grad.flatten().tolist() for t in (shift, factor, bias, kernel, x) if t.grad is not None]
        assert gradients == [[3.0], [1.0], [0.0], [0.0], [0.0, 0.0]]
        assert (mean.item(), variance.item()) == (5.0, 5.0)
        variance.fill_(4.0)
        with torch.no_grad():  # by the running moments: (7 - 5) / 2 * 3 + 1 and (11 - 5) / 2 * 3 + 1
            assert chain.run(plan, (step,), x, [layer]).flatten().tolist() == [4.0, 10.0]
        assert (mean.item(), variance.item()) == (5.0, 4.0)


def test_a_hand_made_pool() -> None:
    """One 2x2 window [[1, 3], [3, 2]] under the kernel [[2]] and bias -1: 2 * 3 - 1 = 5 at the first of the threes.

    So the weight's gradient is 3, the bias's 1, and the input's 2 at the upper right pixel alone.
    """
    steps = (Step(1, 1, (1, 1), (1, 1), (0, 0), True, RELU, False, 0.0),)
    x = torch.tensor([[[[1.0, 3.0], [3.0, 2.0]]]])
    for isa in ISAS:
        y, (into, weight, bias) = natively_with_ones(
            isa, steps, x, [torch.full((1, 1, 1, 1), 2.0), torch.tensor([-1.0])]
        )
        assert (float(y), float(weight), float(bias)) == (5.0, 3.0, 1.0)
        assert into.tolist() == [[[[0.0, 2.0], [0.0, 0.0]]]]


def natively_with_ones(isa: str, steps: tuple[Step, ...], x: Tensor, parameters: list[Tensor]) -> Results:
    leaves = [t.clone().requires_grad_() for t in (x, *parameters)]
    stages = chain.stages(steps, x.shape[2], x.shape[3])
    assert stages is not None
    y = chain.run(Plan(stages, ISAS[isa]), steps, leaves[0], layers(steps, leaves[1:]))
    y.sum().backward()
    return y.detach(), [t.grad for t in leaves if t.grad is not None]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("activation", [NONE, RELU, LEAKY])
@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("norm", [None, (1e-5, 0.1)])
def test_what_is_not_finite_stays_so(
    isa: str, bad: float, activation: int, pool: bool, norm: tuple[float, float] | None
) -> None:
    """A diverging client must be noticed: NaN and infinities come out where PyTorch has them."""
    steps = (Step(2, 3, (3, 3), (1, 1), (1, 1), pool, activation, False, 0.125, norm),)
    x = whole_numbers((20, 2, 8, 8), 0)
    x[3, 1, 2, 5] = bad
    parameters = [
        whole_numbers((3, 2, 3, 3), 1),
        whole_numbers((3,), 2),
        *([torch.ones(3), torch.zeros(3)] if norm else []),
    ]
    expected, gradients = with_torch(steps, x, parameters, 3)
    result, ours = natively(isa, steps, x, parameters, 3)
    assert torch.equal(result.nan_to_num(1.5, 2.5, 3.5), expected.nan_to_num(1.5, 2.5, 3.5))
    for mine, theirs in zip(ours, gradients, strict=True):
        assert torch.equal(mine.isfinite(), theirs.isfinite())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("norm", [None, (1e-5, 0.1)])
def test_the_same_call_gives_the_same_bits_whatever_came_before(isa: str, norm: tuple[float, float] | None) -> None:
    """Reused memory must not shine through: a big batch between two small ones changes nothing."""
    steps = (
        Step(3, 5, (5, 5), (1, 1), (2, 2), True, RELU, False, 0.0, norm),
        Step(5, 7, (3, 3), (2, 2), (0, 0), False, LEAKY, False, 0.1, norm),
    )
    stages = chain.stages(steps, 12, 13)
    assert stages is not None
    plan, parameters = Plan(stages, ISAS[isa]), drawn(steps, 0)
    small, big = torch.randn(3, 3, 12, 13), torch.randn(70, 3, 12, 13)

    def everything(x: Tensor) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (x, *parameters)]
        y = chain.run(plan, steps, leaves[0], layers(steps, leaves[1:]))
        y.square().sum().backward()
        return [y.detach()] + [t.grad for t in leaves if t.grad is not None]

    before = everything(small)
    everything(big)
    for first, again in zip(before, everything(small), strict=True):
        assert torch.equal(first, again)
