"""Hold the installed kernels against PyTorch: `qemu-x86_64 -cpu Nehalem python emulated.py baseline`.

The words are the instruction sets that have to be found, best first. It is run by the Python of an environment that has
fedgraft, on a CPU that an emulator pretends to be.
"""

import sys

import torch
from torch import Tensor, nn

from fedgraft import kernels
from fedgraft.kernels.native import library

NEAR = 1e-5
"""How far a gradient may be off, in parts of the largest."""


def gradients(network: nn.Module, x: Tensor) -> list[Tensor]:
    """What a step computes, for the input and for every parameter."""
    x = x.clone().requires_grad_()
    network.zero_grad()
    network(x).square().sum().backward()
    return [each.grad.clone() for each in (x, *network.parameters()) if each.grad is not None]


def main() -> None:
    """Find the kernels that were named, and compare the best of them."""
    found = [each.isa.decode() for each in library().kernels]
    if found != sys.argv[1:]:
        sys.exit(f"the kernels found are {found}, and should be {sys.argv[1:]}")
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
    )
    x = torch.randn(20, 3, 32, 32)
    plain = gradients(network, x)
    kernels.accelerate(network, x[:2], "native")
    native = gradients(network, x)
    off = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(native, plain, strict=True))
    print(f"kernels for {found[0]}: gradients off PyTorch's by {off:.0e} at most")
    if off > NEAR:
        sys.exit(f"that is more than {NEAR}")


if __name__ == "__main__":
    main()
