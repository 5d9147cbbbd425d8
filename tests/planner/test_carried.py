"""Layouts of what loops carry, and of lists, on loops written by hand."""

from __future__ import annotations

import numpy as np

from tests.planner.graphs import Graph
from whaleish.cluster import Cluster
from whaleish.graph import Region
from whaleish.planner import Plan, make_plan
from whaleish.rules.control import CONDITION, CONDITION_RESULT, LOOP, LOOP_RESULT, LOOP_VARIABLE, NEXT_VALUE
from whaleish.sbp import B, P, S, Sbp


class Looping(Graph):
    """A graph with one loop, whose body is what is added between `carry` and `close`."""

    def __init__(self) -> None:
        super().__init__()
        self.logical.regions += [Region(0), Region(0, trips=4)]
        self.inside = False
        self.count = 0

    def add(self, *args, **kwargs) -> int:
        made = super().add(*args, **kwargs)
        self.logical.ops[-1].region = 2 if self.inside else 0
        return made

    def carry(self, first: int, dtype: str = "float32") -> int:
        self.inside = True
        shape, self.count = self.logical.tensors[first].shape, self.count + 1
        return self.add(LOOP_VARIABLE, [first], shape, dtype, variable=self.count, regions=(1, 2))

    def turn(self, variable: int, following: int) -> None:
        number = self.logical.ops[self.op_of(variable)].attrs["variable"]
        attrs = {"variable": number, "regions": (1, 2)}
        self.logical.add(NEXT_VALUE, (variable, following), [], name=f"next{number}", attrs=attrs, region=2)

    def close(self, test: int, *variables: int) -> list[int]:
        self.inside = False
        self.logical.add(LOOP, (test,), [], name="loop", attrs={"regions": (1, 2), "parallel_iterations": 1})
        tensors = self.logical.tensors
        return [
            self.add(LOOP_RESULT, [v], tensors[v].shape, tensors[v].dtype, variable=number, regions=(1, 2))
            for number, v in enumerate(variables, 1)
        ]

    def plan(self, *outputs: int) -> Plan:
        self.logical.outputs = outputs
        return make_plan(self.logical, Cluster(2), inputs=((S(0),),) + ((B,),) * (len(self.logical.inputs) - 1))

    def layout(self, plan: Plan, tensor: int) -> Sbp:
        return plan.choices[self.op_of(tensor)].outputs[self.logical.tensors[tensor].slot][0]


def test_a_whole_value_becomes_split_where_the_body_splits_it() -> None:
    graph = Looping()
    x, zeros, test = graph.argument(8, 4), graph.argument(8, 4), graph.argument(dtype="bool")
    state = graph.carry(zeros)
    graph.turn(state, graph.add("Tanh", [graph.add("AddV2", [state, x], (8, 4))], (8, 4)))
    (end,) = graph.close(test, state)
    plan = graph.plan(end)
    assert graph.layout(plan, state) == S(0)
    assert graph.layout(plan, end) == S(0)


def test_a_sum_stays_partial_until_the_loop_has_ended() -> None:
    graph = Looping()
    x, zero, test = graph.argument(8, 4), graph.argument(4), graph.argument(dtype="bool")
    total = graph.carry(zero)
    axes = graph.add("Const", [], (1,), "int32")
    graph.logical.constants[axes] = np.zeros(1, "int32")
    graph.turn(total, graph.add("AddV2", [total, graph.add("Sum", [x, axes], (4,), keep_dims=False)], (4,)))
    (end,) = graph.close(test, total)
    plan = graph.plan(end)
    assert graph.layout(plan, total) == P
    assert graph.layout(plan, end) == P


def test_what_the_body_makes_whole_is_carried_whole() -> None:
    graph = Looping()
    x, test = graph.argument(8, 4), graph.argument(dtype="bool")
    state = graph.carry(x)
    graph.turn(state, graph.add("NoSuchRule", [state], (8, 4)))
    (end,) = graph.close(test, state)
    assert graph.layout(graph.plan(end), state) == B


def test_lists_have_the_layout_of_what_is_written_first() -> None:
    graph = Looping()
    x, shape, number = graph.argument(8, 4), graph.argument(2, dtype="int32"), graph.argument(dtype="int32")
    test = graph.argument(dtype="bool")
    types = {"element_dtype": "float32"}
    empty = graph.add("EmptyTensorList", [shape, number], (8, 4), "variant", **types)
    kept = graph.carry(empty, "variant")
    graph.turn(kept, graph.add("TensorListPushBack", [kept, x], (8, 4), "variant", **types))
    (end,) = graph.close(test, kept)
    plan = graph.plan(graph.add("TensorListStack", [end, shape], (4, 8, 4), **types))
    for tensor in (empty, kept, end):
        assert graph.layout(plan, tensor) == S(0)
    assert graph.layout(plan, graph.logical.outputs[0]) == S(1)


def test_lists_that_an_op_without_a_rule_reads_are_whole() -> None:
    graph = Looping()
    x, shape, number = graph.argument(8, 4), graph.argument(2, dtype="int32"), graph.argument(dtype="int32")
    types = {"element_dtype": "float32"}
    empty = graph.add("EmptyTensorList", [shape, number], (8, 4), "variant", **types)
    kept = graph.add("TensorListPushBack", [empty, x], (8, 4), "variant", **types)
    plan = graph.plan(graph.add("TensorListConcatV2", [kept, shape, shape], (8, 4), **types))
    assert graph.layout(plan, empty) == graph.layout(plan, kept) == B


def test_branches_leave_their_results_in_one_layout() -> None:
    graph = Graph()
    x, other, test = graph.argument(8, 4), graph.argument(8, 4), graph.argument(dtype="bool")
    graph.logical.regions += [Region(0), Region(0)]
    one, two = graph.add("Tanh", [x], (8, 4)), graph.add("NoSuchRule", [other], (8, 4))
    graph.logical.ops[graph.op_of(one)].region, graph.logical.ops[graph.op_of(two)].region = 1, 2
    attrs = {"regions": (1, 2)}
    graph.logical.add(CONDITION, (test,), [], name="if", attrs=attrs | {"cases": 0})
    end = graph.add(CONDITION_RESULT, [one, two], (8, 4), **attrs)
    graph.logical.outputs = (end,)
    plan = make_plan(graph.logical, Cluster(2), inputs=((S(0),), (B,), (B,)))
    assert plan.choices[graph.op_of(end)].inputs == ((S(0),), (S(0),))
    assert Plan.parse(str(plan)) == plan
