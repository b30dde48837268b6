"""How much a method's server keeps, by the number of clients: known before so much is asked of the machine."""

from dataclasses import dataclass, replace

from fedgraft.base import memory
from fedgraft.base.errors import UserError
from fedgraft.core.method import Method
from fedgraft.core.spec import Spec

FEW = (4, 8, 16)
"""Numbers of clients for which a server is set up to see how it grows: three points of a parabola; multiples of four,
because pFedHN's embeddings are wider by one for every fourth client."""
MANY = 500
"""Clients from which on it is asked whether a server fits into memory."""


@dataclass(frozen=True)
class Growth:
    """Bytes of a server's state: some for itself, for each client, and for each pair of clients."""

    itself: float
    each: float
    pair: float

    @classmethod
    def of(cls, method: Method, spec: Spec) -> "Growth":
        """Set servers for a few clients up, and see."""
        a, b, c = FEW
        at = {few: held(method, _first(spec, few)) for few in FEW}
        slope = (at[b] - at[a]) / (b - a)
        pair = ((at[c] - at[b]) / (c - b) - slope) / (c - a)
        each = slope - pair * (a + b)
        return cls(at[a] - each * a - pair * a * a, each, pair)

    @property
    def order(self) -> str:
        return "O(clients^2)" if self.pair > 0 else "O(clients)" if self.each > 0 else "O(1)"

    def at(self, clients: int) -> int:
        """Return the bytes for so many clients."""
        return round(self.itself + self.each * clients + self.pair * clients * clients)


def insist_on_room(method: Method, spec: Spec) -> None:
    """Refuse a server that this machine cannot hold, before anything is asked of it."""
    if spec.clients < MANY:
        return
    growth = Growth.of(method, spec)
    needed, there = growth.at(spec.clients), memory.total()
    if needed > there:
        raise UserError(
            f"the server of {method.name} grows with {growth.order}: for {spec.clients:,} clients it would keep "
            f"{needed / 2**30:,.1f} GiB, and this machine has {there / 2**30:.1f} GiB of memory; take fewer clients, "
            "a smaller model, or a method whose server keeps one model (docs/clusters.md)"
        )


def held(method: Method, spec: Spec) -> int:
    """Bytes of the server's first state."""
    return sum(tensor.numel() * tensor.element_size() for tensor in method.setup(spec).values())


def _first(spec: Spec, few: int) -> Spec:
    """The same run with a few of its clients, in turn if there are not so many."""
    turn = [client % spec.clients for client in range(few)]
    samples, assignment = (tuple(each[client] for client in turn) for each in (spec.samples, spec.assignment))
    return replace(spec, samples=samples, assignment=assignment, names=(), budget=None)
