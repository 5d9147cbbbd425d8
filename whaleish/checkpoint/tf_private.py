"""The calls into TensorFlow's private modules that checkpoints need, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from tensorflow.core.protobuf import trackable_object_graph_pb2
from tensorflow.python.checkpoint import graph_view, save_util
from tensorflow.python.trackable import base, trackable_utils

GRAPH_KEY = base.OBJECT_GRAPH_PROTO_KEY
"""Under what the object graph is stored."""

ObjectGraph = trackable_object_graph_pb2.TrackableObjectGraph


def serialized(root: Any) -> tuple[list[tuple[Any, str, Any]], ObjectGraph]:
    """What a checkpoint of `root` consists of.

    Returns:
      For each value the object that it is of, its key in the checkpoint, and the value: a tensor, or what gives one
      when called. And the object graph.

    Raises:
      NotImplementedError: an object has a way of its own to write files.
    """
    tensors, _, savers, graph = save_util.serialize_graph_view(graph_view.ObjectGraphView(root))
    if savers:
        raise NotImplementedError(f"objects with registered savers: {', '.join(savers)}")
    found = []
    for trackable, values in tensors.items():
        of = getattr(trackable, "obj", trackable)  # of a converter for objects of older kinds
        found += [(of, key, value) for key, value in values.items()]
    return found, graph


def paths(root: Any) -> list[tuple[Any, str]]:
    """All objects below `root`, each with one path that leads to it: `model/layer/kernel`."""
    objects, path_of = graph_view.ObjectGraphView(root).breadth_first_traversal()
    return [(one, trackable_utils.object_path_to_string(path_of[one])) for one in objects]


def children(trackable: Any) -> Callable[[str], Any]:
    """Looks up what an object has under a name; None if nothing."""
    found = trackable._trackable_children()
    return lambda name: trackable._lookup_dependency(name, found)


def restore_rest(root: Any, prefix: str, done: Sequence[Any]) -> Any:
    """Has TensorFlow restore `root`, all but the objects in `done`: those have their values already.

    Returns:
      TensorFlow's status. What has no value yet gets it when it is made.
    """
    for one in done:
        one._maybe_initialize_trackable()
        one._update_uid = sys.maxsize
    uid = -1
    try:
        status = root.read(prefix)
        uid = status._checkpoint.restore_uid
    finally:
        for one in done:
            one._update_uid = uid
    return status


__all__ = ["GRAPH_KEY", "ObjectGraph", "children", "paths", "restore_rest", "serialized"]
