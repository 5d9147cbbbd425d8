"""What the program assigned to variables outside of steps, which ranks compare when the next step uses them.

A step changes variables on all ranks alike. The program may do so on one rank only: `if rank == 0: load weights`. What
it assigned is therefore noted here, and the check that opens the next step (`rewrite/check.py`) compares a number that
stands for the notes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from whaleish.agreement import digest
from whaleish.numbers import number_of
from whaleish.state import wire

if TYPE_CHECKING:
    from whaleish.state.variable import LaidOutVariable

_assigned: weakref.WeakValueDictionary[int, LaidOutVariable] = weakref.WeakValueDictionary()  # by id


class Assignments:
    """What was assigned to one variable since ranks last compared it.

    Attributes:
      count: how many times.
      values: a hash of what was last assigned while ranks held it in parts, where not all have the whole to compare,
        or of what was moved there; and of what was added since.
    """

    def __init__(self) -> None:
        self.count, self.values = 0, b""


def note(variable: LaidOutVariable) -> None:
    """Notes that the program changed a variable."""
    _assigned[id(variable)] = variable
    variable.assignments.count += 1


def note_value(variable: LaidOutVariable, value: tf.Tensor, *, added: bool = False) -> None:
    """Notes a value that goes to the parts of several ranks, or is added to them; each keeps its own piece of it."""
    seen = digest(wire.view(value)) if wire.moves(value.dtype) else b""
    variable.assignments.values = digest((variable.assignments.values if added else b"") + seen)


def note_move(variable: LaidOutVariable, value: tf.Tensor) -> None:
    """Notes the value that was in place and goes to the parts of ranks, if the program changed it."""
    if _assigned.get(id(variable)) is variable:
        note_value(variable, value)


def assigned(variables: Sequence[tf.Variable]) -> list[tuple[int, LaidOutVariable]]:
    """Those of the variables that the program changed, with their places. Free when there are none."""
    if not _assigned:
        return []
    return [(place, _assigned[id(v)]) for place, v in enumerate(variables) if _assigned.get(id(v)) is v]


def assigned_number(variables: Sequence[tf.Variable]) -> int:
    """Stands for what the program assigned to these variables; 0 if nothing. Equal on ranks that did the same."""
    changed = assigned(variables)
    if not changed:
        return 0
    values = [
        b"" if variable.in_parts or not wire.moves(variable.dtype) else digest(wire.view(variable.logical_value()))
        for _, variable in changed
    ]
    return number_of(f"{[_facts(*one) for one in changed]} {values}")


def assigned_text(variables: Sequence[tf.Variable], names: Sequence[str]) -> str:
    """One line for each variable, for people and for comparing ranks; values of variables in place are left out."""
    changed = dict(assigned(variables))
    lines = []
    for place, name in enumerate(names):
        given = changed[place].assignments if place in changed else Assignments()
        hashed = f", in parts, values #{given.values.hex()[:8]}" if given.values else ""
        lines.append(f"{name}: {'assigned' if given.count else 'not assigned'}{hashed}")
    return "\n".join(lines)


def forget_assigned(variables: Sequence[tf.Variable]) -> None:
    """To be called when ranks have compared them."""
    for _, variable in assigned(variables):
        del _assigned[id(variable)]
        variable.assignments = Assignments()


def _facts(place: int, variable: LaidOutVariable) -> tuple[int, bytes]:
    """What must be equal on all ranks. Not how often: a rank that was behind may have caught up."""
    return place, variable.assignments.values
