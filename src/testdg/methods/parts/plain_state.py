"""Plain values in the state of a module, beside its tensors."""

from typing import Any, ClassVar

from torch import nn


class PlainState(nn.Module):
    """A module that keeps some attributes in its state: numbers, or lists of them."""

    plain: ClassVar[tuple[str, ...]]
    """Their names."""

    def get_extra_state(self) -> dict[str, Any]:
        """The values, ready for JSON."""
        return {name: getattr(self, name) for name in self.plain}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Put back what `get_extra_state` gave."""
        for name in self.plain:
            setattr(self, name, type(getattr(self, name))(state[name]))
