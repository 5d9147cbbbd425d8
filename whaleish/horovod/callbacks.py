"""Horovod's callbacks, for Keras 3."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from whaleish.horovod.variables import broadcast_variables

_log = logging.getLogger("whaleish")


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Gives all ranks the model and the optimizer that one has, after the first batch, when all variables are made."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank, self.device, self.broadcast_done = root_rank, device, False
        given = () if local_variables is None else local_variables
        self._local = {id(v) for v in ([given] if isinstance(given, tf.Variable | keras.Variable) else given)}

    def register_local_var(self, var: Any) -> None:
        """Leaves a variable as it is on each rank."""
        self._local.add(id(var))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.broadcast_done:
            return
        model: Any = self.model
        own = [*model.variables, *(model.optimizer.variables if model.optimizer is not None else ())]
        left = self._local | {id(variable) for variable in model.metrics_variables}
        broadcast_variables([v for v in {id(v): v for v in own}.values() if id(v) not in left], self.root_rank)
        self.broadcast_done = True


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Averages what an epoch logs over the ranks; callbacks that go by it stand after this one."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        names = sorted(name for name, value in (logs or {}).items() if np.ndim(value) == 0)
        if logs and names:
            own = tf.constant([float(logs[name]) for name in names], tf.float64)
            logs.update(zip(names, hvd.allreduce(own, name="whaleish.metrics").numpy().tolist(), strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate to `initial_lr * multiplier(epoch)` from `start_epoch` on, until before `end_epoch`.

    With `staircase` at the beginning of an epoch; else for each batch, where the epoch is a fraction: epoch + batch /
    steps_per_epoch. A constant multiplier m is m ** (epoch - start_epoch). Momentum is a constant in Keras 3's compiled
    step, so it is not corrected.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr: give the learning rate at the start")
        self.initial_lr, self.start_epoch, self.end_epoch = initial_lr, start_epoch, end_epoch
        self.staircase, self.momentum_correction, self.steps_per_epoch = staircase, momentum_correction, steps_per_epoch
        self.multiplier: Callable[[float], float] = (
            multiplier if callable(multiplier) else lambda epoch: float(multiplier ** (epoch - start_epoch))
        )
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if isinstance(self.model.optimizer._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            raise ValueError(
                f"{type(self).__name__}: the optimizer has a LearningRateSchedule, and this callback sets the rate by "
                "itself. Give the optimizer a number"
            )
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(f"{type(self).__name__}: give steps_per_epoch; how many there are is not known")
        optimizer: Any = self.model.optimizer
        if self.momentum_correction and getattr(optimizer, "momentum", None):
            _log.info("%s does not correct the momentum: Keras 3 has it as a constant", type(self).__name__)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        epoch = self.current_epoch
        if epoch < self.start_epoch or (self.end_epoch is not None and epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._set(epoch + batch / float(self.steps_per_epoch or 1))
        elif batch == 0:
            self._set(epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate.numpy())

    def _set(self, epoch: float) -> None:
        self.model.optimizer.learning_rate.assign(self.initial_lr * self.multiplier(epoch))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Has the learning rate grow from `initial_lr / size()` to `initial_lr` at the beginning (Goyal et al., 2017)."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            done = (epoch + 1.0 / float(self.steps_per_epoch or 1)) / warmup_epochs  # whole at the end of an epoch
            return float((done * (hvd.size() - 1) + 1) / hvd.size())

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0 and hvd.rank() == 0:
            rate = float(self.model.optimizer.learning_rate.numpy())
            print(f"\nEpoch {epoch + 1}: the learning rate has warmed up to {rate:g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]
    """`ModelCheckpoint(save_best_only=True)`; `filepath` is set by who uses it, as with Horovod."""

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: str = "best.keras",
    ) -> None:
        super().__init__(filepath, monitor, verbose, True, save_weights_only, mode, save_freq)


__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
