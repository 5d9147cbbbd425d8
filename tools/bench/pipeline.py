"""A transformer encoder over 4 hosts: its layers in 4 stages, against all of them on every rank."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import tensorflow as tf

from tools.bench import encoder
from tools.bench.contestant import Builders, Contestant
from tools.bench.encoder import BERT_BASE, Size

STAGES, MICRO_BATCHES, SCHEDULE = 4, 8, "1f1b"


def horovod(size: Size = BERT_BASE) -> Contestant:
    """Data parallel, as Horovod's documentation writes it."""
    import horovod.tensorflow as hvd

    layers = encoder.make(size)
    weights = encoder.weights_of(layers)
    x, y = encoder.rows_of(size, hvd.rank(), hvd.size())

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = encoder.loss_of(encoder.through(layers, x), y)
        encoder.update(weights, hvd.DistributedGradientTape(tape).gradient(loss, weights))
        return hvd.allreduce(loss, name="pipeline_loss")

    return Contestant(lambda: float(step(x, y)))


def tensorflow_alone(size: Size = BERT_BASE) -> Contestant:
    """All layers in the process of rank 0, while the others wait: what a step computes."""
    if os.environ.get("HOROVOD_RANK", "0") != "0":
        return Contestant(lambda: 0.0)
    layers = encoder.make(size)
    weights = encoder.weights_of(layers)
    x, y = encoder.data(size)

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = encoder.loss_of(encoder.through(layers, x), y)
        encoder.update(weights, tape.gradient(loss, weights))
        return loss

    return Contestant(lambda: float(step(x, y)))


def pytorch_alone(size: Size = BERT_BASE) -> Contestant:
    """The same in PyTorch."""
    import torch

    from tools.bench.encoder_torch import Layer

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    if os.environ.get("HOROVOD_RANK", "0") != "0":
        return Contestant(lambda: 0.0)
    module = torch.nn.Sequential(*(Layer(size, number) for number in range(size.layers)))
    optimizer = torch.optim.SGD(module.parameters(), lr=encoder.RATE)
    x, y = (torch.from_numpy(tensor.numpy()) for tensor in encoder.data(size))

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(module(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return Contestant(step)


def pytorch(size: Size = BERT_BASE) -> Contestant:
    """`torch.distributed.pipelining` with the same stages and schedule; here only where PyTorch can be imported."""
    import torch
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    from tools.bench.encoder_torch import Layer

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.distributed.init_process_group("gloo")
    rank, each = torch.distributed.get_rank(), size.layers // STAGES
    module = torch.nn.Sequential(*(Layer(size, number) for number in range(rank * each, (rank + 1) * each)))
    optimizer = torch.optim.SGD(module.parameters(), lr=encoder.RATE)
    stage = PipelineStage(module, rank, STAGES, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=torch.nn.functional.mse_loss)
    x, y = (torch.from_numpy(tensor.numpy()) for tensor in encoder.data(size))

    def step() -> float:
        losses: list[Any] = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == STAGES - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        torch.distributed.broadcast(loss, STAGES - 1)
        return float(loss)

    return Contestant(step)


def whaleish(size: Size = BERT_BASE) -> Contestant:
    """`pipeline` round `stage`s of as many layers each."""
    import whaleish as wh

    wh.init()
    return staged(size, STAGES, MICRO_BATCHES, SCHEDULE)


def staged(size: Size, stages: int, micro_batches: int, schedule: str) -> Contestant:
    """The layers in stages of as many each, on the devices of `wh.init()`."""
    import whaleish as wh

    layers = encoder.make(size)
    weights = encoder.weights_of(layers)
    each = size.layers // stages
    x, y = encoder.data(size)

    @wh.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            with wh.pipeline(micro_batches=micro_batches, schedule=schedule):
                h = x
                for first in range(0, size.layers, each):
                    with wh.stage():
                        h = encoder.through(layers[first : first + each], h)
            loss = encoder.loss_of(h, y)
        encoder.update(weights, tape.gradient(loss, weights))
        return loss

    return Contestant(lambda: float(step(x, y)))


PEERS: Builders = {"pytorch alone": pytorch_alone, "pytorch": pytorch}
BUILDERS: Builders = {
    "tensorflow alone": tensorflow_alone,
    "horovod": horovod,
    **(PEERS if importlib.util.find_spec("torch") else {}),
    "whaleish": whaleish,
}
