"""One rank of a pool: runs the functions that the harness sends it, until the harness is gone."""

import ctypes
import faulthandler
import gc
import multiprocessing.connection
import os
import signal
import sys
import traceback

import cloudpickle

PR_SET_PDEATHSIG = 1


def main(address: str) -> None:
    # The harness asks for every thread's stack before it kills a rank that overstays.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    # An idle rank is stopped, and would not see the harness end: it ends with mpirun, whatever state it is in.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    connection = multiprocessing.connection.Client(address, authkey=bytes.fromhex(os.environ["WHALEISH_POOL_KEY"]))
    rank = start()
    gc.freeze()  # what TensorFlow made is here to stay; without this every collection walks it, half a second a call
    connection.send((rank, os.getpid()))
    while True:
        try:
            message = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(0)  # the harness has ended; a collective that another thread waits in must not keep this alive
        answer = work(message)
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send_bytes(answer)


def start() -> int:
    """Bring up TensorFlow and Horovod, as a user's program does; returns the rank."""
    import horovod.tensorflow as hvd

    import whaleish

    if hasattr(whaleish, "init"):
        whaleish.init()
    else:
        hvd.init()
    rank: int = hvd.rank()
    return rank


def work(message: bytes) -> bytes:
    """Run one pickled (function, args, kwargs); the answer is (True, result) or (False, what was raised)."""
    try:
        import keras

        import whaleish

        keras.utils.clear_session()  # layer names count from 0 again, as in a program of its own
        whaleish.init()  # again: Keras has taken the variable creator away
        function, args, kwargs = cloudpickle.loads(message)
        return cloudpickle.dumps((True, function(*args, **kwargs)))
    except BaseException as error:
        text = traceback.format_exc()
        failure = (type(error).__name__, str(error), text, "shut down" in text or not horovod_is_up())
        return cloudpickle.dumps((False, failure))


def horovod_is_up() -> bool:
    import horovod.tensorflow as hvd

    return bool(hvd.is_initialized())


if __name__ == "__main__":
    main(sys.argv[1])
