"""Gradients reduced over ranks by Horovod, under names that all ranks give alike."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import horovod.tensorflow as hvd
import tensorflow as tf

_serial = itertools.count()
_SENDS = frozenset({"uint8", "int8", "int32", "int64", "float16", "float32", "float64"})
"""Types that Horovod's all-reduce takes (measured on 0.28.1)."""


@dataclass(eq=False)
class Reduction:
    """How the gradients of an optimizer or a tape are reduced; the arguments of Horovod's wrappers.

    Attributes:
      local: ids of variables whose gradients are each rank's own; with `scale_local` divided by the number of ranks.
    """

    op: Any = hvd.Average
    compression: Any = hvd.Compression.none
    sparse_as_dense: bool = False
    predivide: float = 1.0
    groups: int = 0
    process_set: Any = hvd.global_process_set
    device: str = ""
    scale_local: bool = True
    local: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.op not in (hvd.Average, hvd.Sum, hvd.Adasum):
            raise ValueError("op: gradients are reduced by Average, Sum or Adasum")
        if self.predivide != 1.0 and self.op != hvd.Average:
            raise ValueError("gradient_predivide_factor goes with op=Average only")
        self._name = f"whaleish.gradients.{next(_serial)}"
        self._times: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    @classmethod
    def of(cls, groups: int | None, num_groups: int, **options: Any) -> Reduction:
        """From the arguments of Horovod's wrappers, of which `num_groups` is an old name for `groups`.

        Raises:
          ValueError: no number of groups.
        """
        if num_groups:
            warnings.warn("num_groups is called groups now", DeprecationWarning, stacklevel=4)
        groups = groups if groups is not None else num_groups
        if not isinstance(groups, int) or groups < 0:
            raise ValueError(f"groups={groups!r}: give how many groups; lists of variables are not supported")
        return cls(groups=groups, **options)

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """The gradients of all ranks together; None stays None.

        Names follow from where a gradient stands, and from how often this was called for the same function: ranks that
        trace a function anew at different times still agree.
        """
        if self.process_set.size() == 1:
            return list(gradients)
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        time = 0 if graph is None else self._times.get(graph, 0)
        if graph is not None:
            self._times[graph] = time + 1
        made: list[Any] = list(gradients)
        dense: list[int] = []
        with tf.device(self.device) if self.device else contextlib.nullcontext():
            for place, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
                if gradient is None:
                    continue
                if id(variable) in self.local:
                    made[place] = gradient / self.process_set.size() if self.scale_local else gradient
                    continue
                if isinstance(gradient, tf.IndexedSlices) and self.sparse_as_dense:
                    made[place] = gradient = tf.convert_to_tensor(gradient)
                if isinstance(gradient, tf.IndexedSlices) or not self.groups:
                    made[place] = self._one(gradient, f"{self._name}.{time}.{place}")
                else:
                    dense.append(place)
            count = min(self.groups, len(dense))
            for number in range(count):
                own = dense[number::count]
                name = f"{self._name}.{time}.group_{number}"
                sendable = [_sendable(made[place]) for place in own]
                reduced = hvd.grouped_allreduce(sendable, name=name, **self._options())
                for place, gradient in zip(own, reduced, strict=True):
                    made[place] = tf.cast(gradient, made[place].dtype)
        return made

    def _one(self, gradient: Any, name: str) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            return hvd.allreduce(gradient, name=name, op=self.op, process_set=self.process_set)
        reduced = hvd.allreduce(_sendable(gradient), name=name, **self._options())
        return tf.cast(reduced, gradient.dtype)

    def _options(self) -> dict[str, Any]:
        options = {"op": self.op, "compression": self.compression, "process_set": self.process_set}
        if self.predivide == 1.0:
            return options
        scales = {"prescale_factor": 1 / self.predivide, "postscale_factor": self.predivide / self.process_set.size()}
        return {**options, **scales, "op": hvd.Sum}


def _sendable(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor in a type that Horovod reduces."""
    tensor = tf.convert_to_tensor(tensor)
    return tensor if tensor.dtype.name in _SENDS else tf.cast(tensor, tf.float32)
