"""Where what bodies read is boxed."""

from __future__ import annotations

from tests.planner.graphs import Graph
from whaleish.cluster import Cluster
from whaleish.graph import Region
from whaleish.planner import make_plan
from whaleish.planner.moves import find_moves
from whaleish.rewrite.homes import find_homes
from whaleish.rules.control import CONDITION, LOOP


def homes_of(readers: list[int]) -> int:
    """The home of a tensor of the step that ops of some regions read whole: 1 test, 2 body, 3 and 4 branches in it."""
    graph = Graph()
    x = graph.argument(8, 4)
    graph.logical.regions += [Region(0), Region(0), Region(2), Region(2), Region(0)]
    for region in readers:
        made = graph.add("NoSuchRule", [x], (8, 4))
        graph.logical.ops[graph.op_of(made)].region = region
    test = graph.argument(dtype="bool")
    graph.logical.add(CONDITION, (test,), [], name="if", attrs={"regions": (3, 4), "cases": 0}, region=2)
    graph.logical.add(LOOP, (test,), [], name="loop", attrs={"regions": (1, 2), "parallel_iterations": 1})
    plan = make_plan(graph.logical, Cluster(2))
    return find_homes(graph.logical, plan, find_moves(graph.logical, plan))[x, plan.choices[1].inputs[0]]


def test_what_one_branch_reads_is_boxed_in_it() -> None:
    assert homes_of([5]) == 5
    assert homes_of([5, 0]) == 0


def test_what_a_loop_reads_is_boxed_before_it() -> None:
    assert homes_of([2]) == 0
    assert homes_of([3]) == 0
    assert homes_of([3, 4, 1]) == 0
