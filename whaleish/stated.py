"""`wh.layout`: a layout that the user states outright, for a tensor of a step or for a variable."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from whaleish.capture import tf_private
from whaleish.capture.convert import PINNED
from whaleish.sbp import Layout, format_layout, parse_layout
from whaleish.state import LaidOutVariable, not_laid_out, pin


def layout(value: Any, text: str) -> Any:
    """States how a tensor, or a variable with its optimizer slots, lies over the devices.

    It changes where things are and what is sent, never a result. For those who know what they want: the planner then
    chooses everything else round it.

        with wh.replica(2), wh.split():
            x = wh.layout(block(x), "S(0),S(1)")        # batch over the first axis, sequence over the second
        wh.layout(embedding.embeddings, "B,S(0)")       # rows of the table over the second axis

    Args:
      value: a tensor inside a step; or a variable (TensorFlow's or Keras's), anywhere, from when on every step that is
        compiled keeps it so.
      text: one entry for each mesh axis, outer to inner: `S(dim)`, `B`, `P`, `Pmax`, `Pmin`. The mesh has an axis for
        each level of nested scopes, and one where there are none.

    Returns:
      The tensor to go on with; a variable itself.

    Raises:
      ValueError: the text is no layout, splits a dim that the value does not have, or would store a variable as
        summands; or the variable cannot be laid out.
      RuntimeError: a tensor outside a step.
    """
    wanted = parse_layout(text)
    variable = getattr(value, "value", value)  # of Keras's variables
    variable = value if callable(variable) else variable
    if isinstance(variable, tf.Variable):
        _pin_variable(variable, wanted)
        return value
    tensor = tf.convert_to_tensor(value)
    _check_dims(wanted, tensor.shape.rank, f"a tensor of shape {tensor.shape}")
    graph = tf_private.traced_graph()
    if graph is None:
        raise RuntimeError(
            f"wh.layout(tensor, {text!r}) outside a step: tensors have layouts only inside the function given to "
            "wh.function. A variable's layout can be stated anywhere"
        )
    with tf_private.op_attribute(graph, PINNED, format_layout(wanted)):
        return tf.identity(tensor)


def _pin_variable(variable: tf.Variable, wanted: Layout) -> None:
    if not isinstance(variable, LaidOutVariable):
        raise not_laid_out(variable, wanted)
    name = f"variable {variable.name} of shape {variable.shape}"
    if any(sbp.is_partial or sbp.is_local for sbp in wanted):
        raise ValueError(f"{name} cannot be stored as {format_layout(wanted)}: give S(dim) or B for each axis")
    _check_dims(wanted, variable.shape.rank, name)
    pin(variable, wanted)


def _check_dims(wanted: Layout, rank: int | None, what: str) -> None:
    for sbp in wanted:
        if sbp.is_local:
            raise ValueError("L is the layout of wh.local_statistics(), and cannot be stated")
        if sbp.is_split and rank is not None and sbp.dim >= rank:
            raise ValueError(f"{what} has no dim {sbp.dim} to split as {format_layout(wanted)}")
