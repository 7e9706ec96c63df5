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
    3: Statement(
        "A dot product of two d_k-vectors of unit variance has variance d_k; dividing by sqrt(d_k) brings it to about 1.",
        "The variance of the scores inside the runtime, without and with the scale, must be d_k and 1 within four standard "
        "deviations of the estimate.",
    ),
    4: Statement(
        "Without the scale softmax becomes nearly one-hot, and gradients vanish.",
        "Largest weight, entropy and norm of softmax's Jacobian diag(p) - p p^T, means over the runtime's own rows, without "
        "and with the scale: without it the entropy must fall as d_k grows. In torch, a matrix is trained to recall one of "
        "64 keys: with the scale it must solve 9 items of 10, without it less than half.",
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
}  # fmt: skip
