"""Experiments on what becomes of the tokens: who sees whom, and in which order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from onnx_attest.models.catalogue import D_K, D_V
from onnx_attest.verify.claims import measures
from onnx_attest.verify.claims.laboratory import SCALED, TOKENS, Laboratory
from onnx_attest.verify.metamorphic.bases import taken
from onnx_attest.verify.metamorphic.evidence import Runner
from onnx_attest.verify.metamorphic.relation import Pair, Relation, Step
from onnx_attest.verify.records import ClaimRecord


def hull(laboratory: Laboratory) -> Iterator[ClaimRecord]:
    """Yield whether outputs stay within the range of the values, at several numbers of keys."""
    session = laboratory.open(laboratory.files.chapter(SCALED))
    for length in (1, 33, 257):
        inputs = laboratory.random(2, length, D_K)
        measured = measures.hull(session.run(inputs)["output"], inputs["V"], laboratory.fp32)
        yield laboratory.record(7, measured, f"{length} keys, d_k {D_K}, d_v {D_V}")


def reach(laboratory: Laboratory) -> Iterator[ClaimRecord]:
    """Yield which rows change with which token, without a mask and with a causal one."""
    rng = np.random.default_rng(laboratory.plan.seed)
    for name in ("self-attention", "causal"):
        artifact = laboratory.files.model(name)
        inputs = laboratory.tokens(artifact, 1)
        session = laboratory.open(artifact)
        plain = session.run(inputs)["output"]
        changed = np.zeros((TOKENS, TOKENS), bool)
        for token in range(TOKENS):
            other = inputs["X"].copy()
            other[:, token] += rng.standard_normal(other[:, token].shape).astype(np.float32)
            changed[:, token] = (session.run(inputs | {"X": other})["output"] != plain).any(axis=(0, 2))
        measured = measures.reach(changed, causal=name == "causal")
        yield laboratory.record(8, measured, "causal" if name == "causal" else "no mask", model=name)


def from_the_input(laboratory: Laboratory) -> Iterator[ClaimRecord]:
    """Yield how far the weights of two inputs are apart."""
    artifact = laboratory.files.chapter(SCALED)
    session, bounds = laboratory.open(artifact), laboratory.bounds(artifact)
    one, other = (laboratory.random(1, TOKENS, D_K, seed=seed) for seed in (0, 1))
    first, second, again = (session.run(inputs)["weights"] for inputs in (one, other, one))
    allowed = bounds(one)["weights"] + bounds(other)["weights"]
    measured = measures.from_the_input(first, second, again, allowed)
    series = {"weights of the first": first.ravel(), "weights of the second": second.ravel()}
    yield laboratory.record(9, measured, f"two inputs of {TOKENS} tokens", series=series)


def at_once(laboratory: Laboratory) -> Iterator[ClaimRecord]:
    """Yield whether permuted tokens give permuted rows, without a mask and with a causal one."""
    for name in ("self-attention", "causal"):
        artifact = laboratory.files.model(name)
        inputs = laboratory.tokens(artifact, 3)
        order = np.random.default_rng(laboratory.plan.seed).permutation(TOKENS)
        moved = inputs | {"X": np.ascontiguousarray(inputs["X"][:, order])}  # a mask that hides nothing stays
        rows = taken(order, axis=1)
        relation = Relation(
            "tokens-permuted", "rounding", (Step(inputs), Step(moved)), (Pair("output", before=rows),)
        )
        runner = Runner(laboratory.open(artifact).run, laboratory.bounds(artifact))
        measured = measures.in_any_order(runner.examine(relation), causal=name == "causal")
        yield laboratory.record(10, measured, "causal" if name == "causal" else "no mask", model=name)


def graph(laboratory: Laboratory) -> Iterator[ClaimRecord]:
    """Yield the weights of one input as edges, without a mask and with a causal one."""
    artifact = laboratory.files.chapter(SCALED)
    session = laboratory.open(artifact)
    inputs = laboratory.random(1, TOKENS, D_K)
    past = np.tril(np.ones((1, TOKENS, TOKENS), bool))
    for setting, mask in (("no mask", inputs["mask"]), ("causal mask", past)):
        weights = session.run(inputs | {"mask": mask})["weights"]
        measured = measures.edges(weights, mask, laboratory.fp32)
        exact = laboratory.exact(artifact, inputs | {"mask": mask}, "weights")
        series = {"weights": weights.ravel(), "exact weights": exact.ravel()}
        yield laboratory.record(11, measured, setting, series=series)
