"""Registers: each holds what one firing of an actor made, until all who read it have done so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_FREED: Any = None


class RegisterError(RuntimeError):
    """A register was used against the protocol: a bug of the runtime, never of the user's."""


class Register:
    """Room for the outputs of one firing.

    Attributes:
      owner, slot: the actor's name, and which of its registers this is.
      firing: the number of the firing whose outputs it holds; -1 while it is free.
      ref: how many consumers still read it.

    `fill` and `release` are called on the owner's queue only, so nothing here is locked. A consumer reads while `ref`
    counts it.
    """

    __slots__ = ("_values", "firing", "owner", "ref", "slot")

    def __init__(self, owner: str, slot: int) -> None:
        self.owner, self.slot = owner, slot
        self.firing, self.ref = -1, 0
        self._values: Sequence[Any] = _FREED

    def fill(self, firing: int, values: Sequence[Any], readers: int) -> None:
        """Takes what a firing made, for so many consumers."""
        if self.ref or self.firing >= 0:
            raise RegisterError(f"{self} was filled again, for firing {firing}, while {self.ref} still read it")
        self.firing, self._values, self.ref = firing, values, readers

    def read(self, firing: int) -> Sequence[Any]:
        """What that firing made; raises if the register has been freed since, or filled by another firing."""
        values = self._values
        if values is _FREED or self.firing != firing:
            raise RegisterError(f"{self} was read for firing {firing} after it was freed")
        return values

    def release(self) -> bool:
        """A consumer is done with it; whether it was the last, so that the register is free."""
        if self.ref < 1:
            raise RegisterError(f"{self} was released more often than it was to be read")
        self.ref -= 1
        return self.ref == 0

    def free(self) -> None:
        """Drops the values: who reads them now gets an error."""
        if self.ref:
            raise RegisterError(f"{self} was freed while {self.ref} still read it")
        self.firing, self._values = -1, _FREED

    def __str__(self) -> str:
        return f"register {self.slot} of {self.owner!r}, with firing {self.firing},"
