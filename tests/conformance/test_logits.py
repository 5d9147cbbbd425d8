"""Cross entropies and softmax of split logits: what travels is a number per row, and bad labels are still errors."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.conformance.cases.losses import CASES, DENSE, SPARSE, logits
from tests.conformance.executor import AXES, MESHES, Case, fits, layouts, registry, run_signature
from whaleish.graph import LogicalGraph, layout_bytes
from whaleish.mesh import Axis, Mesh
from whaleish.planner.plan import Choice, Plan
from whaleish.rewrite.expand import expand
from whaleish.rules.rule import OpView, Signature
from whaleish.sbp import B, S

SPLIT = [case for case in CASES if case.type != DENSE or case.inputs[0].shape == case.inputs[1].shape]


def expanding(case: Case) -> list[Signature]:
    """Those that split the classes: with the loss whole, and as a sum."""
    return [s for s in registry.signatures(case.view()) if s.expands]


@pytest.mark.parametrize("case", SPLIT, ids=str)
def test_every_step_takes_logits_split(case: Case) -> None:
    """With numbers per row whole and logits split, each step has a signature; what it leaves partial is small."""
    op = case.view()
    shape = op.inputs[0].shape
    fragment = registry.rules[op.type].expand(op)
    reduced, last = 0, S(len(shape) - 1)
    for type, inputs, made, attrs in fragment.steps:
        if type == "Const":
            continue
        specs = fragment.specs
        known = tuple(fragment.constants.get(i) for i in inputs)
        step = OpView(type, attrs, tuple(specs[i] for i in inputs), (specs[made[0]],), known)
        wanted = tuple(last if spec.shape == shape else B for spec in step.inputs)
        after = {s.outputs[0] for s in registry.signatures(step) if s.inputs == wanted}
        partial = {sbp for sbp in after if sbp.is_partial}
        if step.outputs[0].shape == shape:
            assert last in after, f"{type} makes whole logits"
        else:
            assert after, f"{type} takes whole logits"
        if partial:
            assert B not in after
            reduced += layout_bytes(step.outputs[0].shape, step.outputs[0].dtype)
    assert reduced == expanding(case)[0].inner_bytes


@pytest.mark.parametrize("case", SPLIT, ids=str)
def test_nothing_as_large_as_logits_travels(case: Case) -> None:
    for signature, axis in itertools.product(expanding(case), AXES):
        if fits(case.view(), [signature], Mesh((axis,))):
            check_small(case, [signature], Mesh((axis,)))


@pytest.mark.parametrize("case", SPLIT, ids=str)
def test_the_rewriter_keeps_logits_split(case: Case) -> None:
    op = case.view()
    graph = LogicalGraph()
    for index, spec in enumerate(op.inputs):
        graph.add("Placeholder", (), [(spec.shape, spec.dtype)], name=f"input{index}")
    graph.inputs = tuple(range(len(op.inputs)))
    outputs = [(spec.shape, spec.dtype) for spec in op.outputs]
    graph.outputs = graph.add(op.type, graph.inputs, outputs, name="op", attrs=op.attrs).outputs
    for signature in expanding(case):
        ins, outs = layouts([signature])
        choices = [*(Choice((), (layout,)) for layout in ins), Choice(tuple(ins), tuple(outs), (0,))]
        plan = Plan(Mesh((Axis("d", 2),)), "", tuple(ins), tuple(outs), (), tuple(choices))
        written, after = expand(graph, plan)
        for step, choice in zip(written.ops, after.choices, strict=True):
            read, made = zip(step.inputs, choice.inputs, strict=True), zip(step.outputs, choice.outputs, strict=True)
            for tensor, layout in (*read, *made):
                if written.tensors[tensor].shape == op.inputs[0].shape:
                    assert layout == ins[0], f"{step.type}: {choice}"


@pytest.mark.parametrize("mesh", MESHES, ids=Mesh.text)
@pytest.mark.parametrize("outer", ["batch", "classes"])
def test_batch_and_classes_split_at_once(mesh: Mesh, outer: str) -> None:
    case = Case(SPARSE, (logits(6, 8), np.array([1, 7, 0, 3, 3, 4])))
    batch = next(s for s in registry.signatures(case.view()) if not s.expands and s.inputs[0].is_split)
    for classes in expanding(case):
        check_small(case, [batch, classes] if outer == "batch" else [classes, batch], mesh)


def check_small(case: Case, signatures: list[Signature], mesh: Mesh) -> None:
    """Runs the case; slicing what is whole and taking a slice for a summand are free, the rest must be small."""
    rows = case.inputs[0].size // case.inputs[0].shape[-1]
    for boxing in run_signature(case, signatures, mesh):
        for before, after in zip(boxing.before, boxing.after, strict=True):
            free = before == after or before.is_broadcast or (before.is_split and after.is_partial)
            assert free or boxing.size <= rows * 8, f"{boxing} moves whole logits"


@pytest.mark.parametrize("label", [-1, 9])
def test_a_label_that_no_part_has_is_an_error_as_on_one_device(label: int) -> None:
    case = Case(SPARSE, (logits(3, 9), np.array([1, label, 8])))
    good = Case(SPARSE, (logits(3, 9), np.array([1, 1, 8])))
    object.__setattr__(case, "_reference", good.reference)
    with pytest.raises(tf.errors.InvalidArgumentError):
        run_signature(case, expanding(case)[:1], Mesh(AXES[:1]))
