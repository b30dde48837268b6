"""One run on several processes or machines: torch.distributed, started by torchrun or srun.

    torchrun --nproc-per-node 4 -m fedgraft run fedavg --clients 100000 --engine distributed

Every process plans the same run. Rank 0 is the server. Each rank, the first too, has the clients whose number modulo
the number of ranks is its own: it keeps their states and does their work, as the local engine does. Each rank is sent
what its clients need in a wave, and sends their replies back, so that the server has the replies that it has on one
machine, and the bits are the same at any number of ranks. Messages and replies are in the processor's memory on both
ends and travel by gloo, wherever a rank trains (`--device cuda`: each on its share of its machine's devices); those of
the first rank's own clients do not travel.

A server that mixes the models of very many clients has its matrix products made by all ranks, which are idle while it
works: each makes the rows of some clients, in the blocks in which one process makes them. The models are sent to the
others for that, once for as long as they stay the same.
"""

import atexit
import os
import weakref
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor

from fedgraft.base.errors import UserError
from fedgraft.core import bank
from fedgraft.core.client import ClientId
from fedgraft.core.evaluation import Scores
from fedgraft.core.exchange import Failure, Outcome
from fedgraft.core.message import Message
from fedgraft.core.state import State
from fedgraft.engines import devices
from fedgraft.engines.local import LocalEngine
from fedgraft.engines.mailbox import packed, unpacked

PATIENCE = timedelta(days=1)
"""How long a rank waits for the others; one that dies is noticed at once."""


class Form(NamedTuple):
    """What a rank has to know of a product: how wide its rows are, and of what shape a bank is that it has not got."""

    width: int
    models: tuple[int, ...] | None
    dtype: torch.dtype
    transposed: bool


