"""The pass: what it takes, what it leaves alone, and that nobody notices."""

import copy
import gc
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from fedgraft import kernels, models
from fedgraft.base.errors import UserError
from fedgraft.core.model import Architecture, Model
from fedgraft.kernels import chain, native
from fedgraft.kernels import fusion as passes
from fedgraft.kernels.build import LIBRARY
from fedgraft.kernels.fusion import FusedSequential

needs_native = pytest.mark.skipif(not kernels.available(), reason=f"no native kernels: {native.library().problem}")


@pytest.fixture(autouse=True)
def same_networks() -> None:
    """In one network of some hundred the last bits decide a pool or an activation, and gradients are apart."""
    torch.manual_seed(0)


def example(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1), nn.MaxPool2d(2), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(8 * 3 * 3, 4),
    )  # fmt: skip


def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 8, 3, bias=False), nn.BatchNorm2d(8, eps=1e-3, momentum=0.3), nn.LeakyReLU(0.1),
        nn.Conv2d(8, 5, 2), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 5 * 5, 4),
    )  # fmt: skip


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch sizes of the forward passes that ran natively."""
    batches: list[int] = []
    real = native.Plan.forward

    def forward(self: native.Plan, x: Tensor, *rest: object, **more: object) -> object:
        batches.append(len(x))
        return real(self, x, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(native.Plan, "forward", forward)
    return batches


def step(module: nn.Module, x: Tensor, labels: Tensor) -> list[Tensor]:
    module.zero_grad()
    F.cross_entropy(module(x), labels).backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def close(mine: Tensor, theirs: Tensor) -> bool:
    return torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5 * max(1.0, float(theirs.detach().abs().max())))


# what is said, with and without the library


def test_choices_are_checked() -> None:
    assert kernels.choose("torch") == "torch"
    assert kernels.choose("auto") == "auto"
    with pytest.raises(UserError, match="did you mean 'native'"):
        kernels.choose("nativ")


def test_torch_leaves_everything_as_it_is() -> None:
    module = stack()
    report = kernels.accelerate(module, example(2, 3, 16, 16), "torch")
    assert report.module is module
    assert type(module) is nn.Sequential
    assert "as asked for" in str(report)


def test_without_the_library_everything_is_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "library", lambda: native.Library(problem="they were not compiled"))
    module = stack()
    report = kernels.accelerate(module, example(2, 3, 16, 16), "auto")
    assert not kernels.available()
    assert type(module) is nn.Sequential
    assert report.chains == ()
    assert "they were not compiled" in kernels.describe()
    with pytest.raises(UserError, match="they were not compiled"):
        kernels.choose("native")


def test_a_fused_module_works_where_the_library_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickled module may be loaded on a machine that has no compiler."""
    plain = stack()
    fused = stack()
    fused.__class__ = FusedSequential
    monkeypatch.setattr(passes, "library", lambda: native.Library(problem="gone"))
    assert torch.equal(fused(example(2, 3, 16, 16)), plain(example(2, 3, 16, 16)))


def test_a_library_that_is_missing_or_broken_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    look = native.library.__wrapped__
    assert "not compiled" in look().problem
    (tmp_path / LIBRARY).write_text("no library")
    assert "cannot be loaded" in look().problem
    (tmp_path / LIBRARY).unlink()
    shutil.copyfile(torch._C.__file__, tmp_path / LIBRARY)
    assert "compiled from other sources" in look().problem


@needs_native
def test_an_instruction_set_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDGRAFT_ISA", "baseline")
    assert [k.isa for k in native.library.__wrapped__().kernels] == [b"baseline"]
    monkeypatch.setenv("FEDGRAFT_ISA", "mmx")
    assert "'mmx'" in native.library.__wrapped__().problem


@needs_native
def test_the_description_names_the_instruction_set() -> None:
    assert native.library().best().isa.decode() in kernels.describe("native")


# nobody notices


@needs_native
def test_parameters_keep_their_names_and_are_the_same_objects() -> None:
    module = stack()
    before = dict(module.named_parameters())
    report = kernels.accelerate(module, example(2, 3, 16, 16), "native")
    after = dict(module.named_parameters())
    assert list(before) == list(after) == list(module.state_dict())
    assert all(before[name] is after[name] for name in before)
    assert [found.layers for found in report.chains] == [tuple("012345")]
    assert report.chains[0].native_at == passes.USUAL_BATCHES


