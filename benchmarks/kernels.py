"""Time the native kernels against PyTorch, on one thread.

    python -m benchmarks.kernels [--quick] [--out build/kernels.json]

Every figure of a line comes from one run in which the ways take turns, a few steps each, so that a busy machine
slows all of them alike; the median of the thread's CPU time counts. A step is forward, loss, backward and SGD with
momentum. "textbook" is plain PyTorch: NCHW, activation before pooling, torch.optim.SGD. "channels_last" is fedgraft
without kernels: pooling first, channels_last, one flat vector. "native" is the same with the kernels.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from benchmarks.clock import in_turns, peak
from fedgraft import kernels, models
from fedgraft.core.model import Architecture
from fedgraft.kernels import chain, fusion
from fedgraft.kernels.native import Layer, Plan, Stage, library

torch.set_num_threads(1)

MODELS = [
    ("lenet5", (3, 32, 32)), ("lenet5", (1, 28, 28)),
    ("cnn-apple", (1, 28, 28)), ("cnn-apple", (3, 28, 28)),
    ("cnn-fedgpa", (1, 28, 28)), ("cnn-fedgpa", (3, 28, 28)),
    ("cnn-digits", (1, 8, 8)),
    ("vgg11:0.0625", (3, 32, 32)), ("vgg19:0.0625", (3, 32, 32)),
]  # fmt: skip
BATCHES = (10, 50, 64, 256)
RATE, MOMENTUM = 0.01, 0.9

Step = Callable[[], object]


def textbook(name: str, shape: tuple[int, ...], x: Tensor, y: Tensor) -> Step:
    net = models.build(name, shape, 10)
    layers = list(net.extractor)  # type: ignore[arg-type]
    for i, layer in enumerate(layers[:-1]):
        if isinstance(layer, nn.MaxPool2d) and isinstance(layers[i - 1], nn.Conv2d):
            layers[i], layers[i + 1] = layers[i + 1], layer
    net.extractor = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def flat(architecture: Architecture, x: Tensor, y: Tensor, choice: str) -> Step:
    model = architecture.model()
    kernels.accelerate(model.module, x[:2], choice)
    x = x.contiguous(memory_format=torch.channels_last)
    velocity = torch.zeros_like(model.gradient)
    weights = model.vector[: len(velocity)]

    def step() -> None:
        velocity.mul_(MOMENTUM).add_(model.differentiate(F.cross_entropy(model(x), y)))
        weights.sub_(velocity, alpha=RATE)

    return step


def rule(net: nn.Module, shape: tuple[int, ...], batch: int) -> bool:
    """What ``auto`` would do with the chain of a shipped model."""
    steps = next(s.steps for s in fusion._cut(net.extractor) if s.steps)  # type: ignore[arg-type]
    stages = chain.stages(steps, shape[1], shape[2])
    return stages is not None and fusion.worthwhile(stages, batch)


def step_times(seconds: float, batches: Sequence[int]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    print(f"{'training step, ms':28} {'batch':>5} {'textbook':>9} {'ch_last':>9} {'native':>9}  native is faster by")
    for name, shape in MODELS:
        for batch in batches:
            torch.manual_seed(0)
            x, y = torch.randn(batch, *shape), torch.randint(10, (batch,))
            architecture = Architecture(lambda n=name, s=shape: models.build(n, s, 10), x[:2])  # type: ignore[misc]
            ways = [textbook(name, shape, x, y), flat(architecture, x, y, "torch"), flat(architecture, x, y, "native")]
            book, last, ours = in_turns(ways, seconds)
            auto = rule(models.build(name, shape, 10), shape, batch)
            label = f"{name} {'x'.join(map(str, shape))}"
            print(
                f"{label:28} {batch:5} {book:9.2f} {last:9.2f} {ours:9.2f}  {book / ours:5.2f} {last / ours:5.2f}"
                f"  auto: {'native' if auto else 'torch'}",
                flush=True,
            )
            rows.append({
                "model": name, "shape": shape, "batch": batch, "textbook_ms": book, "channels_last_ms": last,
                "native_ms": ours, "auto": "native" if auto else "torch",
            })  # fmt: skip
    return rows


CONVOLUTIONS = {
    "lenet5, first": Stage(3, 32, 32, 6, (5, 5), (1, 1), (0, 0), True, 1, False, 0.0),
    "lenet5, second": Stage(6, 14, 14, 16, (5, 5), (1, 1), (0, 0), True, 1, False, 0.0),
    "cnn-apple, first": Stage(1, 28, 28, 20, (5, 5), (1, 1), (0, 0), True, 1, False, 0.0),
    "cnn-apple, second": Stage(20, 12, 12, 50, (5, 5), (1, 1), (0, 0), True, 1, False, 0.0),
    "cnn-fedgpa, second": Stage(16, 12, 12, 32, (5, 5), (1, 1), (1, 1), True, 2, False, 0.01),
    "cnn-fedgpa, third": Stage(32, 5, 5, 64, (3, 3), (1, 1), (1, 1), True, 2, False, 0.01),
}


def kernel_times(seconds: float, batch: int) -> list[dict[str, object]]:
    """GFLOP/s of each kernel; PyTorch's figure is its convolution alone, ours has pooling and activation in it."""
    top = peak()
    isa = library().best().isa.decode()
    print(f"\nkernels at batch {batch}, GFLOP/s (multiply-add peak of this core with {isa}: {top:.0f})")
    print(f"{'':22} {'forward':>15} {'weight gradient':>17} {'input gradient':>16}   (PyTorch in brackets)")
    rows: list[dict[str, object]] = [{"peak": top, "isa": isa}]
    for name, stage in CONVOLUTIONS.items():
        plan = Plan((stage,))
        x = torch.randn(batch, stage.channels, stage.height, stage.width)
        x = x.contiguous(memory_format=torch.channels_last)
        weight = torch.randn(stage.outputs, stage.channels, *stage.kernel).contiguous(memory_format=torch.channels_last)
        bias, into = torch.zeros(stage.outputs), torch.empty(x.shape)
        layers, sums = [Layer(weight, bias)], torch.empty_like(bias)
        alone, both = [Layer(None, sums)], [Layer(torch.empty_like(weight), sums)]
        output, saved = plan.forward(x, layers, keep=True)
        up = torch.randn_like(output)
        wide = torch.randn(F.conv2d(x, weight, None, stage.stride, stage.pad).shape)
        wide = wide.contiguous(memory_format=torch.channels_last)

        def torchs(mask: list[bool], x: Tensor = x, w: Tensor = weight, g: Tensor = wide, s: Stage = stage) -> object:
            return torch.ops.aten.convolution_backward(g, x, w, None, s.stride, s.pad, (1, 1), False, (0, 0), 1, mask)

        ways: list[Step] = [
            lambda p=plan, x=x, w=layers: p.forward(x, w, keep=True),  # type: ignore[misc]
            lambda p=plan, w=layers, u=up, s=saved, g=alone: p.backward(u, w, s, g, None),  # type: ignore[misc]
            lambda p=plan, w=layers, u=up, s=saved, g=both: p.backward(u, w, s, g, None),  # type: ignore[misc]
            lambda p=plan, w=layers, u=up, s=saved, g=alone, i=into: p.backward(u, w, s, g, i),  # type: ignore[misc]
            lambda x=x, w=weight, b=bias, s=stage: F.conv2d(x, w, b, s.stride, s.pad),  # type: ignore[misc]
            lambda t=torchs: t([False, True, False]),  # type: ignore[misc]
            lambda t=torchs: t([True, False, False]),  # type: ignore[misc]
        ]
        forward, unpool, weights, inputs, *theirs = in_turns(ways, seconds)
        height, width = (side // 2 * 2 if stage.pool else side for side in stage.convolved)
        taps = stage.channels * stage.kernel[0] * stage.kernel[1]
        flops = 2e-6 * batch * stage.outputs * height * width * taps
        ours = [flops / t for t in (forward, weights - unpool, inputs - unpool)]
        others = [flops / t for t in theirs]
        cells = "  ".join(f"{a:8.0f} ({b:4.0f})" for a, b in zip(ours, others, strict=True))
        print(f"{name:22} {cells}", flush=True)
        rows.append({"stage": name, "batch": batch, "native": ours, "torch": others})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the native kernels against PyTorch, on one thread.")
    parser.add_argument("--quick", action="store_true", help="shorter runs and fewer batch sizes")
    parser.add_argument("--out", type=Path, default=Path("build/kernels.json"), help="where the figures go as JSON")
    options = parser.parse_args()
    print(kernels.describe())
    if not kernels.available():
        return
    seconds = 1.0 if options.quick else 4.0
    batches = (10, 64) if options.quick else BATCHES
    result = {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "isa": library().best().isa.decode(),
        "steps": step_times(seconds, batches),
        "kernels": kernel_times(seconds, 64),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()