@dataclass(eq=False)
class DistributedEngine(LocalEngine):
    """All clients of a run, shared out over ranks: on each, a local engine that is asked for its own clients only."""

    name = "distributed"

    def __post_init__(self) -> None:
        _join()
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.workers = max(1, self.workers // _ranks_here())
        self.device = ",".join(devices.share(devices.listed(self.device), _local_rank(), _ranks_here()))
        self._sent: tuple[weakref.ref[Tensor], int] | None = None
        """On the first rank: the bank that the others have a copy of, and its version."""
        self._copy = torch.empty(0)
        self._lent = ExitStack()
        super().__post_init__()

    def __enter__(self) -> Self:
        if self.rank == 0 and self.ranks > 1:
            self._lent.enter_context(bank.made_by(self))
        return super().__enter__()

    @staticmethod
    def follows() -> bool:
        """Whether this process is one of several that were started for one run, and not the first of them."""
        return _rank() > 0

    def serve(self) -> None:
        """Do what the first rank asks for, until it closes."""
        while (asked := self._scattered(None)) is not None:
            verb, arguments = asked
            if verb == "product":
                self._make(*arguments)
            else:
                self._gathered(self._answer(verb, arguments))
        super().close()

    def train(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Outcome | Failure]:
        return self._merged("train", [(round, share) for share in self._shares(messages)])

    def commit(self, accepted: Collection[ClientId]) -> None:
        self._ask("commit", [([c for c in accepted if c % self.ranks == rank],) for rank in range(self.ranks)])

    def evaluate(self, round: int, messages: Mapping[ClientId, Message]) -> Mapping[ClientId, Scores]:
        return self._merged("evaluate", [(round, share) for share in self._shares(messages)])

    def observe(self) -> Mapping[str, Tensor]:
        """Return the clients' figures under each other: each row from the rank that has the client."""
        seen = self._ask("observe", [()] * self.ranks)
        shown = {name: tensor.clone() for each in seen for name, tensor in each.items()}
        for rank, each in enumerate(seen):
            for name, tensor in each.items():
                shown[name][rank :: self.ranks] = tensor[rank :: self.ranks]
        return dict(sorted(shown.items()))

    def snapshot(self) -> Mapping[ClientId, State]:
        return self._merged("snapshot", [()] * self.ranks)

    def restore(self, clients: Mapping[ClientId, State]) -> None:
        self._ask("restore", [(share,) for share in self._shares(clients)])

    def close(self) -> None:
        """Let the other ranks go."""
        self._lent.close()
        self._scattered([None] * self.ranks)
        super().close()

    def product(self, rows: Tensor, models: Tensor, *, transposed: bool) -> Tensor:
        """Have every rank make some rows of a product with the bank, which goes to all of them if it is a new one."""
        new = self._sent is None or self._sent[0]() is not models or self._sent[1] != models._version
        parts, rows = bank.shares(len(rows), self.ranks), rows.contiguous()
        form = Form(rows.shape[1], tuple(models.shape) if new else None, models.dtype, transposed)
        self._scattered([("product", (part.stop - part.start, form)) for part in parts])
        if new:
            dist.broadcast(models.contiguous(), src=0)
            self._sent = weakref.ref(models), models._version
        others = [(rank, part) for rank, part in enumerate(parts) if rank and part.stop > part.start]
        for rank, part in others:
            dist.send(rows[part], dst=rank)
        made = rows.new_empty(len(rows), models.shape[0 if transposed else 1])
        bank.in_blocks(rows[parts[0]], models, made[parts[0]], transposed=transposed)
        for rank, part in others:
            dist.recv(made[part], src=rank)
        return made

    def _make(self, count: int, form: Form) -> None:
        """Make some rows of a product with the bank of which every rank has a copy, or gets one now."""
        if form.models is not None:
            self._copy = torch.empty(0)  # two need not be in memory at once
            self._copy = torch.empty(form.models, dtype=form.dtype)
            dist.broadcast(self._copy, src=0)
        if not count:
            return
        rows = torch.empty(count, form.width, dtype=form.dtype)
        dist.recv(rows, src=0)
        made = rows.new_empty(count, self._copy.shape[0 if form.transposed else 1])
        dist.send(bank.in_blocks(rows, self._copy, made, transposed=form.transposed), dst=0)

    def _shares(self, of: Mapping[ClientId, Any]) -> list[dict[ClientId, Any]]:
        """What concerns the clients of each rank."""
        shares: list[dict[ClientId, Any]] = [{} for _ in range(self.ranks)]
        for client, value in of.items():
            shares[client % self.ranks][client] = value
        return shares

    def _merged(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> dict[ClientId, Any]:
        return {client: value for each in self._ask(verb, arguments) for client, value in each.items()}

    def _ask(self, verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Have every rank do something with its clients, this one too, and return what each gave."""
        mine = self._scattered([(verb, each) for each in arguments])
        answers = self._gathered(self._answer(*mine))
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def _answer(self, verb: str, arguments: tuple[Any, ...]) -> Any:
        """Do what was asked with the clients of this rank; what goes wrong is told, for the first rank to raise."""
        try:
            with bank.made_by(None):  # a client's products are its own
                answer = getattr(super(), verb)(*arguments)
            return dict(answer) if isinstance(answer, Mapping) else answer
        except Exception as error:
            return error

    def _scattered(self, each: Sequence[Any] | None) -> Any:
        """Send every rank its own, or return what the first rank sent this one."""
        if each is None:
            return _received(0)
        for rank in range(1, self.ranks):
            _send(each[rank], rank)
        return each[0]

    def _gathered(self, answer: Any) -> list[Any]:
        """Return everybody's answers on the first rank; on the others nothing."""
        if self.rank:
            _send(answer, 0)
            return []
        return [answer, *(_received(rank) for rank in range(1, self.ranks))]


def _send(value: Any, rank: int) -> None:
    whole = packed(value)
    dist.send(torch.tensor(len(whole)), dst=rank)
    dist.send(whole, dst=rank)


def _received(rank: int) -> Any:
    length = torch.tensor(0)
    dist.recv(length, src=rank)
    whole = torch.empty(int(length), dtype=torch.uint8)
    dist.recv(whole, src=rank)
    return unpacked(whole)


def _rank() -> int:
    """Which of the processes this one is, by torchrun, or by srun."""
    return int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)


def _ranks_here() -> int:
    """How many ranks share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or 1)


def _join() -> None:
    """Find the other ranks, once in a process, and take leave of them when it ends.

    A process that ends within a group aborts now and then (a thread of gloo is still there), after all its work.
    """
    if dist.is_initialized():
        return
    atexit.register(_leave)
    if "RANK" in os.environ:  # torchrun says everything
        dist.init_process_group("gloo", timeout=PATIENCE)
        return
    ranks = int(os.environ.get("SLURM_NTASKS") or 1)
    where = "127.0.0.1:0" if ranks == 1 else f"{_first_node()}:{_port_of_step()}"
    dist.init_process_group("gloo", f"tcp://{where}", timeout=PATIENCE, rank=_rank(), world_size=ranks)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def _first_node() -> str:
    """Where rank 0 is: on the node that the script of the job runs on, unless MASTER_ADDR says otherwise."""
    alone = os.environ.get("SLURM_STEP_NUM_NODES") == "1"
    found = os.environ.get("MASTER_ADDR") or ("127.0.0.1" if alone else os.environ.get("SLURM_LAUNCH_NODE_IPADDR"))
    if found is None:
        raise UserError("the ranks do not know where to meet: set MASTER_ADDR to the node of the first")
    return found


def _port_of_step() -> int:
    """A port on which all tasks of a Slurm step agree."""
    job, step = (int(os.environ.get(name) or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return int(os.environ.get("MASTER_PORT") or 20000 + (31 * job + step) % 20000)
