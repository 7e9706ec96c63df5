"""What the chapter says, by its numbers, and what is measured of it."""

from __future__ import annotations

from typing import NamedTuple


class Statement(NamedTuple):
    """A statement of the chapter.

    Attributes:
        says: the statement.
        shown: what the experiment shows, and when it passes.
    """

    says: str
    shown: str


CLAIMS = "the chapter's claims"
"""What records and known.toml call the experiments, where an artifact has a model's name."""

STATEMENTS = {
    1: Statement(
        "Entry (i, j) of Q K^T is the dot product of query i and key j; a larger one means closer directions.",
        "The scores are taken from inside the runtime, where its softmax reads them, and held against q.k / sqrt(d_k) in "
        "float64 with its rounding bound. With vectors of length 1, the key with the highest score must be the one at the "
        "smallest angle, for every query.",
    ),
    2: Statement(
        "The cost grows as n^2.",
        "Time and memory of one head of width 64 at lengths up to 2896, written out (products, softmax, products) and fused "
        "(one Attention operator; in torch scaled_dot_product_attention). Time is the fastest of the warm calls, memory what "
        "one call holds at once beyond the session and its inputs, by the resident size of the runtime's process. An exponent "
        "is fitted to each on logarithms, with its interval of 95 %. It passes if the whole interval is nearer to 2 than to "
        "any other whole number, and for the memory of the fused form, which need not hold the scores, if it is nearer to 1 "
        "or below; score_matrices says how many of them a call holds at the longest length. A runtime may do otherwise and a "
        "clock is never exact: what is not as expected is said, and is no failure.",
    ),
    3: Statement(
        "A dot product of two d_k-vectors of unit variance has variance d_k; dividing by sqrt(d_k) brings it to about 1.",
        "The variance of the scores inside the runtime, without and with the scale, must be d_k and 1 within four standard "
        "deviations of the estimate.",
    ),
    4: Statement(
        "Without the scale softmax becomes nearly one-hot, and gradients vanish.",
        "Over the runtime's own rows, without and with the scale: largest weight and entropy, and the norm of softmax's "
        "Jacobian diag(p) - p p^T, through which every gradient passes. Its mean is that of the few rows in which two keys are "
        "level, its median that of a usual row. Without the scale, from each d_k to the next, the largest weight must rise, "
        "and the entropy and the median must fall. In torch, a matrix is trained to recall one of 64 keys: with the scale it "
        "must solve 9 items of 10, without it less than half.",
    ),
    5: Statement(
        "Each row of the weights sums to 1.",
        "The largest error of a row sum in units of roundoff, beside its bound.",
    ),
    6: Statement(
        "exp overflows for large scores; subtracting the row's maximum prevents it.",
        "The softmax without the maximum is run at growing scores until a row is NaN or no longer sums to 1. Predicted from "
        "the format that the exponentials are seen to be kept in: ln(largest number) for one large score, less ln(keys) where "
        "all are equal and their sum overflows first (the weights are then 0, not NaN). Measured and predicted must agree "
        "within 1 %, and the stable softmax must hold at twice that score. A runtime that never breaks has rewritten the "
        "naive form.",
    ),
    7: Statement(
        "Each output is a weighted average of all values, with size d_v.",
        "The output lies between the smallest and the largest value of each feature; beyond it by no more than the rounding "
        "of the sums, 2 gamma_n max|V|.",
    ),
    8: Statement(
        "Every token sees every token.",
        "One input row is changed at a time: without a mask every output row must change, with a causal one every row from "
        "that position on, and no bit before it.",
    ),
    9: Statement(
        "The weights are computed from the input, not fixed.",
        "The weights of two random inputs: every row must differ by more than rounding can make of equal weights, which is "
        "the sum of both bounds. The first input once more must give the same weights within it.",
    ),
    10: Statement(
        "All tokens are computed at once, not one after another.",
        "Tokens in another order must give the rows in that order, within the sum of the bounds of both runs; the note says "
        "whether bit by bit, and other_bits is the share of the numbers that are not. A causal mask says who comes after whom: with it, this must not hold.",
    ),
    11: Statement(
        "Attention is a dynamic graph: tokens are nodes, weights are edges.",
        "The weights of one random input as a heat map and as a graph. Every token must have an edge to every token that the "
        "mask shows and to no other, and what leaves a token must sum to 1.",
    ),
}  # fmt: skip


def markdown() -> str:
    """Return docs/claims.md."""
    opening = (
        "The chapter that this project starts from takes softmax(Q K^T / sqrt(d_k)) V apart. Each of its statements is an "
        "experiment: the chapter's modules are exported and run on every runtime, and what comes out is measured. "
        "`onnx-attest run` does it where `sdpa` is among the models (`--claims/--no-claims`), and writes `claims.md` with "
        "the numbers, `claims.csv`, and `pictures/`. A statement that is refuted fails the run."
    )
    parts = ["# The chapter's statements", opening]
    for number, statement in STATEMENTS.items():
        parts += [f"## {number}. {statement.says}", statement.shown]
    return "\n\n".join(parts) + "\n"
