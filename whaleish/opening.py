"""How ranks find out, at each call of a step, that they do not do the same; and how the errors say so."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from whaleish import tf_private
from whaleish.agreement import LIKELY_CAUSES, DisagreementError, agree
from whaleish.numbers import number_of
from whaleish.rewrite.check import ASSIGNED_DIFFER, BATCHES_DIFFER, STEPS_DIFFER, check_function
from whaleish.runtime import StageError
from whaleish.world import World


class AssignedDifferError(DisagreementError):
    """The program assigned to a step's variables, not equally on all ranks; the step has not begun on any."""


def open_first_call(world: World, step: str, arguments: str) -> None:
    """Meets the other ranks before a call is compiled; all of them must be about to compile the same one.

    Args:
      step: the step's name. arguments: describes the call, one argument a line.

    Raises:
      DisagreementError: on every rank, with the first difference.
    """
    if world.distributed and world.size > 1:
        name = _check(world)
        with explained(world, step, lambda: arguments):
            identity = number_of(f"{step}\n{arguments}")
            tf_private.call_function(name, [tf.constant(identity, tf.int64), tf.constant(0, tf.int32)], 0)


def opening_numbers(batch: int, assigned: int) -> list[tf.Tensor]:
    """What the check that opens a step takes: a 0, a hash of the batch, and what stands for what was assigned."""
    return [tf.constant(0, tf.int32), tf.constant(batch, tf.int64), tf.constant(assigned, tf.int64)]


@contextmanager
def explained(world: World, step: str, arguments: Callable[[], str]) -> Iterator[None]:
    """Turns the check's failures into errors that say what differs between the ranks."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if STEPS_DIFFER in str(error):
            agree(f"the call of {step!r}", arguments())
            raise DisagreementError(
                f"ranks run different programs of the step {step!r}, with equal arguments: one of them has compiled "
                "it anew, because its variables or its plan changed. All ranks must run the same code"
            ) from None
        if ASSIGNED_DIFFER in str(error):
            raise AssignedDifferError(
                f"variables of the step {step!r} were assigned differently on the ranks"
            ) from None
        if BATCHES_DIFFER in str(error):
            raise DisagreementError(
                f"ranks passed different batches to the step {step!r} (rank {world.rank} is one of them). Each rank "
                "would train on a slice of another batch. Pass the same whole batch on every rank, with the same seed "
                "for shuffling; or wrap the dataset in wh.distribute_dataset; or, if each rank passes its own part of "
                "the batch, say wh.function(inputs='local')"
            ) from None
        _fail(world, step, error)
        raise
    except (tf.errors.OpError, StageError) as error:
        _fail(world, step, error)
        raise


@functools.cache
def _check(world: World) -> str:
    name = "__whaleish_check"
    tf_private.register_function(check_function(name, world.size, world.rank, world.devices[0]).function_def)
    return name


_failed: list[str] = []  # what failed on this rank, and left the others in the middle of a step


def _fail(world: World, step: str, error: BaseException) -> None:
    if world.distributed and world.size > 1:
        if "Horovod has been shut down" in str(error):
            error.add_note(f"rank {world.rank} waited for another in the step {step!r}. {LIKELY_CAUSES}")
        _failed.append(f"{step!r}: {type(error).__name__}: {str(error).splitlines()[0]}")


def refuse_after_failure(world: World) -> None:
    """Where a step failed on this rank before, goes on if it did on all of them; else they may still wait in that step.

    Raises:
      RuntimeError: not all ranks failed and came here, within seconds.
    """
    if not _failed:
        return
    try:
        agree("the failed steps before this one", f"{len(_failed)}")
    except DisagreementError as error:
        raise RuntimeError(
            f"rank {world.rank} failed in an earlier step ({_failed[0]}), and the other ranks did not, or still wait "
            "for it there: no step can be run any more. Let the error end the program, on this rank and so on all"
        ) from error
    _failed.clear()
