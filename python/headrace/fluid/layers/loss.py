"""Losses of a prediction, element by element unless said otherwise."""

from __future__ import annotations

from typing import Any

from headrace.fluid.framework import Variable
from headrace.fluid.layer_helper import append_layer

__all__ = ["hinge_loss", "huber_loss", "label_smooth", "log_loss", "margin_rank_loss", "rank_loss", "smooth_l1"]


def log_loss(input: Variable, label: Variable, epsilon: float = 1e-4, name: str | None = None) -> Variable:
    """-label · log(input + epsilon) - (1 - label) · log(1 - input + epsilon), for probabilities ``input``."""
    inputs = {"Predicted": input, "Labels": label}
    return append_layer("log_loss", inputs, {"epsilon": float(epsilon)}, out_slot="Loss", name=name)


def hinge_loss(input: Variable, label: Variable, name: str | None = None) -> Variable:
    """max(0, 1 - (2 · label - 1) · input), for labels of 0 and 1."""
    return append_layer("hinge_loss", {"Logits": input, "Labels": label}, out_slot="Loss", name=name)


def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """With r = label - input: r² / 2 where |r| ≤ delta, else delta · (|r| - delta / 2)."""
    return append_layer("huber_loss", {"X": input, "Y": label}, {"delta": float(delta)}, intermediate="Residual")


def rank_loss(label: Variable, left: Variable, right: Variable, name: str | None = None) -> Variable:
    """log(1 + exp(o)) - label · o, with o = left - right; ``label`` is how probable it is that left ranks first."""
    return append_layer("rank_loss", {"Label": label, "Left": left, "Right": right}, name=name)


def margin_rank_loss(
    label: Variable, left: Variable, right: Variable, margin: float = 0.1, name: str | None = None
) -> Variable:
    """max(0, margin - label · (left - right)); ``label`` is 1 where left should rank first, else -1."""
    inputs = {"X1": left, "X2": right, "Label": label}
    return append_layer("margin_rank_loss", inputs, {"margin": float(margin)}, intermediate="Activated", name=name)


def label_smooth(
    label: Variable,
    prior_dist: Variable | None = None,
    epsilon: float = 0.1,
    dtype: Any = "float32",
    name: str | None = None,
) -> Variable:
    """(1 - epsilon) · label + epsilon · prior, for soft labels [..., classes].

    Args:
        prior_dist: [1, classes]; None: uniform.
        dtype: Fluid's; the result has that of ``label``.
    """
    inputs = {"X": label} if prior_dist is None else {"X": label, "PriorDist": prior_dist}
    return append_layer("label_smooth", inputs, {"epsilon": float(epsilon)}, name=name)


def smooth_l1(
    x: Variable,
    y: Variable,
    inside_weight: Variable | None = None,
    outside_weight: Variable | None = None,
    sigma: float | None = None,
) -> Variable:
    """The sum over each row of outside_weight · f(inside_weight · (x - y)); [rows, 1]. f(d) is sigma² d² / 2 where
    |d| < 1 / sigma², else |d| - 1 / (2 sigma²). Weights are 1 by default, as is ``sigma``.
    """
    inputs = {"X": x, "Y": y}
    if inside_weight is not None:
        inputs["InsideWeight"] = inside_weight
    if outside_weight is not None:
        inputs["OutsideWeight"] = outside_weight
    attrs = {"sigma": 1.0 if sigma is None else float(sigma)}
    return append_layer("smooth_l1_loss", inputs, attrs, intermediate="Diff")
