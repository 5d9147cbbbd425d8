"""Micro-batches: what an axis of time allows.

The parts of an axis of time come one after another, so none can wait for a later one. What is made of all of them, a
sum that is whole or a batch that is gathered, is there only after the last, and nothing that runs once for each
micro-batch may read it. Where it follows from the step's arguments alone (the number of words in a batch, say) it is
computed before the first, from the whole arguments; where no gradient depends on it, what reads it runs once, after the
last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whaleish.graph import BACKWARD, LogicalGraph
from whaleish.planner.facts import Facts
from whaleish.planner.roles import PlanError
from whaleish.planner.units import bodies
from whaleish.planner.view import Candidate, OuterAxis, made_layouts
from whaleish.rules.control import CONDITION, LOOP
from whaleish.rules.rows import MERGE_ROWS
from whaleish.sbp import Sbp, is_whole


def needed_whole(facts: Facts, taken: Sequence[Candidate], whole: set[int], apart: bool = False) -> set[int]:
    """The ops that must run once, on whole tensors, besides those of `whole`, so that none waits for later parts.

    Args:
      taken: the candidate of each op on an axis of time.
      apart: whether micro-batches run in functions of their own, so that what decides on a body decides for all of it.

    Raises:
      PlanError: an op needs all micro-batches in the middle of each; names both ends.
    """
    graph = facts.graph
    made = made_layouts(graph, taken)
    late: dict[int, int] = {}  # op that runs only after the last micro-batch -> itself, or the first such that it needs
    found: set[int] = set()
    free = graph.order_free() if apart else set()
    for index, (op, candidate) in enumerate(zip(graph.ops, taken, strict=True)):
        before = [late[control] for control in op.controls if control in late and index not in free]
        if apart and _is_whole(candidate) and index not in free:
            before += [control for control in op.controls if not _is_whole(taken[control])]
        inherited, own = {-1: before[0]} if before else {}, {}
        for tensor, need in zip(op.inputs, candidate.inputs, strict=True):
            have, producer = made.get(tensor), graph.tensors[tensor].producer
            if producer in late:
                inherited[tensor] = late[producer]
            elif have is not None and have != need and not (have.is_broadcast or need.is_partial or need.is_local):
                own[tensor] = producer
        waits = inherited | own
        if not waits:
            continue
        early = {tensor for tensor in waits if tensor in facts.argument_like}
        once = _only_gathers(candidate, op.inputs, waits, made)
        if early == set(waits) and (not once or _feeds_gradients(facts, index)):
            found |= {maker for tensor in early for maker in _makers(facts, tensor)}
            continue  # with these made before, it does not wait
        # To blame is what makes a sum, or who gathers what need not be gathered.
        gathers = once and any(made[tensor].is_split for tensor in own)
        late[index] = next(iter(inherited.values()), index if gathers else next(iter(waits.values())))
        if not once:
            found.add(_instead(facts, index, waits))
    # What an op makes of all parts inside itself is there after the last, and then the op goes on for each.
    found |= {index for index, candidate in enumerate(taken) if candidate.expands}
    for index in late if apart else ():
        if graph.ops[index].type in (CONDITION, LOOP):
            found |= {other for other in bodies(graph, index) if not _is_whole(taken[other])}
    return found - whole


def _is_whole(candidate: Candidate) -> bool:
    return is_whole(candidate.inputs, candidate.outputs)


def sums_across(graph: LogicalGraph, taken: Sequence[Candidate], stage_of: Sequence[int]) -> set[int]:
    """The ops that add up sums over micro-batches of different stages: the gradients of a weight that several use.

    They run once, on whole sums, so that these cross between stages once and not for each micro-batch.

    Args:
      taken: the candidate of each op on an axis of time. stage_of: the stage of each op; () if there are none.
    """
    return {
        index
        for index, (op, candidate) in enumerate(zip(graph.ops, taken, strict=True))
        if stage_of
        and len(op.inputs) > 1
        and all(sbp.kind == "P" for sbp in candidate.inputs)
        and len({stage_of[graph.tensors[tensor].producer] for tensor in op.inputs}) > 1
    }


def out_of_turn(graph: LogicalGraph, taken: Sequence[Candidate], outer: Sequence[OuterAxis]) -> set[int]:
    """The ops that would need rows of other micro-batches, because an axis of devices further out gathers or cuts them.

    A micro-batch is of the rows of each device and not of the whole batch, so together the devices have no run of rows.
    They run once, after all.

    Args:
      taken: the candidate of each op on an axis of time. outer: the axes further out.
    """
    made, made_outside = made_layouts(graph, taken), [made_layouts(graph, axis.taken) for axis in outer]
    found = set()
    for index, (op, candidate) in enumerate(zip(graph.ops, taken, strict=True)):
        for axis, made_there in zip(outer, made_outside, strict=True):
            there = axis.taken[index]
            read = [
                (made_there[tensor], there.inputs[k], made[tensor], candidate.inputs[k])
                for k, tensor in enumerate(op.inputs)
                if tensor in made
            ]
            if op.type == MERGE_ROWS:  # it gathers what it reads
                read += zip(there.inputs, there.outputs, candidate.inputs, candidate.outputs, strict=True)
            for before, after, early, late in read:
                dims = {sbp.dim for sbp in (before, after) if sbp.is_split} if before != after else set()
                if early.is_split and late.is_split and early.dim in dims:
                    found.add(index)
    return found


def _only_gathers(candidate: Candidate, inputs: Sequence[int], waits: dict[int, int], made: Mapping[int, Sbp]) -> bool:
    """Whether an op reads nothing of each micro-batch's and makes nothing for each."""
    gathered = {tensor for tensor in waits if tensor in made and not made[tensor].is_broadcast}
    needs = [need for tensor, need in zip(inputs, candidate.inputs, strict=True) if tensor not in gathered]
    return all(sbp.is_broadcast for sbp in (*needs, *candidate.outputs))


def _instead(facts: Facts, index: int, waits: dict[int, int]) -> int:
    """The op to run whole so that op `index` need not wait for each micro-batch: itself, after the last.

    Args:
      waits: tensor that it waits for, or -1 where it only comes after others -> the op that makes it.
    """
    graph = facts.graph
    if not _feeds_gradients(facts, index):
        return index
    tensor = next((t for t in waits if t not in facts.argument_like), next(iter(waits)))
    raise PlanError(
        f"{graph.place(index)} runs for each micro-batch and needs {graph.place(waits[tensor])} of all of them, which "
        "is there only after the last. If it is a batch's statistics, put it under wh.local_statistics(), so that each "
        "micro-batch has its own; else take what needs the whole batch out of the step, or the micro-batches away"
    )


def _makers(facts: Facts, tensor: int) -> set[int]:
    """The ops between the arguments and a tensor."""
    graph, found, todo = facts.graph, set(), [tensor]
    while todo:
        index = graph.tensors[todo.pop()].producer
        if index not in found and graph.ops[index].type != "Placeholder":
            found.add(index)
            todo += graph.ops[index].inputs
    return found


def _feeds_gradients(facts: Facts, index: int) -> bool:
    """Whether a gradient depends on what an op makes, or it is one."""
    seen, todo = {index}, [index]
    while todo:
        op = facts.graph.ops[todo.pop()]
        if op.phase == BACKWARD:
            return True
        for reader in {reader for tensor in op.outputs for reader in facts.readers[tensor]} - seen:
            seen.add(reader)
            todo.append(reader)
    return False
