"""Runs an expansion: step by step, each under the signatures that fit the layouts at hand best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.conformance.kernels import tensor
from tests.conformance.lowering import fits, layouts, registry, run_parts, scaled
from tests.conformance.parts import cut, join
from whaleish.mesh import Mesh
from whaleish.rules.rule import Fragment, OpView, Signature, all_broadcast
from whaleish.sbp import B, Layout


@dataclass(frozen=True)
class Boxing:
    """A change of layout that an expansion made: where, from what, to what, and the bytes of the logical tensor."""

    step: str
    before: Layout
    after: Layout
    size: int


def run_fragment(
    fragment: Fragment,
    expands: Sequence[bool],
    columns: Sequence[Sequence[Any]],
    ins: Sequence[Layout],
    outs: Sequence[Layout],
    mesh: Mesh,
    rng: np.random.Generator,
    boxings: list[Boxing],
) -> list[list[Any]]:
    """Runs a fragment step by step, each under the signatures that fit the layouts at hand best.

    On the axes that expand only those that the fragment allows.
    """
    held = [(layout, list(column)) for layout, column in zip(ins, columns, strict=True)]
    done: dict[tuple[int, Layout], list[Any]] = {}  # A tensor is boxed to a layout once.
    known = dict(fragment.constants) | {i: c for i, c in enumerate(fragment.op.constants) if c is not None}

    def boxed(value: int, after: Layout, step: str) -> list[Any]:
        before, parts = held[value]
        if before == after:
            return parts
        if (value, after) in done:
            return done[value, after]
        whole = join([part.numpy() for part in parts], before, mesh.axes)
        boxings.append(Boxing(step, before, after, whole.nbytes))
        done[value, after] = [tensor(part) for part in cut(whole, after, mesh.axes, rng)]
        return done[value, after]

    for type, inputs, made, attrs in fragment.steps:
        if type == "Const":
            assert made[0] == len(held)
            held.append(((B,) * len(mesh.axes), [tensor(fragment.constants[made[0]])] * mesh.size))
            continue
        specs = fragment.specs
        op = OpView(
            type,
            attrs,
            tuple(specs[i] for i in inputs),
            tuple(specs[i] for i in made),
            tuple(known.get(i) for i in inputs),
        )
        offers = [s for s in registry.signatures(op) if not s.expands]
        allowed = [s for s in offers if fragment.allows(made, s)]
        chosen = _choose(op, [allowed if e else offers for e in expands], [held[i][0] for i in inputs], mesh)
        step_ins, step_outs = layouts(chosen)
        ready = [boxed(value, layout, type) for value, layout in zip(inputs, step_ins, strict=True)]
        refs = [[column[part] for column in ready] for part in range(mesh.size)]
        results = run_parts(op, registry.get(type), step_ins, step_outs, mesh, refs)
        held += [(layout, [row[i] for row in results]) for i, layout in enumerate(step_outs)]
    final = [boxed(value, layout, "output") for value, layout in zip(fragment.outputs, outs, strict=True)]
    return [[column[part] for column in final] for part in range(mesh.size)]


def _choose(
    op: OpView, offers: Sequence[Sequence[Signature]], at_hand: Sequence[Layout], mesh: Mesh
) -> list[Signature]:
    """For each axis the cheapest signature, axis after axis; the rest of the axes are taken all-B meanwhile."""
    chosen = [all_broadcast(op)] * len(mesh.axes)
    for axis in range(len(mesh.axes)):
        best = None
        for offer in offers[axis]:
            units = {
                h[axis].unit // s.unit
                for h, s in zip(at_hand, offer.inputs, strict=True)
                if s.is_split and h[axis].is_split
            }
            candidate = scaled(offer, max(units)) if units and max(units) > 1 else offer
            trial = [*chosen[:axis], candidate, *chosen[axis + 1 :]]
            if not fits(op, trial, mesh):
                continue
            cost = sum(
                _price(h[axis], s) * np.prod(spec.shape or (1,))
                for h, s, spec in zip(at_hand, candidate.inputs, op.inputs, strict=True)
            )
            # A tie goes to the signature that divides the work.
            cost += 1e-3 * all(sbp.is_broadcast for sbp in (*candidate.inputs, *candidate.outputs))
            if best is None or cost < best[0]:
                best = cost, candidate
        assert best is not None
        chosen[axis] = best[1]
    return chosen


def _price(before: Any, after: Any) -> float:
    if before == after:
        return 0.0
    if before.is_broadcast:
        return 1e-6 if after.is_split else 1e-5
    if before.is_split:
        # A slice is a summand for nothing, but the whole has to be summed later.
        return 3.0 if after.is_partial else 1.0
    return 1.0 if after.is_split else 2.0
