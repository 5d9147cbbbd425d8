"""`horovod.tensorflow`, name for name, with Keras 3: `import whaleish.horovod.tensorflow as hvd`."""

import horovod.tensorflow as _horovod

from whaleish.horovod.mirrored import names, rest_of
from whaleish.horovod.optimizer import distributed_optimizer as DistributedOptimizer
from whaleish.horovod.tape import distributed_gradient_tape as DistributedGradientTape
from whaleish.horovod.variables import broadcast_variables

__getattr__ = rest_of(_horovod, __name__)

__all__ = ["DistributedGradientTape", "DistributedOptimizer", "broadcast_variables"]


def __dir__() -> list[str]:
    return names(_horovod, globals())
