"""What scopes come to: the plans of small real steps, and the moves that they need."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import whaleish as wh
from tests.products import either
from whaleish.capture import Capture, capture
from whaleish.cluster import Cluster
from whaleish.planner import Plan, make_plan
from whaleish.planner.moves import Move, find_moves
from whaleish.report.explain import without_rule
from whaleish.rewrite.expand import expand

layers = keras.layers


def planned(
    model: keras.Model, x: np.ndarray, scope: Callable[[], Any], optimizer: Any, size: int = 4
) -> tuple[Capture, Plan, list[Move]]:
    """The capture, the plan and the moves that send bytes, of a train step with the whole forward in a scope."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape, scope():
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    captured = capture(step, x, np.zeros(len(x), "int64"))
    plan = make_plan(captured.graph, Cluster(size))
    graph, expanded = expand(captured.graph, plan)
    return captured, plan, [m for m in find_moves(graph, expanded).values() if m.nbytes]


def kinds(moves: list[Move]) -> Counter[tuple[str, str]]:
    return Counter((m.source[0].kind, m.target[0].kind) for m in moves)


def mlp(*widths: int) -> keras.Model:
    return keras.Sequential([keras.Input((32,)), *(layers.Dense(w, activation="relu") for w in widths)])


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.1),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        lambda: keras.optimizers.AdamW(0.1),
        lambda: keras.optimizers.AdamW(0.1, global_clipnorm=1.0),
        lambda: keras.optimizers.Lion(0.1),
    ],
)
def test_replica_reduces_each_gradient_once(optimizer: Callable[[], Any]) -> None:
    model = mlp(64, 64, 8)
    _, plan, moves = planned(model, np.zeros((16, 32), "float32"), wh.replica, optimizer())
    assert kinds(moves) == {("P", "B"): len(model.trainable_variables) + 1}, "one for each weight, one for the loss"
    weights = sum(4 * int(np.prod(v.shape)) for v in model.trainable_variables)
    assert sum(m.nbytes for m in moves) == 2 * 3 * (weights + 4)
    assert all(layout[0].is_broadcast for _, layout in plan.variables)


def test_no_scope_is_replica() -> None:
    batch, plans = np.zeros((16, 32), "float32"), []
    for scope in (wh.replica, contextlib.nullcontext):
        keras.utils.clear_session()
        plans.append(planned(mlp(64, 8), batch, scope, keras.optimizers.SGD(0.1))[1])
    assert plans[0] == plans[1]


@pytest.mark.parametrize("size", [2, 4])
def test_two_dense_layers_become_column_then_row(size: int) -> None:
    captured, plan, _ = planned(
        mlp(64, 32), np.zeros((16, 32), "float32"), wh.split, keras.optimizers.SGD(0.1, momentum=0.9), size
    )
    kernels = [
        str(layout[0])
        for v, (_, layout) in zip(captured.graph.variables, plan.variables, strict=True)
        if v.shape in ((32, 64), (64, 32))
    ]
    assert kernels == ["S(1)", "S(0)"] * 2, "the kernels, then their momenta"


def test_split_classes_never_gather_logits() -> None:
    features, classes, batch = 32, 1000, 16
    captured, plan, moves = planned(
        keras.Sequential([keras.Input((features,)), layers.Dense(classes)]),
        np.zeros((batch, features), "float32"),
        wh.split,
        keras.optimizers.SGD(0.1),
    )
    logits_bytes = batch * classes * 4
    assert max(m.nbytes for m in moves) < logits_bytes / 4
    assert any(choice.expands for choice in plan.choices)
    sharded = {
        v.shape for v, (_, layout) in zip(captured.graph.variables, plan.variables, strict=True) if layout[0].is_split
    }
    assert sharded == {(features, classes), (classes,)}


def test_a_pinned_dim_is_obeyed() -> None:
    for dim in (0, 1, -1):
        captured, plan, _ = planned(
            mlp(64), np.zeros((16, 32), "float32"), lambda dim=dim: wh.split(dim=dim), keras.optimizers.SGD(0.1)
        )
        (layout,) = (
            layout[0]
            for v, (_, layout) in zip(captured.graph.variables, plan.variables, strict=True)
            if v.shape == (32, 64)
        )
        assert layout.dim == dim % 2


def test_synchronised_batch_norm_needs_two_reductions_each_way() -> None:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(4),
        ]
    )
    x = np.zeros((8, 8, 8, 3), "float32")
    _, _, moves = planned(model, x, wh.replica, keras.optimizers.SGD(0.1))
    weights = len(model.trainable_variables)
    assert kinds(moves) == {("P", "B"): weights + 1 + 2}, "gamma's and beta's serve the backward pass as well"
    keras.utils.clear_session()
    _, _, moves = planned(model, x, wh.local_statistics, keras.optimizers.SGD(0.1))
    assert sum(m.nbytes > 0 and m.reader >= 0 for m in moves) <= weights + 2, "weights, and two moving averages"


APPLICATIONS = ["ResNet50", "EfficientNetV2B0", "MobileNetV2", "MobileNetV3Small"]


@pytest.mark.parametrize("name", either(APPLICATIONS[1:2], APPLICATIONS))
def test_applications_have_a_rule_for_every_op_and_divide_the_work(name: str) -> None:
    """Capturing the big ones takes seconds; the plan is what is tested."""
    from whaleish.report.shares import shares

    model = getattr(keras.applications, name)(weights=None, input_shape=(32, 32, 3), classes=10)
    captured, plan, moves = planned(
        model, np.zeros((8, 32, 32, 3), "float32"), wh.replica, keras.optimizers.AdamW(0.1, global_clipnorm=1.0), 2
    )
    assert without_rule(captured.graph) == []
    assert set(kinds(moves)) == {("P", "B")}
    for share in shares(captured.graph, plan, once=False):
        assert share.flops <= 0.55 * share.step_flops


def test_every_product_is_divided_across_a_border_of_scopes() -> None:
    """Gradients arrive at the replicated part as sums; they are scattered before anything is multiplied by them."""
    from whaleish.planner.facts import HEAVY
    from whaleish.sbp import is_whole

    backbone, head = mlp(64, 48), keras.Sequential([keras.Input((48,)), layers.Dense(400)])
    variables = backbone.trainable_variables + head.trainable_variables

    def step(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            with wh.replica():
                features = backbone(x)
            with wh.split():
                logits = head(features)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        return tape.gradient(loss, variables)

    captured = capture(step, np.zeros((16, 32), "float32"), np.zeros(16, "int64"))
    plan = make_plan(captured.graph, Cluster(4))
    products = [c for op, c in zip(captured.graph.ops, plan.choices, strict=True) if op.type in HEAVY]
    assert len(products) == 3 + 5
    assert not any(is_whole(*choice.inputs, *choice.outputs) for choice in products)
