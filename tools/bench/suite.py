"""The benchmarks, and what is asked of them."""

from __future__ import annotations

from tools.bench.contestant import Benchmark, Target

CLASSIFIER = Benchmark(
    "classifier",
    "100,000 classes, 512 features, batch 64, SGD, 4 hosts at 1 Gbit/s",
    [
        Target(("plain", "seconds"), ("whaleish", "seconds"), 6.5, at_least=True),
        Target(("whaleish", "seconds"), ("by-hand", "seconds"), 1.10),
        Target(("whaleish", "sent"), ("whaleish", "promised"), 1.02),
        Target(("whaleish", "peak"), ("by-hand", "peak"), 1.15),
    ],
    steps=10,
    hosts=4,
    memory=True,
)
RESNET50 = Benchmark(
    "resnet50",
    "ResNet-50, 32 px, batch 32, SGD with momentum, data parallel, 2 hosts at 1 Gbit/s",
    [Target(("whaleish", "seconds"), ("horovod", "seconds"), 1.05)],
    steps=15,
    hosts=2,
)
ONE_PROCESS = Benchmark(
    "one-process",
    "ResNet-50, 32 px, batch 32, SGD with momentum, 2 virtual devices in one process",
    [Target(("whaleish", "seconds"), ("mirrored", "seconds"), 1.05)],
    steps=15,
    threads=(2, 2),
)
COMPILE = Benchmark(
    "compile",
    "compiling the AdamW step of ResNet-50, 32 px, for one rank of 2",
    [
        Target(("plan-emit-register", "seconds"), ("tensorflow", "seconds"), 0.6),
        Target(("plan-emit-register", "cpu"), ("tensorflow", "cpu"), 0.6),
    ],
    steps=1,
    warm=0,
    threads=(2, 2),
    processes=3,
)
EMBEDDING = Benchmark(
    "embedding",
    "a table of 1,000,000 x 64, batch of 4,096 ids by Zipf's law, SGD, 4 hosts at 1 Gbit/s",
    [
        Target(("dense", "seconds"), ("whaleish-sharded", "seconds"), 10, at_least=True),
        Target(("dense", "seconds"), ("whaleish", "seconds"), 10, at_least=True),
        Target(("whaleish", "seconds"), ("rows", "seconds"), 1.05),
        Target(("whaleish", "sent"), ("whaleish", "promised"), 1.10),
    ],
    steps=10,
    hosts=4,
)
PLANNING = Benchmark(
    "planning",
    "compiling transformers of 12 to 100 layers and ResNet-50, with AdamW",
    [
        Target(("ResNet-50: replica", "cpu"), None, 2),
        *(Target((f"100 layers: {scopes}", "cpu"), None, 10) for scopes in ("replica", "split", "2x2")),
        Target(("100 layers: 2x2", "cpu"), ("50 layers: 2x2", "cpu"), 2.2),
        Target(("100 layers: 2x2", "peak"), None, 2e9),
    ],
    steps=1,
    warm=0,
)
TRANSFORMER = Benchmark(
    "transformer",
    "a transformer block, 1024 wide, 4 sequences of 128, SGD, split over 2 virtual devices in one process",
    [
        Target(("whaleish", "seconds"), ("dtensor", "seconds"), 0.95),
        Target(("whaleish", "cpu"), ("single", "cpu"), 1.1),
    ],
    steps=30,
    threads=(2, 2),
)
ZERO = Benchmark(
    "zero",
    "the layers of BERT-base, 64 tokens, batch 16, AdamW; data parallel on 4 hosts at 1 Gbit/s",
    [
        *(
            Target((f"whaleish zero={zero}", "state"), ("horovod", "state"), limit)
            for zero, limit in ((1, 0.65), (2, 0.46), (3, 0.28))
        ),
        *(
            Target((f"whaleish zero={zero}", "seconds"), ("horovod", "seconds"), limit)
            for zero, limit in ((1, 1.05), (2, 1.05), (3, 1.6))
        ),
        *(Target((f"whaleish zero={zero}", "sent"), (f"whaleish zero={zero}", "promised"), 1.05) for zero in (1, 2, 3)),
    ],
    steps=4,
    warm=1,
    hosts=4,
    memory=True,
)
PIPELINE = Benchmark(
    "pipeline",
    "the layers of BERT-base, 64 tokens, batch 16, SGD; 4 stages and 8 micro-batches on 4 hosts at 250 Mbit/s",
    [
        Target(("horovod", "seconds"), ("whaleish", "seconds"), 2.32, at_least=True),
        Target(("whaleish", "peak"), ("horovod", "peak"), 0.6),
        Target(("whaleish", "seconds"), ("pytorch", "seconds"), 1.0, over=("tensorflow alone", "pytorch alone")),
    ],
    steps=3,
    warm=1,
    hosts=4,
    rate="250mbit",
    curve=("1gbit", "none", "100mbit"),
    memory=True,
)
PIPELINE_SCHEDULES = Benchmark(
    "pipeline-schedules",
    "a transformer of 4 layers, 512 wide, 48 sequences of 64, SGD; 4 micro-batches on 2 ranks with a core each",
    [
        Target((f"whaleish {schedule}", "seconds"), ("whaleish 1f1b", "seconds"), 1.0)
        for schedule in ("zb-h1", "interleaved(2)")
    ],
    steps=10,
    hosts=2,
    rate="none",
)
PIPELINE_RUNTIME = Benchmark(
    "pipeline-runtime",
    "sleeping chunks, 4 stages and 8 micro-batches on 4 virtual devices in one process",
    [
        *(
            Target((schedule, "seconds"), (f"{schedule}: timeline", "seconds"), 1.05)
            for schedule in ("1f1b", "zb-h1", "interleaved(2)")
        ),
        Target(("firing: the runtime", "seconds"), None, 0.0003),
    ],
    steps=1,
    warm=0,
    threads=(1, 4),
)
PIPELINE_TRANSFERS = Benchmark(
    "pipeline-transfers",
    "single transfers between two of 4 hosts at 250 Mbit/s, beside those of a bare socket",
    [Target((f"{size}: besides", "seconds"), None, 0.003) for size in ("4 kB", "393 kB", "4 MB")],
    steps=1,
    warm=0,
    hosts=4,
    rate="250mbit",
)
CHECKPOINT = Benchmark(
    "checkpoint",
    "a checkpoint of variables in parts (WHALEISH_BENCH_CHECKPOINT_MB, 256 MB), 4 hosts at 1 Gbit/s, one disk",
    [
        Target(("gathered", "seconds"), ("whaleish", "seconds"), 3.0, at_least=True),
        Target(("asynchronous", "seconds"), ("whaleish", "seconds"), 0.5),
        Target(("a save meanwhile, 20 steps", "seconds"), ("a save, 20 steps", "seconds"), 1.0),
        Target(("whaleish", "sent"), ("gathered", "sent"), 0.01),
    ],
    steps=1,
    warm=0,
    hosts=4,
)
RECOMPUTE = Benchmark(
    "recompute",
    "a transformer encoder of 6 layers, 256 wide, 32 sequences of 128, SGD; each layer made again for the backward",
    [
        Target(("whaleish-recompute", "peak"), ("whaleish", "peak"), 0.7),
        Target(("whaleish-recompute", "cpu"), ("whaleish", "cpu"), 1.35),
        Target(("whaleish-recompute", "seconds"), ("whaleish", "seconds"), 1.35),
    ],
    steps=5,
    warm=1,
    threads=(2, 2),
    memory=True,
)
SUITE = {
    benchmark.name: benchmark
    for benchmark in (
        CLASSIFIER,
        EMBEDDING,
        RESNET50,
        ONE_PROCESS,
        TRANSFORMER,
        ZERO,
        PIPELINE,
        PIPELINE_SCHEDULES,
        PIPELINE_RUNTIME,
        PIPELINE_TRANSFERS,
        CHECKPOINT,
        RECOMPUTE,
        COMPILE,
        PLANNING,
    )
}
