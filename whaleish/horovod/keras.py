"""`horovod.tensorflow.keras`, name for name, with Keras 3: `import whaleish.horovod.keras as hvd`."""

from typing import Any

import horovod.tensorflow as _horovod
import tensorflow as _tf

from whaleish.horovod import callbacks
from whaleish.horovod.mirrored import names, rest_of
from whaleish.horovod.optimizer import distributed_optimizer as DistributedOptimizer
from whaleish.horovod.variables import broadcast_variables

__getattr__ = rest_of(_horovod, __name__)

__all__ = ["DistributedOptimizer", "allgather", "allreduce", "broadcast", "broadcast_variables", "callbacks"]


def allreduce(value: Any, name: str | None = None, average: bool | None = None, **options: Any) -> Any:
    """What all ranks have, averaged or by `op`; the value of a variable or a number too."""
    return _horovod.allreduce(_tf.convert_to_tensor(value), average, name=name, **options)


def allgather(value: Any, name: str | None = None) -> Any:
    """What all ranks have, one after another."""
    return _horovod.allgather(_tf.convert_to_tensor(value), name=name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """What a rank has."""
    return _horovod.broadcast(_tf.convert_to_tensor(value), root_rank, name=name)


def __dir__() -> list[str]:
    return names(_horovod, globals())
