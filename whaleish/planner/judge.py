"""Judgement: which candidates do what the scopes ask, and which would be cheap at once and dear later.

The search sees one op at a time. These rules are what it knows of the ops to come. None of them is needed for a right
result: they only keep layouts from being chosen that have to be undone.
"""

from __future__ import annotations

from whaleish.graph import FORWARD, UPDATE
from whaleish.planner.beam import Held
from whaleish.planner.facts import HEAVY, LOOKUPS, PRODUCTS, Facts
from whaleish.planner.roles import SPLIT
from whaleish.planner.view import Candidate
from whaleish.sbp import B, S, Sbp

_LOOK_AHEAD = 8  # tensors to follow, to see what a broadcast or a random tensor is for


class Judge:
    """Judges candidates for one axis of `size` parts; `time`: which come one after another."""

    def __init__(self, facts: Facts, size: int, time: bool = False) -> None:
        self.facts, self.graph, self.size, self.time = facts, facts.graph, size, time

    def allowed(self, index: int, candidates: list[Candidate], held: Held) -> list[Candidate]:
        """The candidates that op `index` had better take; there may be none."""
        wanted = self.wanted(index, held)
        if wanted is not None:
            candidates = [c for c in candidates if _is_wanted(c, wanted)]
        return [c for c in self.obeying(index, candidates, held) if self._lasts(index, c, held)]

    def obeying(self, index: int, candidates: list[Candidate], held: Held) -> list[Candidate]:
        """The candidates that do with the op's weights what its scope asks."""
        op, role = self.graph.ops[index], self.facts.role(index)
        if op.phase == FORWARD and self.size > 1 and (op.type in PRODUCTS or role.dim is not None):
            candidates = [c for c in candidates if self._obeys(index, c, held)]
            if role.kind == SPLIT and self.facts.pinned:
                candidates = [c for c in candidates if self._as_stated(index, c, held)] or candidates
        elif op.phase != FORWARD and op.type in HEAVY:
            candidates = [c for c in candidates if self._reads_whole(index, c)] or candidates
        return candidates

    def _reads_whole(self, index: int, candidate: Candidate) -> bool:
        """Whether an op reads weights whole that are in pieces only to be stored so, as those of `replica(zero=3)`."""
        facts = self.facts
        return all(
            need == B or facts.weights[tensor] in facts.splittable
            for tensor, need in zip(self.graph.ops[index].inputs, candidate.inputs, strict=True)
            if tensor in facts.weights
        )

    def wanted(self, index: int, held: Held) -> Sbp | None:
        """The split that an op which reads only whole or partial tensors may leave its result in; B: none; None: any.

        Cutting is free, but what is cut must mostly be gathered again: statistics, seeds, whole weights and their
        slots stay whole. The step's arguments may be cut at once. A sum that ends here, and what an op makes much of
        from little (random numbers, broadcasts), is cut as what it will be combined with.
        """
        op, facts = self.graph.ops[index], self.facts
        if facts.branches(index) or any(t in facts.handles for t in op.inputs):
            return None
        inputs = [t for t in op.inputs if t not in self.graph.constants]
        replica = facts.role(index).kind != SPLIT
        if any((replica and t in facts.argument_like) or any(s.is_split for s in held[t]) for t in inputs):
            return None
        sums = any(B not in held[t] for t in inputs)
        largest = max((facts.sizes[t] for t in op.inputs), default=0)
        if op.phase == UPDATE or len(op.outputs) != 1 or not (sums or facts.sizes[op.outputs[0]] > largest):
            return B
        partner = self._partner(op.outputs[0], held)
        along_batch = sums and replica and (self.graph.tensors[op.outputs[0]].shape or (0,))[0] in facts.batches
        return S(0) if partner == B and along_batch else partner

    def _partner(self, tensor: int, held: Held) -> Sbp:
        """The split of what a tensor, or what follows from it in the same shape, is combined with; B for none."""
        tensors = self.graph.tensors
        shape, reached = tensors[tensor].shape, [tensor]
        for current in reached:
            for reader in self.facts.readers[current]:
                op = self.graph.ops[reader]
                for other in op.inputs:
                    layouts = held.get(other)
                    if layouts and layouts[0].is_split and tensors[other].shape == shape:
                        return layouts[0]
                reached += [t for t in op.outputs if tensors[t].shape == shape and t not in reached]
            if len(reached) > _LOOK_AHEAD:
                break
        return B

    def _obeys(self, index: int, candidate: Candidate, held: Held) -> bool:
        """Whether a candidate of a forward op does with its weights what its scope asks."""
        op, facts, role = self.graph.ops[index], self.facts, self.facts.role(index)
        if role.dim is not None and not self._pinned(index, candidate, role.dim):
            return False
        if op.type not in PRODUCTS:
            return True
        for tensor, need in zip(op.inputs, candidate.inputs, strict=True):
            if tensor not in facts.weights or facts.weights[tensor] in facts.pinned:
                continue
            if role.kind != SPLIT:
                looked_up = op.type in LOOKUPS and held.get(facts.weights[tensor], (B,))[0].is_split
                if need != B and tensor not in facts.splittable and not looked_up:
                    return False
                continue
            shape = self.graph.tensors[tensor].shape or ()
            if len(shape) < 2:
                continue
            if not need.is_split or shape[need.dim] < self.size:
                return False
            if tensor not in facts.handles and need not in held[tensor]:
                return False  # sharded where it is stored, not cut from a whole one
        return True

    def _as_stated(self, index: int, candidate: Candidate, held: Held) -> bool:
        """Whether a product reads the weights for which the user stated a split in that split."""
        facts = self.facts
        stated = (
            (held[tensor][0], need)
            for tensor, need in zip(self.graph.ops[index].inputs, candidate.inputs, strict=True)
            if tensor in facts.weights and facts.weights[tensor] in facts.pinned
        )
        return all(need == sbp or not sbp.is_split for sbp, need in stated)

    def _pinned(self, index: int, candidate: Candidate, dim: int) -> bool:
        """Whether the variables that an op reads are split along the dim that `split(dim=...)` names."""
        for tensor, need in zip(self.graph.ops[index].inputs, candidate.inputs, strict=True):
            rank = len(self.graph.tensors[tensor].shape or ())
            wanted = dim + rank if dim < 0 else dim
            if tensor in self.facts.splittable and rank >= 2 and not (need.is_split and need.dim == wanted):
                return False
        return True

    def _lasts(self, index: int, candidate: Candidate, held: Held) -> bool:
        """Whether what a candidate makes need not soon be undone.

        Sums stay partial while they do not grow and nothing is multiplied out of them; what is whole is made into
        summands only to meet some, what is cut never. Updates are made once, of sums over all micro-batches. Under
        `replica` the step's arguments are cut along the batch.
        """
        op, facts = self.graph.ops[index], self.facts
        replica = facts.role(index).kind != SPLIT
        sums, summands = False, []
        for tensor, need in zip(op.inputs, candidate.inputs, strict=True):
            if need == B:
                continue
            if need.is_partial:
                sums = True
                if tensor not in facts.handles:
                    if held[tensor][0].is_split:
                        return False
                    summands += [facts.sizes[tensor]] if held[tensor][0].is_partial else []
            elif need.is_split and need.dim:
                if replica and tensor in facts.argument_like and held[tensor][0] == B:
                    return False
                # A sum that a product reads split is the gradient of a batch: along it, gradients of weights are sums.
                if (
                    op.phase != FORWARD
                    and op.type in HEAVY
                    and any(sbp.is_partial for sbp in held.get(tensor, ()))
                    and (self.graph.tensors[tensor].shape or (0,))[0] in facts.batches
                ):
                    return False
        if not sums:
            return True
        if op.type in HEAVY or (self.time and op.phase == UPDATE):
            return False
        if self.time and op.region:  # no sum over micro-batches is there before a loop ends
            return bool(summands)
        return bool(summands) and sum(summands) >= max((facts.sizes[t] for t in op.outputs), default=0)


def _is_wanted(candidate: Candidate, wanted: Sbp) -> bool:
    """Whether a candidate leaves its results whole or in the split that is wanted."""
    made = {sbp for sbp in candidate.outputs if sbp not in (B, wanted)}
    if not made:
        return True
    if any(sbp.is_split for sbp in made):
        return False
    # Whole tensors are not cut only to be summed again.
    return any(sbp.is_partial for sbp in candidate.inputs) or not any(sbp.is_partial for sbp in made)