@needs_native
@pytest.mark.parametrize(("name", "shape"), [
    ("lenet5", (3, 32, 32)), ("lenet5", (1, 28, 28)), ("cnn-apple", (1, 28, 28)), ("cnn-fedgpa", (3, 28, 28)),
    ("cnn-fedgpa", (1, 28, 28)), ("cnn-digits", (1, 8, 8)),
])  # fmt: skip
@pytest.mark.parametrize("batch", [1, 10, 33])
def test_shipped_models_compute_the_same(name: str, shape: tuple[int, ...], batch: int) -> None:
    plain = models.build(name, shape, 10)
    fused = copy.deepcopy(plain)
    kernels.accelerate(fused, example(2, *shape), "native")
    x = example(batch, *shape).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch) % 10
    assert close(fused(x), plain(x))
    for mine, theirs in zip(step(fused, x, labels), step(plain, x, labels), strict=True):
        assert close(mine, theirs)


def flat_models() -> tuple[Model, Model]:
    architecture = Architecture(lambda: models.build("lenet5", (3, 32, 32), 10), example(2, 3, 32, 32))
    plain, fused = architecture.model(seed=1), architecture.model(seed=1)
    kernels.accelerate(fused.module, example(2, 3, 32, 32), "native")
    return plain, fused


