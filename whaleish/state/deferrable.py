"""A variable that may have no value yet, and has it made when someone needs it."""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from whaleish.state import functions, tf_private
from whaleish.state.recipe import Recipe
from whaleish.state.tf_private import ResourceVariable


class DeferrableVariable(ResourceVariable):
    """A `tf.Variable` under a handle whose storage can be destroyed and made again.

    Made from a recipe (`initial_value=Recipe(...)`) it is *deferred*: the handle has no storage, as of a variable that
    lies in parts. Whoever lays it out takes the value from the recipe; whoever needs it before has it made in place.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._resource: tf_private.Resource | None = None
        self._recipe: Recipe | None = None
        self._readers: weakref.WeakSet = weakref.WeakSet()  # traced functions that captured the handle
        if isinstance(keywords.get("initial_value"), Recipe):
            self._wait(**keywords)
            return
        super().__init__(*arguments, **keywords)
        with tf.init_scope():  # a variable made while a step is traced, as optimizer slots may be, is filled only once
            self._resource = tf_private.take_over(self)

    def _wait(self, initial_value: Recipe, **keywords: Any) -> None:
        keywords |= {"shape": tf.TensorShape(initial_value.shape), "dtype": initial_value.dtype}
        self._resource = tf_private.make_without_storage(self, **keywords)
        self._recipe = initial_value
        tf_private.hide_handle(self, self.handle)

    @property
    def handle(self) -> tf.Tensor:
        """The handle, the same for life. It has no storage while the variable is deferred or lies in parts."""
        return self._handle if self._resource is None else self._resource.handle

    @property
    def deferred(self) -> bool:
        """Whether it has no storage yet, and a recipe for its value."""
        return self._recipe is not None

    @property
    def recipe(self) -> Recipe | None:
        """How to make the value, while it is deferred."""
        return self._recipe

    def replace_recipe(self, recipe: Recipe) -> None:
        """Gives a deferred variable another recipe, for a value of the same shape and type."""
        self._recipe = recipe

    def forget_recipe(self) -> None:
        """Ends the deferral; to be called where the value is about to be stored."""
        if self._recipe is not None:
            self._recipe = None
            tf_private.show_handle(self, self.handle)
            functions.restore(self)

    def initialise(self) -> None:
        """Makes the value of a deferred variable, in place."""
        if self._recipe is not None:
            with tf.init_scope(), tf_private.stop_recording():
                self._resource.assign(self._recipe.value())
            self.forget_recipe()

    def ensure_made(self) -> None:
        """To be called before the value is read or changed: makes that of a deferred one, unless this is a trace."""
        if self._recipe is not None and tf.executing_eagerly():
            self.initialise()
