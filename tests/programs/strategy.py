"""How programs are drawn."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.programs.chance import Chance
from tests.programs.draft import Draft, Unsuited, fresh_value
from tests.programs.operations import CATALOGUE
from tests.programs.program import Program

LENGTHS = [5, 5, 6, 6, 6, 7, 7, 8, 8, 9, 10, 12, 14, 20, 40]
"""Statements; short programs are cheap, and so tried more often."""

DIMS = [1, 2, 3, 4, 5, 6, 7, 0]


@st.composite
def programs(draw: Callable[[Any], Any], scopes: Sequence[str] = ("",)) -> Program:
    """A program of 5 to 40 statements on small tensors, in stretches under the scopes given."""

    def pick(options: Sequence[Any]) -> Any:
        if not options:
            raise Unsuited
        return options[draw(st.integers(0, len(options) - 1))]

    draft = Draft(pick)
    rank = pick([2, 2, 3, 1, 4])
    shape = [pick(DIMS[: 3 if rank == 4 else 7]) for _ in range(rank)]
    if pick(range(40)) == 39:
        shape[0] = 0
    draft.start("argument", fresh_value(0, shape))
    length = pick(LENGTHS)
    for _ in range(2 * length):
        number = draw(st.integers(0, len(CATALOGUE)))
        if not number or len(draft.body) >= length:
            continue  # so that a statement can shrink to none
        if len(scopes) > 1 and pick([False, False, True]):
            draft.scope = pick(scopes)
        try:
            CATALOGUE[number - 1](draft)
        except Unsuited:
            continue
    update(draft)
    return draft.finish(unread(draft))


chances = st.builds(Chance, st.integers(0, 2**16), st.sampled_from([0, 5, 10, 20, 40, 60, 80, 100, 100, 100]))
"""How a program is divided."""


def update(draft: Draft) -> None:
    """Every variable is changed in the end, most by their gradient."""
    for name in list(draft.variables):
        shape = list(draft.shape(name))
        code = draft.pick(UPDATES)
        if "{slot}" in code:
            slot = draft.start("variable", abs(fresh_value(5, shape)) * 0.1)
            code = code.replace("{slot}", slot)
        draft.updates.append(code.format(name=name))


UPDATES = [
    "{name}.assign_sub(0.1 * tf.tanh(d_{name}))",
    "{name}.assign(0.9 * {name} + 0.05 * tf.sin(d_{name}))",
    "{name}.assign_add(0.01 * tf.clip_by_norm(d_{name}, 1.0))",
    "tf.raw_ops.ResourceApplyGradientDescent(var={name}.handle, alpha=np.float64(0.05), delta=tf.tanh(d_{name}))",
    "tf.raw_ops.ResourceApplyKerasMomentum(var={name}.handle, accum={slot}.handle, lr=np.float64(0.05), "
    "grad=tf.tanh(d_{name}), momentum=np.float64(0.9))",
    "tf.raw_ops.ResourceApplyAdagradV2(var={name}.handle, accum={slot}.handle, lr=np.float64(0.05), "
    "epsilon=np.float64(0.1), grad=tf.tanh(d_{name}))",
]


def unread(draft: Draft) -> list[str]:
    """The tensors that no statement reads: the results."""
    words: dict[str, int] = {}
    for _, line in draft.body:
        for word in re.findall(r"\bt\d+\b", line):
            words[word] = words.get(word, 0) + 1
    return [name for name in draft.values if name[0] == "t" and words[name] == 1]
