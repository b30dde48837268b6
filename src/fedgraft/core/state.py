"""State: named tensors and nothing else, so that it can be copied, checked, sent to a worker, put into a checkpoint."""

import copy
from collections.abc import Iterator, MutableMapping
from typing import Self

import torch
from torch import Tensor

State = dict[str, Tensor]


class Holder(MutableMapping[str, Tensor]):
    """Holds state as a mapping; what is put in is cut off from any graph of gradients."""

    _state: State

    def __getitem__(self, name: str) -> Tensor:
        return self._state[name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self._state[name] = value.detach()

    def __delitem__(self, name: str) -> None:
        del self._state[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


class Borrower(Holder):
    """Works on somebody's state that stays as it is: what is looked at is copied first, to the borrower's device."""

    def __init__(self, state: State, device: torch.device) -> None:
        self._state, self._lent, self._at = dict(state), set(state), device

    def __getitem__(self, name: str) -> Tensor:
        if name in self._lent:
            self._lent.remove(name)
            self._state[name] = self._state[name].to(self._at, copy=True)
        return self._state[name]

    def __setitem__(self, name: str, value: Tensor) -> None:
        super().__setitem__(name, value)
        self._lent.discard(name)

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._lent.discard(name)

    def fork(self) -> Self:
        """Return a copy whose state can be changed without a trace."""
        twin = copy.copy(self)
        twin._state, twin._lent, self._lent = dict(self._state), set(self._state), set(self._state)
        return twin

    @property
    def left(self) -> tuple[State, frozenset[str]]:
        """The state as it is now, and the names of what nobody looked at, so that it is what it was."""
        return dict(self._state), frozenset(self._lent)
