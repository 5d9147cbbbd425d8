"""Values that are each part's own, under `local_statistics()`, and how ops take them.

A local value (L) stands in for a whole one wherever an op would read B: the op then works on the part's own value, and
what would be whole is local. The gradient of a local value is the part's own summand of a partial sum. So sums on the
way to such a gradient must be read as the summands they are, never reduced on the way; this is the one place where a
layout decides a result, because the user asked for another one.
"""

from __future__ import annotations

from collections.abc import Sequence

from whaleish.graph import BACKWARD
from whaleish.planner.beam import Held
from whaleish.planner.facts import Facts
from whaleish.planner.roles import PlanError
from whaleish.planner.view import Candidate
from whaleish.rules.control import CONDITION, LOOP
from whaleish.rules.local import LOCAL_MEAN, LOCAL_MEAN_GRADIENT
from whaleish.sbp import B, L


class LocalValues:
    """Fits candidates to local inputs.

    Attributes:
      leading: ops whose sums lead to the gradient of a local mean.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts, self.graph = facts, facts.graph
        self.present = any(op.type == LOCAL_MEAN for op in self.graph.ops)
        self.leading = self._leading() if self.present else set()

    def fit(self, index: int, candidates: list[Candidate], held: Held) -> list[Candidate]:
        """The candidates that op `index` may take with the layouts its inputs are held in."""
        op = self.graph.ops[index]
        if not self.present or any(t in self.facts.handles for t in op.inputs):
            return candidates  # what is stored is whole or sharded: a local value is averaged first
        local = [place for place, t in enumerate(op.inputs) if held[t][0] == L]
        if not local and index not in self.leading:
            return candidates
        if local and (op.type in (CONDITION, LOOP) or any(self.graph.tensors[t].dtype == "variant" for t in op.inputs)):
            raise PlanError(
                f"wh.local_statistics(): {self.graph.place(index)} depends on each part's own values; what decides how "
                "a loop or condition runs, and what a loop keeps of each iteration, must not. Take it out of the scope"
            )
        fitted = [c for c in (self._with_local(c, local) for c in candidates) if c and self._reads_sums(index, c, held)]
        if not fitted:
            raise PlanError(
                f"wh.local_statistics(): {self.graph.place(index)} cannot be carried out on each part's own values. "
                "Take it out of the scope"
            )
        return fitted

    def is_raw(self, index: int, candidate: Candidate) -> bool:
        """Whether an op reads summands that must stay what they are."""
        return index in self.leading or L in candidate.inputs

    def _with_local(self, candidate: Candidate, local: Sequence[int]) -> Candidate | None:
        if not local:
            return candidate
        inputs = list(candidate.inputs)
        for place in local:
            if inputs[place] not in (B, L):
                return None
            inputs[place] = L
        outputs = tuple(L if sbp == B else sbp for sbp in candidate.outputs)
        return candidate._replace(inputs=tuple(inputs), outputs=outputs)

    def _reads_sums(self, index: int, candidate: Candidate, held: Held) -> bool:
        own = self.graph.ops[index].type == LOCAL_MEAN_GRADIENT
        return all(
            need.is_partial or (own and need == L)
            for tensor, need in zip(self.graph.ops[index].inputs, candidate.inputs, strict=True)
            if held[tensor][0].kind == "P"
        )

    def _leading(self) -> set[int]:
        """Gradients of local means, and the backward ops before them on tensors of the same size."""
        found = {i for i, op in enumerate(self.graph.ops) if op.type == LOCAL_MEAN_GRADIENT}
        pending = list(found)
        while pending:
            for tensor in self.graph.ops[pending.pop()].inputs:
                producer = self.graph.tensors[tensor].producer
                op = self.graph.ops[producer]
                same = any(self.facts.sizes[t] == self.facts.sizes[tensor] for t in op.inputs)
                if producer not in found and op.phase == BACKWARD and same:
                    found.add(producer)
                    pending.append(producer)
        return found
