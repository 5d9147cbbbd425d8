"""Ops of a traced graph are marked with the scopes that they are made in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from whaleish.capture import tf_private
from whaleish.graph import Scope
from whaleish.scopes.nesting import check
from whaleish.scopes.text import ATTRIBUTE, encode, parse


@contextlib.contextmanager
def annotate(graph: tf.Graph, scopes: Sequence[Scope]) -> Iterator[None]:
    """Ops made in the graph meanwhile are inside these scopes, and those inside the ones that are open.

    Raises:
      ScopeError: scopes that make no sense inside each other.
    """
    path = parse(tf_private.current_attribute(graph, ATTRIBUTE) or "")
    around, outer = path, tf_private.outer_graph(graph)
    while outer is not None:
        around = parse(tf_private.current_attribute(outer, ATTRIBUTE) or "") + around
        outer = tf_private.outer_graph(outer)
    for scope in scopes:
        path, around = (*path, scope), (*around, scope)
        check(around)
    with tf_private.op_attribute(graph, ATTRIBUTE, encode(path)):
        yield
