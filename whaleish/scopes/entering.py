"""Entering a scope: what is made from then on is inside it, ops of a traced graph or calls in a functional model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from whaleish.capture import tf_private
from whaleish.graph import Scope
from whaleish.scopes import functional
from whaleish.scopes.annotation import annotate
from whaleish.scopes.building import Entering, inside, open_enterings
from whaleish.scopes.contexts import ScopeContext
from whaleish.scopes.nesting import check


@dataclass(frozen=True)
class Entered:
    """A scope that is open.

    Attributes:
      undo: ends it.
      complaint: what is wrong with what it holds so far; empty where nothing is.
    """

    undo: ExitStack
    complaint: Callable[[], str]


def enter(scope: ScopeContext) -> Entered:
    """What this thread makes from now on is inside the scope.

    Raises:
      ScopeError: the scope makes no sense inside those that are open.
    """
    undo, graph = ExitStack(), tf_private.traced_graph()
    if graph is not None:
        undo.enter_context(annotate(graph, [Scope(scope.kind, tf_private.next_number(graph), scope.options)]))
        made = graph.version
        return Entered(undo, lambda: _NO_OP if scope.kind == "stage" and graph.version == made else "")
    if tf_private.inside_keras_call():
        # A model whose `call` has scopes, called eagerly, is what it is in plain TensorFlow.
        return Entered(undo, lambda: "")
    functional.watch()
    entering = Entering(scope)
    path = (*open_enterings(), entering)
    check(tuple(Scope(one.scope.kind, one.order, one.scope.options) for one in path))
    undo.enter_context(inside(path))
    return Entered(undo, lambda: "" if entering.calls else _NO_CALL)


_NO_OP = (
    "has no op inside, so there is nothing to place on its devices. Put the part of the model that it is for into it, "
    "or take it away"
)
_NO_CALL = (
    "was entered outside any traced function, and no layer was called on a Keras tensor inside, so it annotates "
    "nothing. Enter it inside the function given to wh.function, in a Keras layer's `call`, or round the building of a "
    "functional model"
)
