"""A variable that can be laid out: in place like any other, or in the parts of a mesh."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from whaleish.state import functions, tf_private
from whaleish.state.assigned import Assignments, note_value
from whaleish.state.halved import HalvedVariable
from whaleish.state.methods import noted, through_the_whole
from whaleish.state.parts import Parts

LENT: weakref.WeakValueDictionary[int, LaidOutVariable] = weakref.WeakValueDictionary()
"""By id, the variables in parts whose whole is back for a plain `tf.function`; `settle_all` ends that."""

Exchange = Callable[[Parts], tf.Tensor]
"""Reads the whole of parts that lie on several processes: a collective."""


class LaidOutVariable(HalvedVariable):
    """A `tf.Variable` whose storage is in place, under its own handle, or in the parts of a mesh.

    Until `lay_out` moves it into parts it is what TensorFlow makes, storage and all, or deferred. In parts, reading
    gathers and assigning scatters, eagerly and one variable at a time; a plain `tf.function` that captured it finds it
    in place again (one process), or raises (several). Its handle never changes. While there are parts the handle has no
    storage, so an op that is given the handle raises TensorFlow's error.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._parts: Parts | None = None
        self.assignments = Assignments()
        self.pinned: tuple = ()
        super().__init__(*arguments, **keywords)
        self._exchange: Exchange | None = None
        self._lent_for_writing = False
        self._layout: tuple = ()
        self._mesh = None

    # How it is stored.

    @property
    def in_parts(self) -> bool:
        """Whether parts of a mesh store it, be it each the whole (also while that is on loan to a plain function)."""
        return self._parts is not None

    @property
    def on_several_ranks(self) -> bool:
        """Whether reading it is a collective."""
        return self._exchange is not None

    @property
    def exchange(self) -> Exchange | None:
        """How its parts are read together, where ranks hold them."""
        return self._exchange

    @property
    def parts(self) -> Parts | None:
        """What this process stores of it, if it lies in parts."""
        return self._parts

    @property
    def _gathers(self) -> bool:
        return self._parts is not None and id(self) not in LENT

    def _free_whole(self) -> None:
        LENT.pop(id(self), None)
        tf_private.hide_handle(self, self.handle)
        self._resource.destroy()

    def _fill_whole(self, value: tf.Tensor) -> None:
        self._resource.assign(value)
        tf_private.show_handle(self, self.handle)

    def store_in_parts(self, parts: Parts, pieces: Sequence[np.ndarray], exchange: Exchange | None) -> None:
        """Frees what was stored, and stores what `parts.cut` gave. `exchange` is given where ranks hold the parts."""
        self.forget_recipe()
        self._parts, self._exchange = parts, exchange
        self._free_whole()
        parts.fill(pieces)
        functions.ask_at_calls(self)

    def store_in_place(self, whole: tf.Tensor) -> None:
        """Moves the value back under the variable's own handle and frees the parts."""
        self._fill_whole(whole)
        self._parts = self._exchange = None
        LENT.pop(id(self), None)
        functions.restore(self)

    def logical_value(self) -> tf.Tensor:
        """The value, gathered if need be, outside any tape. Where ranks hold the parts, a collective."""
        with tf.init_scope(), tf_private.stop_recording():
            self.initialise()
            if not self._gathers:
                return self._resource.read()
            self._refuse_raw_write()
            if self._exchange is not None:
                return self._exchange(self._parts)
            with tf.device(self.handle.device):
                return self._parts.whole()

    def lend(self, writes: bool, everywhere: bool = False) -> None:
        """Brings the whole back beside the parts, until `settle`.

        Args:
          writes: whether the borrower may change it.
          everywhere: whether all ranks are known to call this together.
        """
        self.initialise()
        if self._gathers:
            if self._exchange is not None and not everywhere:
                raise RuntimeError(
                    f"{self.name} lies {self._parts.where()}, one device per rank, and a plain tf.function reads it. "
                    "Decorate that function with wh.function, or read the variable on all ranks with wh.gather and "
                    "pass its value in."
                )
            self._fill_whole(self.logical_value())
            self._lent_for_writing = False
            LENT[id(self)] = self
        self._lent_for_writing |= writes

    def settle(self) -> None:
        """Ends a loan: what the borrower wrote goes to the parts, and the whole is freed."""
        if id(self) in LENT:
            with tf.init_scope():
                if self._lent_for_writing:
                    self._write_parts(self._resource.read())
                self._free_whole()

    def _refuse_raw_write(self) -> None:
        if self._resource.exists():
            self._resource.destroy()
            raise RuntimeError(
                f"a raw op assigned to the handle of {self.name}, which lies {self._parts.where()}, so the value did "
                "not reach its storage there and is dropped; use the variable's own assign methods"
            )

    def _eager_in_parts(self) -> bool:
        return self._parts is not None and tf.executing_eagerly()

    # Reading.

    def _read_variable_op(self, no_copy: bool = False) -> tf.Tensor:
        self.ensure_made()
        if not (self._gathers and tf.executing_eagerly()):
            return super()._read_variable_op(no_copy)
        tf_private.variable_accessed(self)
        value = self.logical_value()
        tf_private.record_read(self, value)
        return value

    def is_initialized(self, name: str | None = None) -> tf.Tensor:
        there = self._eager_in_parts() or (self.deferred and tf.executing_eagerly())
        return tf.constant(True) if there else super().is_initialized(name)

    def sparse_read(self, indices: Any, name: str | None = None) -> tf.Tensor:
        self.ensure_made()
        if self._gathers and tf.executing_eagerly():
            return tf.gather(self._read_variable_op(), indices, name=name)
        return super().sparse_read(indices, name)

    def gather_nd(self, indices: Any, name: str | None = None) -> tf.Tensor:
        self.ensure_made()
        if self._gathers and tf.executing_eagerly():
            return tf.gather_nd(self._read_variable_op(), indices, name=name)
        return super().gather_nd(indices, name)

    # Writing.

    def assign(self, value: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True) -> Any:
        if self.deferred and tf.executing_eagerly():
            value = tf.convert_to_tensor(value, dtype=self.dtype)
            self._check_shape(value, "assign")
            self.forget_recipe()
        if not self._eager_in_parts():
            return super().assign(value, use_locking, name, read_value)
        whole = tf.convert_to_tensor(value, dtype=self.dtype)
        self._check_shape(whole, "assign")
        self._drop_loan()
        self._write_parts(whole)
        return self if read_value else None

    def assign_add(self, delta: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True) -> Any:
        self.ensure_made()
        if not self._eager_in_parts():
            return super().assign_add(delta, use_locking, name, read_value)
        delta = tf.convert_to_tensor(delta, dtype=self.dtype)
        self._check_shape(delta, "assign_add")
        self.settle()
        if self._parts.additive:
            if self._exchange is not None:
                note_value(self, delta, added=True)
            self._parts.add(delta)
        else:
            self._write_parts(self.logical_value() + delta)
        return self if read_value else None

    def assign_sub(self, delta: Any, use_locking: Any = None, name: str | None = None, read_value: bool = True) -> Any:
        self.ensure_made()
        if not self._eager_in_parts():
            return super().assign_sub(delta, use_locking, name, read_value)
        return self.assign_add(tf.negative(tf.convert_to_tensor(delta, dtype=self.dtype)), read_value=read_value)

    def _write_parts(self, whole: tf.Tensor) -> None:
        if self._exchange is not None:
            note_value(self, whole)
        self._parts.write(whole)

    def _check_shape(self, value: tf.Tensor, what: str) -> None:
        if not self.shape.is_compatible_with(value.shape):
            raise ValueError(
                f"Cannot {what} a value of shape {value.shape} to variable {self.name} of shape {self.shape}"
            )

    def _drop_loan(self) -> None:
        """Ends a loan whose value is about to be replaced."""
        self._lent_for_writing = False
        self.settle()

    @contextlib.contextmanager
    def whole_for_a_while(self) -> Iterator[None]:
        """While in this context the variable is in place; then its parts have what was written."""
        self.lend(writes=True, everywhere=True)
        try:
            yield
        finally:
            self.settle()

    # Checkpoints and copies.

    def restore_part(self, part: int, piece: tf.Tensor) -> None:
        """Sets a part that lives here to what all ranks took from one file, each its own piece."""
        self._drop_loan()
        self._parts.store(part, piece)

    def restore_whole(self, whole: tf.Tensor) -> None:
        """Sets the parts that live here from a value that all ranks took from one file."""
        self._drop_loan()
        self._parts.write(whole)

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> Any:
        if not (self._eager_in_parts() or (self.deferred and tf.executing_eagerly())):
            return super()._restore_from_tensors(restored_tensors)
        (value,) = restored_tensors.values()
        return self.assign(value)

    def __deepcopy__(self, memo: dict) -> LaidOutVariable:
        copy = type(self)(
            initial_value=self.logical_value(),
            trainable=self.trainable,
            constraint=self.constraint,
            dtype=self.dtype,
            name=self._shared_name,
            synchronization=self.synchronization,
            aggregation=self.aggregation,
        )
        memo[id(self)] = copy
        return copy

    def __reduce__(self) -> tuple:
        arguments = {
            "initial_value": self.numpy(),
            "trainable": self.trainable,
            "name": self._shared_name,
            "dtype": self.dtype,
            "constraint": self.constraint,
        }
        return functools.partial(tf.Variable, **arguments), ()


for _name in (
    "batch_scatter_update",
    "count_up_to",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_nd_add",
    "scatter_nd_max",
    "scatter_nd_min",
    "scatter_nd_sub",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
    "_strided_slice_assign",
):
    setattr(LaidOutVariable, _name, noted(through_the_whole(_name)))
for _name in ("assign", "assign_add", "assign_sub", "_restore_from_tensors"):
    setattr(LaidOutVariable, _name, noted(getattr(LaidOutVariable, _name)))