@needs_native
def test_fifty_steps_stay_on_torchs_trajectory(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGD with momentum 0.9 on one batch after another: weights and losses within 1e-4 after 50 steps.

    The parameters are views into one flat vector with channels_last strides, and so are the gradients.
    """
    plain, fused = flat_models()
    assert fused.module.extractor[0].weight.stride() == (75, 1, 15, 3)  # type: ignore[union-attr, index]
    velocities = [torch.zeros_like(plain.gradient) for _ in range(2)]
    losses: list[list[float]] = [[], []]
    batches = counted(monkeypatch)
    for turn in range(50):
        x = example(13, 3, 32, 32, seed=turn).contiguous(memory_format=torch.channels_last)
        labels = torch.arange(13) * (turn + 1) % 10
        for model, velocity, seen in zip((plain, fused), velocities, losses, strict=True):
            loss = F.cross_entropy(model(x), labels)
            velocity.mul_(0.9).add_(model.differentiate(loss))
            model.vector[: len(velocity)].sub_(velocity, alpha=0.01)
            seen.append(float(loss.detach()))
    assert batches == [13] * 50
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert float((plain.vector - fused.vector).abs().max()) < 1e-4
    assert float((plain.vector - flat_models()[0].vector).abs().max()) > 1e-2  # it did train


@needs_native
def test_freezing_a_part_skips_its_gradients() -> None:
    plain, fused = flat_models()
    x, labels = example(7, 3, 32, 32), torch.arange(7)
    for part in ("head", "extractor", "nothing"):
        for model in (plain, fused):
            with model.only(part):  # type: ignore[arg-type]
                loss = F.cross_entropy(model(x), labels)
                if part != "nothing":
                    model.differentiate(loss)
        assert close(fused.gradient, plain.gradient)


@needs_native
def test_freezing_single_parameters() -> None:
    """Each subset of the four chain parameters asks for its own gradients, and gets exactly those."""
    x, labels = example(5, 3, 16, 16), torch.arange(5) % 4
    for mask in range(16):
        results = []
        for choice in ("torch", "native"):
            module = stack()
            kernels.accelerate(module, x, choice)
            for bit, parameter in enumerate(list(module.parameters())[:4]):
                parameter.requires_grad_(bool(mask >> bit & 1))
            results.append(step(module, x, labels))
        assert len(results[0]) == len(results[1]) == mask.bit_count() + 2
        for mine, theirs in zip(results[1], results[0], strict=True):
            assert close(mine, theirs)


@needs_native
def test_the_input_gets_its_gradient_when_it_wants_one() -> None:
    plain, fused = stack(), stack()
    kernels.accelerate(fused, example(2, 3, 16, 16), "native")
    gradients = []
    for module in (plain, fused):
        x = example(6, 3, 16, 16).requires_grad_()
        module(x).square().sum().backward()
        assert x.grad is not None
        gradients.append(x.grad)
    assert close(gradients[1], gradients[0])


@needs_native
def test_several_graphs_are_alive_at_once() -> None:
    """Teacher and student, a batch seen twice, a graph used twice: every backward pass finds its own memory."""
    plain, fused = stack(), stack()
    kernels.accelerate(fused, example(2, 3, 16, 16), "native")
    gradients = []
    for module in (plain, fused):
        module.zero_grad()
        first, second = module(example(20, 3, 16, 16, seed=1)), module(example(20, 3, 16, 16, seed=2))
        with torch.no_grad():
            teacher = module(example(20, 3, 16, 16, seed=3))
        loss = (first * second).sum() + (first - teacher).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        gradients.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    for mine, theirs in zip(gradients[1], gradients[0], strict=True):
        assert close(mine, theirs)


@needs_native
def test_threads_do_not_share_memory() -> None:
    fused = stack()
    kernels.accelerate(fused, example(2, 3, 16, 16), "native")
    inputs = [example(40, 3, 16, 16, seed=i) for i in range(4)]
    expected = [fused(x).detach() for x in inputs]
    wrong: list[int] = []

    def work(i: int) -> None:
        wrong.extend(i for _ in range(20) if not torch.equal(fused(inputs[i]).detach(), expected[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@needs_native
@pytest.mark.parametrize("build", [stack, normed])
def test_second_derivatives_come_from_torch(build: Callable[[], nn.Sequential]) -> None:
    """A Hessian-vector product needs the gradient's own graph; PyTorch makes it, and moves no running moments again."""
    results = []
    for choice in ("torch", "native"):
        module = build()
        kernels.accelerate(module, example(2, 3, 16, 16), choice)
        weights = list(module.parameters())
        loss = F.cross_entropy(module(example(9, 3, 16, 16)), torch.arange(9) % 4)
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        products = torch.autograd.grad(sum(g.square().sum() for g in gradients), weights)
        results.append([*products, *module.buffers()])
    for mine, theirs in zip(results[1], results[0], strict=True):
        assert close(mine, theirs)


@needs_native
def test_evaluation_of_a_big_batch_needs_the_memory_of_one_block() -> None:
    module = stack()
    kernels.accelerate(module, example(2, 3, 16, 16), "native")
    plan = next(s for s in passes._segments(module) if s.steps)
    stages = chain.stages(plan.steps, 16, 16)
    assert stages is not None
    memory = chain.plan(stages)
    memory._saved.clear()
    with torch.no_grad():
        module(example(500, 3, 16, 16))
    assert [m.numel() for m in memory._saved] == [memory._block_bytes + 64]


@needs_native
def test_training_reuses_its_memory() -> None:
    module = stack()
    kernels.accelerate(module, example(2, 3, 16, 16), "native")
    stages = chain.stages(passes._segments(module)[0].steps, 16, 16)
    assert stages is not None
    memory = chain.plan(stages)
    memory._saved.clear()
    memory._scratch.clear()
    for _ in range(5):
        step(module, example(20, 3, 16, 16), torch.arange(20) % 4)
    gc.collect()
    places = {m.data_ptr() for m in memory._saved + memory._scratch}
    for _ in range(5):
        step(module, example(20, 3, 16, 16), torch.arange(20) % 4)
    gc.collect()
    assert {m.data_ptr() for m in memory._saved + memory._scratch} == places


@needs_native
def test_copies_and_pickles_stay_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = stack()
    kernels.accelerate(module, example(2, 3, 16, 16), "native")
    x = example(4, 3, 16, 16)
    expected = module(x)
    batches = counted(monkeypatch)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        with torch.no_grad():
            module[0].weight.zero_()  # the copy must not look at the original's layers
        assert torch.equal(other(x), expected)
        module.load_state_dict(other.state_dict())
    assert batches == [4, 4]


# what the pass leaves alone


@needs_native
@pytest.mark.parametrize("register", [
    lambda m, h: m[1].register_forward_hook(h),
    lambda m, h: m[3].register_forward_pre_hook(h),
    lambda m, h: m[4].register_full_backward_hook(h),
    lambda m, h: nn.modules.module.register_module_forward_hook(h),
])  # fmt: skip
def test_hooks_inside_a_chain_are_called(
    register: Callable[[nn.Sequential, object], torch.utils.hooks.RemovableHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = stack()
    x = example(4, 3, 16, 16)
    kernels.accelerate(module, x, "native")
    called: list[nn.Module] = []
    batches = counted(monkeypatch)
    handle = register(module, lambda m, *_: called.append(m))
    module(x).sum().backward()
    handle.remove()
    assert called
    assert batches == []
    module(x)
    assert batches == [4]


@needs_native
def test_hooks_on_the_container_and_behind_the_chain_do_not_disturb_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module = stack()
    kernels.accelerate(module, example(2, 3, 16, 16), "native")
    seen: list[tuple[int, ...]] = []
    module.register_forward_hook(lambda m, i, o: seen.append(tuple(o.shape)))
    module[7].register_forward_pre_hook(lambda m, i: seen.append(tuple(i[0].shape)))
    batches = counted(monkeypatch)
    module(example(4, 3, 16, 16))
    assert batches == [4]
    assert seen == [(4, 72), (4, 4)]


@needs_native
def test_other_kinds_of_tensors_go_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    module = stack()
    kernels.accelerate(module, example(2, 3, 16, 16), "native")
    plain = stack()
    batches = counted(monkeypatch)
    x = example(4, 3, 16, 16)
    assert torch.equal(copy.deepcopy(module).double()(x.double()), plain.double()(x.double()))
    assert module(x[:0]).shape == (0, 4)
    assert module[:3](x[0]).shape == (6, 6, 6)  # one image without a batch
    with torch.autocast("cpu", dtype=torch.bfloat16):
        module(x)
    with pytest.raises(RuntimeError, match="channels"):
        module(example(4, 2, 16, 16))
    with pytest.raises(RuntimeError):
        module(example(4, 3, 4, 4))
    assert batches == []


@needs_native
def test_transforms_of_functions_go_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of single samples with torch.func, as some methods want them."""
    module, plain = stack(), stack()
    kernels.accelerate(module, example(2, 3, 16, 16), "native")
    batches = counted(monkeypatch)

    def loss(weights: dict[str, Tensor], net: nn.Module, x: Tensor) -> Tensor:
        return torch.func.functional_call(net, weights, (x.unsqueeze(0),)).square().sum()

    x = example(3, 3, 16, 16)
    results = [
        torch.func.vmap(torch.func.grad(loss), in_dims=(None, None, 0))(dict(net.named_parameters()), net, x)
        for net in (plain, module)
    ]
    assert batches == []
    assert all(close(results[1][name], results[0][name]) for name in results[0])


@needs_native
def test_functional_call_uses_the_weights_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    module, plain = stack(), stack()
    kernels.accelerate(module, example(2, 3, 16, 16), "native")
    weights = {name: 2 * p.detach() for name, p in plain.named_parameters()}
    x = example(3, 3, 16, 16)
    expected = torch.func.functional_call(plain, weights, (x,))
    batches = counted(monkeypatch)
    assert close(torch.func.functional_call(module, weights, (x,)), expected)
    assert batches == [3]


class Textbook(nn.Module):
    """Layers as attributes, a forward of its own: there is no container to look into."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 2, 3)
        self.stages = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU())
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stages(F.relu(self.first(x))).mean((2, 3)))
        return logits


@needs_native
def test_containers_inside_any_module_are_found() -> None:
    module, plain = Textbook(), Textbook()
    module.load_state_dict(plain.state_dict())
    report = kernels.accelerate(module, example(2, 1, 8, 8), "native")
    assert [str(found) for found in report.chains] == ["stages.0 to stages.1: native"]
    assert report.left == (("first", "it is not a layer of an nn.Sequential"),)
    assert type(module) is Textbook
    assert close(module(example(3, 1, 8, 8)), plain(example(3, 1, 8, 8)))


@needs_native
def test_what_the_kernels_cannot_do_splits_the_chain() -> None:
    layers = [
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.ReLU(),
        nn.Conv2d(4, 4, 3, dilation=2, padding="same"), nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 5, 3, padding="same"), nn.LeakyReLU(-0.1), nn.Conv2d(5, 5, 2, padding="valid"),
        nn.MaxPool2d(3, 1), nn.Conv2d(5, 2, 1), nn.ReLU(), nn.ReLU(), nn.AvgPool2d(2),
    ]  # fmt: skip
    plain = nn.Sequential(*layers)
    module = copy.deepcopy(plain)
    report = kernels.accelerate(module, example(2, 2, 12, 12), "native")
    assert [found.layers for found in report.chains] == [("0", "1", "2", "3"), ("8",), ("10",), ("12", "13")]
    assert dict(report.left) == {
        "4": "it has 2 groups",
        "6": "it is dilated by (2, 2)",
        "7": "its padding is (1, 1) (reflect)",
    }
    for training in (True, False):
        x = example(9, 2, 12, 12)
        assert close(module.train(training)(x), plain.train(training)(x))
    assert close(module[1].running_mean, plain[1].running_mean)  # type: ignore[arg-type]


