"""Where each value of a checkpoint belongs among the objects that are here, and all that does not fit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from whaleish.checkpoint import tf_private
from whaleish.checkpoint.objects import Value

COUNTER = "save_counter"
"""What TensorFlow counts checkpoints with; those that `tf.train.Checkpoint.write` wrote lack it."""


@dataclass(frozen=True)
class Pair:
    """A variable, its name for people, and under which key and in which shape its value is in the file."""

    value: Value
    name: str
    key: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Match:
    """How a checkpoint and the objects go together.

    Attributes:
      pairs: the variables that are in both.
      wrong: variables that differ in shape or type, one line each.
      missing: values of the objects that are not in the checkpoint.
      extra: values of the checkpoint for which the objects, all made, have no place.
      waiting: the same of objects that may yet make it: layers and optimizers that are not built, modules.
      left_out: names at the top of the checkpoint that were not asked for.
      others: whether values belong to objects that are no variables.
    """

    pairs: tuple[Pair, ...]
    wrong: tuple[str, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    waiting: tuple[str, ...]
    left_out: tuple[str, ...]
    others: bool


@dataclass(frozen=True)
class _Place:
    """An object that was found for a node of the checkpoint's graph: `name` is the path to it."""

    owner: Any
    name: str
    above: _Place | None

    def chain(self) -> Iterator[_Place]:
        place: _Place | None = self
        while place is not None:
            yield place
            place = place.above


def match(
    root: tf.train.Checkpoint,
    values: Sequence[Value],
    graph: tf_private.ObjectGraph,
    shapes: Mapping[str, Sequence[int]],
    dtypes: Mapping[str, tf.DType],
) -> Match:
    """Goes through both graphs from their roots, by the names of children, as TensorFlow does.

    Args:
      values: of the objects below `root`.
      graph, shapes, dtypes: what the checkpoint says of itself.
    """
    bound, unfound = _walk(root, graph)
    node_of = {id(place.owner): node for node, place in bound.items()}
    name_of = {id(owner): path for owner, path in tf_private.paths(root)}
    pairs, wrong, missing, others = [], [], [], False
    for value in values:
        name = _named(name_of.get(id(value.owner), value.key), value)
        node = node_of.get(id(value.owner))
        stored = graph.nodes[node].attributes if node is not None else ()
        if not stored:
            missing += [name] if name_of.get(id(value.owner)) != COUNTER else []
        elif value.variable is not None:
            key = stored[0].checkpoint_key
            problem = _misfit(value.variable, shapes.get(key), dtypes.get(key))
            wrong += [f"{name}: {problem}"] if problem else []
            pairs += [] if problem else [Pair(value, name, key, tuple(shapes[key]))]
        else:
            others = True
    kinds: dict[str, list[str]] = {"extra": [], "waiting": [], "left_out": []}
    counted: set[int] = set()
    # What was left out may hold the same objects as the rest, as an optimizer does, and has them last.
    for place, node, name in sorted(unfound, key=lambda one: one[0].above is None):
        kind = _kind(place)
        found = list(_values_below(graph, node, name, bound, counted))
        kinds[kind] += [name] if kind == "left_out" and found else found
    lists = (pairs, wrong, missing, kinds["extra"], kinds["waiting"], kinds["left_out"])
    return Match(*map(tuple, lists), others=others)


def _walk(root: Any, graph: tf_private.ObjectGraph) -> tuple[dict[int, _Place], list[tuple[_Place, int, str]]]:
    """The object for each node that has one; and the children that an object has not, with their nodes and paths."""
    top = _Place(root, "", None)
    bound, unfound, queue = {0: top}, [], deque([(0, top)])
    while queue:
        node, place = queue.popleft()
        find = tf_private.children(place.owner)
        for child in graph.nodes[node].children:
            name = f"{place.name}/{child.local_name}".lstrip("/")
            if child.node_id in bound:
                continue
            owner = find(child.local_name)
            if owner is None:
                unfound.append((place, child.node_id, name))
                continue
            bound[child.node_id] = _Place(owner, name, place)
            queue.append((child.node_id, bound[child.node_id]))
    for node, place in list(bound.items()):  # slots of optimizers of TensorFlow 1's kind, which nothing else leads to
        for slot in graph.nodes[node].slot_variables:
            variable = bound.get(slot.original_variable_node_id)
            found = place.owner.get_slot(variable.owner, slot.slot_name) if variable is not None else None
            if found is not None:
                bound[slot.slot_variable_node_id] = _Place(found, f"{place.name}/{slot.slot_name}", place)
    return bound, unfound


def _kind(place: _Place) -> str:
    """What it means that an object has not a child that it had in the checkpoint."""
    if place.above is None:
        return "left_out"
    built = [one.owner.built for one in place.chain() if isinstance(getattr(one.owner, "built", None), bool)]
    return "extra" if built and all(built) else "waiting"


def _values_below(
    graph: tf_private.ObjectGraph, node: int, name: str, bound: Mapping[int, _Place], counted: set[int]
) -> Iterator[str]:
    """The values under a node that no object has, each once."""
    queue = deque([(node, name)])
    while queue:
        node, name = queue.popleft()
        if node in bound or node in counted:
            continue
        counted.add(node)
        for attribute in graph.nodes[node].attributes:
            yield f"{name} ({attribute.full_name})" if attribute.full_name else name
        queue.extend((child.node_id, f"{name}/{child.local_name}") for child in graph.nodes[node].children)


def _misfit(variable: tf.Variable, shape: Sequence[int] | None, dtype: tf.DType | None) -> str:
    if shape is None or dtype is None:
        return "its values are not in the file"
    differ = [] if variable.shape.is_compatible_with(shape) else [f"shape {list(shape)}, here {variable.shape}"]
    differ += [] if dtype == variable.dtype else [f"type {dtype.name}, here {variable.dtype.name}"]
    return ", ".join(differ)


def _named(path: str, value: Value) -> str:
    """A value by the path to it, and by the variable's own name."""
    own = getattr(value.owner, "path", None) or getattr(value.variable, "name", "")
    return f"{path} ({own})" if own else path
