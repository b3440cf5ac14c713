"""The last healthy states of an adapter, in memory."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from testdg.methods import Adapter


class Snapshots:
    """A bounded ring of states; the oldest makes room."""

    def __init__(self, count: int) -> None:
        self.kept: deque[tuple[dict[str, Tensor], dict[str, Any]]] = deque(maxlen=count)

    def __len__(self) -> int:
        return len(self.kept)

    def keep(self, adapter: Adapter) -> None:
        """Remember an adapter as it is."""
        tensors = {name: value.detach().clone() for name, value in adapter.tensors().items()}
        self.kept.append((tensors, adapter.values()))

    def restore(self, adapter: Adapter) -> None:
        """Put the last state back, from which trouble came; the next time, the one before it."""
        adapter.load_state(*(self.kept[-1] if len(self.kept) == 1 else self.kept.pop()))

    def clear(self) -> None:
        """Forget all states."""
        self.kept.clear()

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by the number of the state and their name."""
        return {f"{number}.{key}": value for number, (state, _) in enumerate(self.kept) for key, value in state.items()}

    def values(self) -> list[dict[str, Any]]:
        """The plain values of each state."""
        return [values for _, values in self.kept]

    def load(self, tensors: Mapping[str, Tensor], values: Sequence[dict[str, Any]]) -> None:
        """Put back what `tensors` and `values` gave."""
        self.kept.clear()
        for number, kept in enumerate(values):
            start = f"{number}."
            state = {key.removeprefix(start): value.clone() for key, value in tensors.items() if key.startswith(start)}
            self.kept.append((state, kept))