@needs_native
def test_nested_containers_join_one_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2)),
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Dropout(0.0)),
            nn.Flatten(),
        )

    module, plain = build(), build()
    kernels.accelerate(module, example(2, 1, 12, 12), "native")
    batches = counted(monkeypatch)
    x = example(5, 1, 12, 12)
    assert close(module(x), plain(x))
    assert batches == [5, 5]  # the second container goes on after its chain, so the chains stay apart
    module[0].register_forward_hook(lambda *_: None)
    module(x)
    assert batches == [5, 5, 5, 5]  # a hook on a container of its own does not stop what is inside
    joined = nn.Sequential(build()[0], build()[1][:2])
    kernels.accelerate(joined, example(2, 1, 12, 12), "native")
    batches.clear()
    joined(x)
    assert batches == [5]


@needs_native
def test_a_slice_is_run_by_the_same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = stack(), example(4, 3, 16, 16)
    for choice, expected in (("native", [4]), ("torch", [])):
        kernels.accelerate(module, x, choice)
        batches = counted(monkeypatch)
        assert close(module[3:6](stack()[:3](x)), stack()[:6](x))
        assert batches == expected
        monkeypatch.undo()


@needs_native
def test_an_exchanged_layer_is_noticed() -> None:
    module = stack()
    kernels.accelerate(module, example(2, 3, 16, 16), "native")
    x = example(4, 3, 16, 16)
    module(x)
    module[5] = nn.Tanh()
    plain = stack()
    plain.load_state_dict(module.state_dict())
    plain[5] = nn.Tanh()
    assert close(module(x), plain(x))


