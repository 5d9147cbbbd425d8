"""Where sums are reduced: the minimum cuts, on graphs whose best places are known."""

import numpy as np

from tests.planner.graphs import Graph
from whaleish.planner.partial import settle_partials
from whaleish.planner.view import Candidate
from whaleish.sbp import B, P, S, Sbp


class Sums(Graph):
    """Graphs of sums; `taken` is what a search would have left: everything linear works on summands."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: dict[int, tuple[tuple[Sbp, ...], Sbp]] = {}

    def made(self, *shape: int) -> int:
        """A sum over the split rows of an argument."""
        x = self.argument(8, *shape)
        self.kinds[x] = ((), S(0))
        rows = self.add("Const", [], (1,), dtype="int32")
        self.logical.constants[rows] = np.array([0], "int32")
        made = self.add("Sum", [x, rows], shape, T="float32", Tidx="int32", keep_dims=False)
        return self._note(made, (S(0), B), P)

    def linear(self, type: str, *inputs: int) -> int:
        """An op that works on summands of all its inputs."""
        shape = max((self.logical.tensors[t].shape for t in inputs), key=len)
        made = self.add(type, list(inputs), shape, T="float32", **({"N": len(inputs)} if type == "AddN" else {}))
        return self._note(made, (P,) * len(inputs), P)

    def whole(self, type: str, *inputs: int) -> int:
        """An op that needs whole values."""
        shape = max((self.logical.tensors[t].shape for t in inputs), key=len)
        return self._note(self.add(type, list(inputs), shape, T="float32"), (B,) * len(inputs), B)

    def reduced(self, *outputs: int) -> set[int]:
        """The tensors at which sums are reduced: made partial, and needed otherwise by an op or as an output."""
        candidates = []
        for op in self.logical.ops:
            inputs, output = self.kinds.get(op.outputs[0], ((B,) * len(op.inputs), B))
            candidates.append(Candidate(inputs, (output,), False, 0, 0.0))
        settled = settle_partials(self.view(), candidates, set(outputs))
        found = set()
        partial = {op.outputs[0] for op, c in zip(self.logical.ops, settled, strict=True) if c.outputs == (P,)}
        for op, candidate in zip(self.logical.ops, settled, strict=True):
            needs = zip(op.inputs, candidate.inputs, strict=True)
            found |= {tensor for tensor, need in needs if tensor in partial and need != P}
        return found | (partial & set(outputs))

    def _note(self, made: int, inputs: tuple[Sbp, ...], output: Sbp) -> int:
        self.kinds[made] = (inputs, output)
        return made


def test_sums_that_meet_are_reduced_after_they_met() -> None:
    graph = Sums()
    total = graph.linear("AddN", graph.made(4), graph.made(4), graph.made(4))
    result = graph.whole("Relu", total)
    assert graph.reduced(result) == {total}


def test_a_sum_that_goes_two_ways_is_reduced_before_they_part() -> None:
    graph = Sums()
    total = graph.made(4)
    ways = [graph.whole("Relu", graph.linear("Neg", total)) for _ in range(2)]
    assert graph.reduced(*ways) == {total}


def test_a_sum_is_reduced_where_it_is_smallest() -> None:
    graph = Sums()
    small = graph.made(4)
    large = graph.made(100, 4)
    grown = graph.linear("AddV2", small, large)  # [100, 4]
    assert graph.reduced(graph.whole("Relu", grown)) == {grown}  # one reduction of 1,600 bytes, not two

    graph = Sums()
    vector = graph.made(4)
    matrix = graph.linear("AddV2", vector, vector)
    graph.logical.tensors[matrix].shape = (1000, 4)  # what it grows to is larger than where it comes from
    assert graph.reduced(graph.whole("Relu", matrix)) == {vector}


def test_a_sum_wanted_whole_where_it_is_made() -> None:
    graph = Sums()
    total = graph.made(4)
    after = graph.linear("Neg", total)
    first, second = graph.whole("Relu", total), graph.whole("Relu", after)
    assert graph.reduced(first, second) == {total}


def test_outputs_of_the_step_are_wanted_whole() -> None:
    graph = Sums()
    total = graph.linear("AddN", graph.made(4), graph.made(4))
    assert graph.reduced(total) == {total}


def test_regions_are_settled_one_by_one() -> None:
    graph = Sums()
    one = graph.linear("AddN", graph.made(4), graph.made(4))
    other = graph.made(6)
    ways = [graph.whole("Relu", graph.linear("Neg", other)) for _ in range(3)]
    assert graph.reduced(graph.whole("Relu", one), *ways) == {one, other}


def test_nothing_partial_is_left_alone() -> None:
    graph = Sums()
    result = graph.whole("Relu", graph.argument(4))
    assert graph.reduced(result) == set()
