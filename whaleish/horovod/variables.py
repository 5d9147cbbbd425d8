"""Variables of TensorFlow and Keras sent from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import horovod.tensorflow as hvd
import keras
import tensorflow as tf

_AS = {"bfloat16": tf.uint16, "uint32": tf.int32, "uint64": tf.int64, "complex64": tf.int64}
"""Types that Horovod does not broadcast, and what their bits are sent as (measured on 0.28.1)."""


def broadcast_variables(
    variables: Iterable[Any], root_rank: int, process_set: Any = hvd.global_process_set, inplace: bool = False
) -> None:
    """Gives all ranks the values that a rank has; Keras's variables too. `inplace` makes no difference here."""
    for variable in variables:
        own = variable.value if isinstance(variable, keras.Variable) else variable
        if own.dtype == tf.string:
            raise TypeError(f"broadcast_variables: {own.name} is of strings, which Horovod does not send")
        sent = _AS.get(own.dtype.name)
        value = tf.convert_to_tensor(own)
        value = hvd.broadcast(value if sent is None else tf.bitcast(value, sent), root_rank, process_set=process_set)
        own.assign(value if sent is None else tf.bitcast(value, own.dtype))