@needs_native
def test_a_layer_used_twice_gets_both_gradients() -> None:
    def build() -> nn.Sequential:
        torch.manual_seed(0)
        shared = nn.Conv2d(2, 2, 3, padding=1)
        return nn.Sequential(shared, nn.ReLU(), shared, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 4))

    module, plain = build(), build()
    kernels.accelerate(module, example(2, 2, 8, 8), "native")
    x, labels = example(5, 2, 8, 8), torch.arange(5) % 4
    for mine, theirs in zip(step(module, x, labels), step(plain, x, labels), strict=True):
        assert close(mine, theirs)


@needs_native
def test_convolutions_without_bias() -> None:
    plain = nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))
    module = copy.deepcopy(plain)
    kernels.accelerate(module, example(2, 2, 8, 8), "native")
    x, labels = example(5, 2, 8, 8), torch.arange(5) % 4
    for mine, theirs in zip(step(module, x, labels), step(plain, x, labels), strict=True):
        assert close(mine, theirs)


# batch normalisation


@needs_native
@pytest.mark.parametrize("batch", [2, 15, 16, 37])
def test_training_with_batch_normalisation_is_as_in_torch(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of training, each followed by an evaluation: gradients, running moments and their count, outputs."""
    plain, fused = normed(), normed()
    (found,) = kernels.accelerate(fused, example(2, 3, 16, 16), "native").chains
    assert found.layers == ("0", "1", "2", "3", "4", "5", "6", "7", "8")
    batches = counted(monkeypatch)
    for turn in range(3):
        x, labels = example(batch, 3, 16, 16, seed=turn), torch.arange(batch) % 4
        for mine, theirs in zip(step(fused.train(), x, labels), step(plain.train(), x, labels), strict=True):
            assert close(mine, theirs)
        with torch.no_grad():
            for mine, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
                assert mine.grad is not None
                theirs.sub_(mine.grad, alpha=0.05)
                mine.copy_(theirs)
            assert close(fused(x), plain(x)), "training mode without gradients moves the running moments as well"
            assert close(fused.eval()(x), plain.eval()(x))
        for mine, theirs in zip(fused.buffers(), plain.buffers(), strict=True):
            assert close(mine, theirs)
    assert batches == [batch] * 9
    assert [int(buffer) for name, buffer in fused.named_buffers() if "num_batches" in name] == [6, 6]


@needs_native
@pytest.mark.parametrize("change", [
    lambda m: setattr(m[1], "momentum", None),
    lambda m: setattr(m[1], "eps", 0.5),
    lambda m: m[5].__dict__["_buffers"].update(running_mean=None, running_var=None),
    lambda m: m[5].eval(),
    lambda m: m.eval(),
])  # fmt: skip
def test_a_normalisation_that_is_not_as_it_was_goes_to_torch(
    change: Callable[[nn.Sequential], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changed settings, modes that differ, and gradients in evaluation mode."""
    plain, fused = normed(), normed()
    kernels.accelerate(fused, example(2, 3, 16, 16), "native")
    x, labels = example(9, 3, 16, 16), torch.arange(9) % 4
    for module in (plain, fused):
        module(x)
        change(module)
    batches = counted(monkeypatch)
    for mine, theirs in zip(step(fused, x, labels), step(plain, x, labels), strict=True):
        assert close(mine, theirs)
    assert batches == []


@needs_native
def test_one_number_to_a_channel_is_torchs_error() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    kernels.accelerate(module, example(2, 1, 3, 3), "native")
    module(example(2, 1, 3, 3))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        module(example(1, 1, 3, 3))


@needs_native
def test_normalisations_that_the_kernels_do_not_have_split_the_chain() -> None:
    others = [
        nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4, track_running_stats=False), nn.BatchNorm2d(4, momentum=None),
        nn.InstanceNorm2d(4),
    ]  # fmt: skip
    for other in others:
        module = nn.Sequential(nn.Conv2d(2, 4, 3), other, nn.ReLU())
        (found,) = kernels.accelerate(module, example(2, 2, 8, 8), "native").chains
        assert found.layers == ("0",)


