"""What one axis sees of a graph: candidates with cuts that fit, scaled units, and costs of the slowest part."""

import numpy as np
import pytest

from tests.planner.graphs import Graph
from whaleish.sbp import B, P, S


def product(rows: int = 8, inner: int = 6, columns: int = 4) -> tuple[Graph, int]:
    graph = Graph()
    x, w = graph.argument(rows, inner), graph.argument(inner, columns)
    attrs = {"transpose_a": False, "transpose_b": False, "T": "float32"}
    return graph, graph.op_of(graph.add("MatMul", [x, w], (rows, columns), **attrs))


def test_candidates_of_a_product() -> None:
    graph, index = product()
    found = [(c.inputs, c.outputs) for c in graph.view().candidates(index)]
    assert found[0] == ((B, B), (B,))
    for expected in [((S(0), B), (S(0),)), ((B, S(1)), (S(1),)), ((S(1), S(0)), (P,)), ((P, B), (P,)), ((B, P), (P,))]:
        assert expected in found
    assert len(set(found)) == len(found)


def test_parts_cost_what_the_slowest_does() -> None:
    graph, index = product(rows=10)
    for size, share in ((2, 0.5), (3, 0.4), (4, 0.3), (16, 0.1)):
        by_inputs = {c.inputs: c.seconds for c in graph.view(size).candidates(index)}
        assert by_inputs[S(0), B] == pytest.approx(share * by_inputs[B, B])


def test_equal_ops_share_their_candidates() -> None:
    graph = Graph()
    x = graph.argument(4, 4)
    first, second = (graph.op_of(graph.add("Relu", [x], (4, 4), T="float32")) for _ in range(2))
    view = graph.view()
    assert view.candidates(first) is view.candidates(second)


def test_ops_without_a_rule_or_a_shape_are_whole() -> None:
    graph = Graph()
    x = graph.argument(4, 4)
    unknown = graph.add("NobodyKnowsThisOp", [x], (4, 4))
    shapeless = graph.add("Relu", [x], None, T="float32")
    after = graph.add("Relu", [shapeless], None, T="float32")
    for tensor in (unknown, shapeless, after):
        (only,) = graph.view().candidates(graph.op_of(tensor))
        assert (only.inputs, only.outputs) == ((B,), (B,))


def test_splits_have_their_smallest_unit() -> None:
    graph = Graph()
    x = graph.argument(4, 6)
    shape = graph.add("Const", [], (1,), dtype="int32")
    graph.logical.constants[shape] = np.array([24], "int32")
    flat = graph.op_of(graph.add("Reshape", [x, shape], (24,), T="float32", Tshape="int32"))
    splits = {size: [c for c in graph.view(size).candidates(flat) if c.inputs[0] == S(0)] for size in (2, 3)}
    # 4 rows on 2 parts are 12 + 12 of 24, as any unit cuts them; on 3 they are 12 + 6 + 6, and not 8 + 8 + 8.
    assert [c.outputs for c in splits[2]] == [(S(0),)]
    assert [c.outputs for c in splits[3]] == [(S(0, 6),)]


def test_scaling_to_the_unit_of_an_input() -> None:
    graph = Graph()
    x = graph.argument(12, 2)
    index = graph.op_of(graph.add("Relu", [x], (12, 2), T="float32"))
    view = graph.view(3)
    rows = next(c for c in view.candidates(index) if c.inputs == (S(0),))
    scaled = view.scaled(index, rows, 0, 3)
    assert scaled is not None
    assert (scaled.inputs, scaled.outputs) == ((S(0, 3),), (S(0, 3),))
    assert scaled.seconds >= rows.seconds
    assert view.scaled(index, rows, 0, 5) is None  # 12 elements are no whole units of 5
    assert view.scaled(index, scaled, 0, 4) is None  # nor are units of 3 divided into units of 4


def test_units_are_scaled_as_the_rule_gave_them() -> None:
    """Flattening [12, 7] cuts the 84 elements of the result on multiples of 7. Over 3 parts that is S(0), as if the
    unit were 1; of rows that come in units of 6, 2 units over 3 parts, the result has units of 42 all the same."""
    graph = Graph()
    x = graph.argument(12, 7)
    index = graph.op_of(graph.add("Reshape", [x], (84,)))
    view = graph.view(3)
    rows = next(c for c in view.candidates(index) if c.inputs[0] == S(0))
    assert rows.outputs == (S(0),)
    scaled = view.scaled(index, rows, 0, 6)
    assert scaled is not None
    assert (scaled.inputs, scaled.outputs) == ((S(0, 6),), (S(0, 42),))
