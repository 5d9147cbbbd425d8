"""The program that proves a Horovod: each rank contributes its number to sums, and checks and times the results.

Run on every rank: `horovodrun -np 2 --mpi python -m whaleish.launch.proof`.
"""

from __future__ import annotations

import sys
import time

SIZES = (1, 262_144)  # elements of float32: 4 bytes, and the 1 MB that stalls where Gloo meets a large loopback MTU


def main() -> int:
    """Sum over all ranks; prints one line from rank 0, and fails on any wrong sum."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    ranks = range(hvd.size())
    timings = []
    for size in SIZES:
        x = tf.fill([size], float(hvd.rank() + 1))
        seconds = []
        for _ in range(5):
            start = time.monotonic()
            result = hvd.allreduce(x, op=hvd.Sum, name=f"proof.{size}").numpy()
            seconds.append(time.monotonic() - start)
        expected = float(sum(rank + 1 for rank in ranks))
        if not (result == expected).all():
            print(
                f"rank {hvd.rank()}: the sum over {len(ranks)} ranks is {result[:4]}, not {expected}", file=sys.stderr
            )
            return 1
        timings.append(f"{size * 4} bytes {sorted(seconds)[2] * 1e3:.1f} ms")
    if hvd.rank() == 0:
        print(f"whaleish-proof: {len(ranks)} ranks agree; {'; '.join(timings)}", flush=True)
    hvd.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
