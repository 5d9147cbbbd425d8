"""Functions registered with TensorFlow's runtime, for as long as whoever calls them lives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from whaleish import tf_private
from whaleish.agreement import digest


class RegisteredFunctions:
    """Functions that can be called by name; equal ones are registered once. They go when this does."""

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}  # by a hash of what is in the function
        self._registered: list[str] = []

    def __del__(self) -> None:
        for name in reversed(getattr(self, "_registered", [])):
            tf_private.remove_function(name)

    def register(self, function: Any, bodies: Sequence[Any] = ()) -> str:
        """Gives a finished function a name, and returns that.

        Args:
          bodies: functions that it refers to by their names, which are its own alone.
        """
        function.signature.name = ""
        content = digest(function.SerializeToString(deterministic=True))
        if bodies or content not in self._names:
            function.signature.name = self._names[content] = f"__whaleish_function_{next(_serial)}"
            for each in (*bodies, function):
                tf_private.register_function(each)
                self._registered.append(each.signature.name)
        return self._names[content]


_serial = itertools.count()
