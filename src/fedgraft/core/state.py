"""State: named tensors and nothing else, so that it can be copied, checked, sent to a worker, put into a checkpoint."""

from collections.abc import Iterator, MutableMapping

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