# the rule of auto


@needs_native
def test_auto_looks_at_shapes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """LeNet-5 at batch 64 is worth it, a single image is not, and neither are wide layers."""
    isa = native.library().best().isa.decode()
    if isa not in passes.MEASURED:
        pytest.skip(f"auto stays with PyTorch on {isa}, where nobody has measured")
    module = models.build("lenet5", (3, 32, 32), 10)
    kernels.accelerate(module, example(2, 3, 32, 32), "auto")
    batches = counted(monkeypatch)
    for batch in (64, 1, 64):
        module(example(batch, 3, 32, 32))
    assert batches == [64, 64]
    (found,) = kernels.accelerate(copy.deepcopy(module), example(2, 3, 32, 32), "auto").chains
    assert found.native_at is not None
    assert 64 in found.native_at
    assert 1 not in found.native_at
    wide = nn.Sequential(nn.Conv2d(128, 128, 3, padding=1), nn.ReLU())
    kernels.accelerate(wide, example(2, 128, 8, 8), "auto")
    batches.clear()  # the pass itself has compared both ways
    wide(example(64, 128, 8, 8))
    assert batches == []


@needs_native
def test_a_module_may_return_several_tensors_or_have_no_example() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stages = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())

        def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            y = self.stages(x)
            return y, {"mean": y.mean()}

    module = Both()
    assert len(kernels.accelerate(module, example(2, 1, 8, 8), "native").chains) == 1
    (found,) = kernels.accelerate(Both(), choice="auto").chains
    assert found.native_at is None


@needs_native
def test_the_pass_can_run_again_with_another_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    module = stack()
    x = example(4, 3, 16, 16)
    for _ in range(2):
        assert len(kernels.accelerate(module, x, "native").chains) == 1
    batches = counted(monkeypatch)
    module(x)
    assert batches == [4]
    kernels.accelerate(module, x, "torch")
    module(x)
    assert batches == [4]


@needs_native
def test_a_module_that_changes_when_fused_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass compares both ways on the example before it trusts itself."""
    real = native.Plan.forward
    monkeypatch.setattr(native.Plan, "forward", lambda *a, **k: (real(*a, **k)[0] + 1, real(*a, **k)[1]))
    module = stack()
    report = kernels.accelerate(module, example(2, 3, 16, 16), "native")
    assert type(module) is nn.Sequential
    assert report.chains == ()
    assert [name for name, _ in report.left] == ["0", "3"]
