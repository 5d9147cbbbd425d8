"""Layouts of what loops carry from one iteration to the next, and of the lists that they fill.

The layouts of the carried values are a fixed point of the body. A search first lets each have the layout in which it
arrives. Where the body leaves the next value in another one, `weaken` gives the variable that one, or B if that does
not last either, and the search begins anew.

A list has one layout for as long as it lives, as a variable has, and so have all lists made from it: the layout in
which its first element is written.
"""

from __future__ import annotations

from whaleish.graph import LogicalGraph
from whaleish.planner.beam import Held
from whaleish.planner.view import AxisView, Candidate, made_layouts
from whaleish.rules.control import CONTROL, LOOP_RESULT, LOOP_VARIABLE, NEXT_VALUE
from whaleish.sbp import B, Sbp

_WRITES = {
    "OptionalFromValue": 0,
    "TensorListSetItem": 2,
    "TensorListPushBack": 1,
    "TensorListFromTensor": 0,
    "TensorListScatterV2": 0,
}
"""Op type -> which input goes into the list."""
_EMPTY = frozenset(
    {"EmptyTensorList", "OptionalNone", "TensorListLength", "TensorListReserve", "TensorListResize", *CONTROL}
)
"""Ops that tell nothing of a list's layout."""


class Carried:
    """What is settled about carried values and lists, for one axis.

    Attributes:
      lists: variant tensor -> its family.
      settled: loop variable -> the layout that it has been given. families: the same of families of lists.
    """

    def __init__(self, graph: LogicalGraph, view: AxisView) -> None:
        self.graph, self.view = graph, view
        self.lists = graph.lists()
        self.settled: dict[int, Sbp] = {}
        self.families: dict[int, Sbp] = {}
        self._last: set[int] = set()  # loop variables that have been weakened twice
        self._list_of = {
            index: self.lists[tensor]
            for index, op in enumerate(graph.ops if self.lists else ())
            for tensor in (*op.inputs, *op.outputs)
            if tensor in self.lists
        }  # op -> the family of the lists that it has to do with
        self._possible = self._find_possible()

    def concerns(self, index: int) -> bool:
        """Whether the layouts that an op takes must stay what the search found."""
        op = self.graph.ops[index]
        return op.type in (LOOP_VARIABLE, NEXT_VALUE, LOOP_RESULT) or index in self._list_of

    def decides(self, index: int, held: Held) -> bool:
        """Whether the layouts of an op follow from what is settled, so that there is nothing to judge."""
        family = self._list_of.get(index)
        if family is not None:
            return self._layout(family, held) is not None or self.graph.ops[index].type in _EMPTY
        return self.graph.ops[index].type in (LOOP_VARIABLE, NEXT_VALUE, LOOP_RESULT)

    def fit(self, index: int, candidates: list[Candidate], held: Held) -> list[Candidate]:
        """The candidates that op `index` may take."""
        op, family = self.graph.ops[index], self._list_of.get(index)
        if family is not None:
            layout = self._layout(family, held)
            if layout is None and op.type in _EMPTY:
                layout = B  # whatever it will be: `settle` puts that in
            if layout is None:
                return [c for c in candidates if _kind(self._list_layout(index, c)) in self._possible[family]]
            return self._with_layout(index, candidates, layout)
        if op.type == LOOP_VARIABLE:
            (variable,), (first,) = op.outputs, op.inputs
            layout = self.settled.get(variable) or held[first][0]
        elif op.type in (NEXT_VALUE, LOOP_RESULT):
            layout = held[op.inputs[0]][0]
        else:
            return candidates
        found = [c for c in candidates if c.inputs[0] == layout]
        same = Candidate((layout,) * len(op.inputs), (layout,) * len(op.outputs), False, 0, 0.0)
        return found or [same]

    def noted(self, index: int, candidate: Candidate, held: Held) -> dict[int, tuple[Sbp, ...]]:
        """The layout of a list that an op decides, as it is held."""
        family = self._list_of.get(index)
        if family is None or self.graph.ops[index].type in _EMPTY or _key(family) in held:
            return {}
        return {_key(family): (self._list_layout(index, candidate),)}

    def settle(self, taken: list[Candidate], held: Held) -> list[Candidate]:
        """The candidates with the layouts that lists have turned out to have."""
        settled = list(taken)
        for index, family in self._list_of.items():
            op, candidate = self.graph.ops[index], taken[index]
            layout = self._layout(family, held) or B
            inputs = (layout if t in self.lists else c for t, c in zip(op.inputs, candidate.inputs, strict=True))
            outputs = (layout if t in self.lists else c for t, c in zip(op.outputs, candidate.outputs, strict=True))
            settled[index] = candidate._replace(inputs=tuple(inputs), outputs=tuple(outputs))
        return settled

    def weaken(self, taken: list[Candidate]) -> bool:
        """Settles what the candidates of a search are not a fixed point for; returns whether there was anything."""
        graph, changed = self.graph, False
        made = made_layouts(graph, taken)
        for op, candidate in zip(graph.ops, taken, strict=True):
            if op.type == NEXT_VALUE and op.inputs[0] not in self.lists and op.inputs[1] not in graph.constants:
                changed |= self._weaken(op.inputs[0], candidate.inputs[0], made[op.inputs[1]])
            elif op.type in _WRITES and op.inputs[_WRITES[op.type]] not in graph.constants:
                family, written = self.lists[op.outputs[0]], candidate.inputs[_WRITES[op.type]]
                have = made[op.inputs[_WRITES[op.type]]]
                if written == B and have.is_split and family not in self.families:
                    changed |= self._split_list(op.type, family, have)
        return changed

    def verify(self, taken: list[Candidate]) -> None:
        """Holds against loops what passes after the search have made of its candidates.

        Raises:
          AssertionError: an iteration would leave a value in another layout than the next one reads.
        """
        if len(self.graph.regions) == 1:
            return
        made = made_layouts(self.graph, taken)
        for index, (op, candidate) in enumerate(zip(self.graph.ops, taken, strict=True)):
            if op.type in (LOOP_VARIABLE, NEXT_VALUE, LOOP_RESULT):
                variable = op.outputs[0] if op.type == LOOP_VARIABLE else op.inputs[0]
                found = {made[variable], *candidate.inputs, *candidate.outputs}
                if len(found) > 1:
                    layouts = " and ".join(sorted(map(str, found)))
                    raise AssertionError(
                        f"the plan contradicts itself: {self.graph.place(index)} is to be {layouts} at once. "
                        "This is a mistake in whaleish; please report it"
                    )

    def _weaken(self, variable: int, layout: Sbp, following: Sbp) -> bool:
        lasts = layout == following or (layout.is_split and following.is_partial) or variable in self._last
        if lasts:
            return False
        if variable in self.settled:
            self._last.add(variable)
            following = B
        self.settled[variable] = following
        return True

    def _split_list(self, type: str, family: int, have: Sbp) -> bool:
        """What was first written to a list was whole, and what comes later is split: the list had better be."""
        if type in ("TensorListFromTensor", "TensorListScatterV2"):
            if not have.dim:
                return False
            have = Sbp("S", have.dim - 1, have.unit)
        if _kind(have) not in self._possible[family]:
            return False
        self.families[family] = have
        return True

    def _layout(self, family: int, held: Held) -> Sbp | None:
        found = self.families.get(family)
        return found or held.get(_key(family), (None,))[0]

    def _list_layout(self, index: int, candidate: Candidate) -> Sbp:
        op = self.graph.ops[index]
        pairs = zip((*op.inputs, *op.outputs), (*candidate.inputs, *candidate.outputs), strict=True)
        return next(sbp for tensor, sbp in pairs if tensor in self.lists)

    def _with_layout(self, index: int, candidates: list[Candidate], layout: Sbp) -> list[Candidate]:
        """The candidates in which the op's lists have a layout, in larger units than rules give if need be."""
        op = self.graph.ops[index]
        found = [c for c in candidates if self._list_layout(index, c) == layout]
        if not found and layout.is_split:
            places = [place for place, t in enumerate(op.inputs) if t in self.lists] or [_WRITES.get(op.type, 0)]
            alike = [c for c in candidates if _kind(self._list_layout(index, c)) == _kind(layout)]
            scaled = [self.view.scaled(index, c, places[0], layout.unit) for c in alike if c.inputs[places[0]].is_split]
            found = [c for c in scaled if c is not None]
        return found

    def _find_possible(self) -> dict[int, set[tuple[str, int]]]:
        """Family -> kinds and dims that every op on its lists can work with."""
        possible: dict[int, set[tuple[str, int]]] = {}
        for index, family in self._list_of.items():
            kinds = {_kind(self._list_layout(index, c)) for c in self.view.candidates(index)}
            possible[family] = possible.get(family, kinds) & kinds
        for tensor in self.graph.outputs:
            if tensor in self.lists:
                possible[self.lists[tensor]] = {_kind(B)}
        return possible


def _kind(sbp: Sbp) -> tuple[str, int]:
    return sbp.kind, sbp.dim


def _key(family: int) -> int:
    """Under what a state holds the layout of a family of lists: no tensor has such a number."""
    return -1 - family
