"""The search: the cheapest layouts that do what the scopes ask.

The ops are visited in order with a beam of states. A state holds the layouts of the tensors that later ops still read;
two states with equal layouts merge into the cheaper one, so as long as the beam is wide enough this is a dynamic
program over the frontier of the graph (the idea of SoyBean's one-cut algorithm, Wang et al., 2018, with the frontier of
a topological order in place of breadth-first levels). States branch only where the user asked for `split`; elsewhere
the cheapest signature is taken.

Forward boxings are charged together with the ones that the backward pass will need for the gradient of the same
tensor, which has the dual layout. That is why two stacked products come out column-split, then row-split.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from whaleish.boxing.volume import volume
from whaleish.graph import FORWARD, UPDATE
from whaleish.planner.beam import Beam, Held, Way
from whaleish.planner.carried import Carried
from whaleish.planner.facts import Facts
from whaleish.planner.judge import Judge
from whaleish.planner.local import LocalValues
from whaleish.planner.roles import SPLIT, PlanError
from whaleish.planner.view import AxisView, Candidate
from whaleish.rules.gradient import GRADIENT
from whaleish.sbp import B, Sbp, dual

_INFINITE = float("inf")


class Search:
    """One run of the search over one axis.

    Args:
      arrivals: layouts of the step's inputs. fixed: layouts of variables' handles that are settled.
      carried: layouts of what loops carry. whole: ops that every part does on whole tensors.
      gradients: `Gradient` op -> the layout in which it reads what it is given, and leaves it.
    """

    def __init__(
        self,
        facts: Facts,
        view: AxisView,
        arrivals: dict[int, Sbp],
        fixed: dict[int, Sbp],
        carried: Carried,
        whole: AbstractSet[int] = frozenset(),
        gradients: Mapping[int, Sbp] | None = None,
    ) -> None:
        self.whole, self.gradients = whole, gradients or {}
        self.facts, self.graph, self.view = facts, facts.graph, view
        self.judge, self.local = Judge(facts, view.axis.size, view.axis.time), LocalValues(facts)
        self.arrivals, self.fixed, self.carried = arrivals, fixed, carried
        self.layouts: dict[int, Sbp] = {}

    def run(self) -> list[Candidate]:
        """The candidate taken for each op; fills `layouts` with those of the variables' handles."""
        facts = self.facts
        beam = Beam({handle: (sbp,) for handle, sbp in self.fixed.items()}, facts.last_forward_use)
        for index, op in enumerate(self.graph.ops):
            touched = (*op.inputs, *op.outputs)
            gone = [t for t in touched if facts.last_use[t] <= index and t not in facts.handles]
            if not beam.advance(index, partial(self._ways, index), gone):
                raise self._unsatisfied(index)
        taken, held = beam.best()
        self.layouts = {handle: held[handle][0] for handle in facts.handles if handle in held}
        return self.carried.settle(taken, held)

    def _ways(self, index: int, held: Held) -> list[Way]:
        """The ways in which the search goes on at op `index`, given what is held."""
        options = self._options(index, held)
        if len(options) > 1 and not self.facts.branches(index):  # what moves least, then what computes least
            options = [min(options, key=lambda option: (option[0] + self._reducing(index, option[2]), option[1]))]
        return [Way(*option, self._changes(index, option[2], held)) for option in options]

    def _changes(self, index: int, candidate: Candidate, held: Held) -> dict[int, tuple[Sbp, ...]]:
        """What is held otherwise after op `index`."""
        op = self.graph.ops[index]
        changes: dict[int, tuple[Sbp, ...]] = {}
        for tensor, need in zip(op.inputs, candidate.inputs, strict=True):
            layouts = changes.get(tensor) or held.get(tensor, ())
            # What one op gathers over time is there after the last micro-batch, and no reason for others to wait.
            late = self.view.axis.time and need.is_broadcast and bool(layouts) and layouts[0].is_split
            if need not in layouts and not late:
                changes[tensor] = (*layouts, need)
        for tensor, made in zip(op.outputs, candidate.outputs, strict=True):
            if tensor not in self.facts.handles:
                changes[tensor] = (made,)
        changes.update(self.carried.noted(index, candidate, held))
        return changes

    def _options(self, index: int, held: Held) -> list[tuple[float, float, Candidate]]:
        """(seconds of moving, seconds of computing, candidate) of everything that op `index` may do."""
        op = self.graph.ops[index]
        if op.type == "Placeholder":
            return [(0.0, 0.0, Candidate((), (self.arrivals.get(op.outputs[0], B),), False, 0, 0.0))]
        if op.pinned or op.type == GRADIENT:
            sbp = self._settled(index, held[op.inputs[0]][0])
            moving = self._boxing(op.inputs[0], sbp, held, op.phase)
            return [(moving, 0.0, Candidate((sbp,), (sbp,), False, 0, 0.0))]
        candidates = self._with_units(index, held)
        if self.carried.decides(index, held):
            return self._priced(index, candidates, held)
        judged = self._priced(index, self.judge.allowed(index, candidates, held), held)
        return judged or self._priced(index, self.judge.obeying(index, candidates, held), held)

    def _settled(self, index: int, have: Sbp) -> Sbp:
        """The layout of an op whose layout is no choice: stated by the user, or that of a gradient."""
        op = self.graph.ops[index]
        if op.pinned:
            return self.facts.pinned.get(op.outputs[0], have)
        if self.view.axis.time and (op.phase == UPDATE or index in self.whole or have.is_split):
            return B
        return self.gradients.get(index, have)

    def _priced(self, index: int, candidates: list[Candidate], held: Held) -> list[tuple[float, float, Candidate]]:
        """The candidates that can be had, with their costs."""
        op, parts, found = self.graph.ops[index], self.view.axis.size, []
        for candidate in candidates:
            moving = 0.0
            if candidate.inner_bytes and not (candidate.expands and self.facts.role(index).kind == SPLIT):
                moving += self.view.cluster.boxing_seconds(2 * (parts - 1) * candidate.inner_bytes, parts)
            for tensor, need in zip(op.inputs, candidate.inputs, strict=True):
                if need not in held.get(tensor, ()):
                    moving += self._boxing(tensor, need, held, op.phase)
            if moving < _INFINITE:
                found.append((moving, candidate.seconds * self.facts.repeats[index], candidate))
        return found

    def _reducing(self, index: int, candidate: Candidate) -> float:
        """Seconds that reducing the sums which a forward op makes will take, at the least, if it makes any."""
        op, parts = self.graph.ops[index], self.view.axis.size
        if op.phase != FORWARD or any(sbp.is_partial for sbp in candidate.inputs):
            return 0.0
        sums = sum(self.facts.nbytes[t] for t, s in zip(op.outputs, candidate.outputs, strict=True) if s.kind == "P")
        return self.view.cluster.boxing_seconds((parts - 1) * sums, parts)

    def _with_units(self, index: int, held: Held) -> list[Candidate]:
        """The op's candidates, and those scaled to inputs that are split on multiples of larger units."""
        found = list(self.view.candidates(index))
        if index in self.whole:
            return found[:1]
        inputs = enumerate(self.graph.ops[index].inputs)
        large = [(p, have) for p, t in inputs for have in held.get(t) or self._mates(t, held)[:1] if have.unit > 1]
        for candidate in found[:] if large else ():
            for position, have in large:
                need = candidate.inputs[position]
                if need.is_split and have.is_split and have.dim == need.dim and have.unit != need.unit:
                    scaled = self.view.scaled(index, candidate, position, have.unit)
                    if scaled is not None and scaled not in found:
                        found.append(scaled)
        return self.carried.fit(index, self.local.fit(index, found, held), held)

    def _boxing(self, tensor: int, need: Sbp, held: Held, phase: str) -> float:
        facts, parts = self.facts, self.view.axis.size
        if tensor in facts.handles:
            return self._handle_cost(tensor, need, held)
        if tensor in self.carried.lists:
            return 0.0
        layouts, nbytes = held[tensor], facts.nbytes[tensor]
        if need in layouts:
            return 0.0
        moved = min(volume(have, need, nbytes, parts) for have in layouts)
        if phase == FORWARD and facts.has_backward and tensor in facts.differentiable:
            moved += volume(dual(need), dual(layouts[0]), nbytes, parts)
        moved *= facts.repeats[self.graph.tensors[tensor].producer]
        return self.view.cluster.boxing_seconds(moved, parts) if moved < _INFINITE else _INFINITE

    def _handle_cost(self, handle: int, need: Sbp, held: Held) -> float:
        """A variable has one layout, free to choose at its first use."""
        facts, parts = self.facts, self.view.axis.size
        if handle in held:
            return 0.0 if held[handle][0] == need else _INFINITE
        if handle in facts.splittable:
            # The gradient of a whole weight that parts use is a partial sum, and must be reduced.
            reduced = 2 * (parts - 1) * facts.nbytes[handle] if need == B and facts.has_backward else 0.0
            return _INFINITE if need.is_partial else self.view.cluster.boxing_seconds(reduced, parts)
        mates = self._mates(handle, held)
        return 0.0 if need == (mates[0] if mates else B) else _INFINITE

    def _mates(self, handle: int, held: Held) -> list[Sbp]:
        """Layouts of the variables that a variable should be stored like, where they are settled."""
        return [held[mate][0] for mate in self.facts.mates.get(handle, ()) if mate in held]

    def _unsatisfied(self, index: int) -> PlanError:
        op, facts, size = self.graph.ops[index], self.facts, self.view.axis.size
        for handle in op.inputs:
            if not self.fixed.get(handle, B).is_broadcast:
                variable = self.graph.variable_of()[handle]
                return PlanError(
                    f"the variable {variable.name!r} of shape {list(variable.shape)} lies as {self.fixed[handle]} over "
                    f"{size} devices, as wh.layout, replica(zero=3) or an earlier step has it, and "
                    f"{self.graph.place(index)} cannot be carried out on such parts of it. "
                    'State another layout for it (wh.layout(variable, "B") is whole)'
                )
        weights = [t for t in op.inputs if t in facts.weights]
        shapes = ", ".join(str(self.graph.tensors[t].shape) for t in weights)
        pinned = "" if (dim := facts.role(index).dim) is None else f", dim={dim}"
        request = f"split() cannot shard {self.graph.place(index)} over {size} devices"
        for user in (facts.whole[facts.weights[t]] for t in weights if facts.weights[t] in facts.whole):
            return PlanError(
                f"{request}: its weight of shape {shapes} is also used by {self.graph.place(user)}, "
                "which runs whole (ops without a rule, and ops on shapes that are not known before running, are not "
                "divided). Put it under replica(), or do without what makes that op: in Keras optimizers sparse "
                "gradients"
            )
        return PlanError(
            f"{request}: its weight has shape {shapes}{pinned}, and a dim that is split must have at least {size} "
            "elements and a rule. Use fewer devices, another dim, or put it under replica()"
        )
