"""Whether the softmax is safe: stability.md (NUMERICS.md section 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from onnx_attest.verify.records import AnyRecord, StabilityRecord
from onnx_attest.verify.report.formats import UNKNOWN, extreme, listed, number, ratio, share
from onnx_attest.verify.report.grouping import grouped, of_kind, subject, subject_on_runtime
from onnx_attest.verify.report.headroom import COLUMNS, headroom_table
from onnx_attest.verify.report.outcomes import shown_together
from onnx_attest.verify.report.reasons import NO_REASON
from onnx_attest.verify.report.tables import Column, fill, legend, page, to_markdown

Rows = Sequence[StabilityRecord]
Show = Callable[[float | None], str]


def stability(records: Iterable[AnyRecord]) -> str:
    """Return stability.md: by export and runtime, by logit deviation, where it breaks, and what the columns mean."""
    records = list(records)
    looked = of_kind(records, StabilityRecord)
    by_export = grouped(looked, subject_on_runtime).values()
    by_logits = sorted(grouped(filter(_has_rows, looked), _saturation).items(), key=lambda item: item[0])
    tables = (
        fill("By export and runtime", BY_EXPORT, by_export),
        fill("By logit deviation", BY_LOGITS, (group for _, group in by_logits), BY_LOGITS_NOTE),
        headroom_table(records),
    )
    return page(
        "Softmax stability",
        (
            *map(to_markdown, tables),
            f"## Legend\n\n{legend(_all_columns())}",
            f"### Where it breaks\n\n{legend(COLUMNS)}",
        ),
    )


def _all_columns() -> list[Column[Rows]]:
    return list({column.name: column for column in (*BY_EXPORT, *BY_LOGITS)}.values())


def _has_rows(record: StabilityRecord) -> bool:
    """Return whether anything was looked at; else the figures that cannot be None say nothing."""
    return record.rows > 0


def _saturation(record: StabilityRecord) -> tuple[str, str, str, float]:
    """Return the key of the second table; unscaled inputs (no deviation known) sort first."""
    deviation = record.case.logit_std
    return record.model, record.dtype, record.runtime, -1.0 if deviation is None else deviation


def _figure(field: str, pick: Callable[[list[float]], float], show: Show = number) -> Callable[[Rows], str]:
    """Return how to show one field of several records, by its worst or its sum."""
    return lambda records: extreme((getattr(one, field) for one in records if _has_rows(one)), pick, show)


def _logit_std(records: Rows) -> str:
    deviation = records[0].case.logit_std
    return "unscaled" if deviation is None else f"{deviation:g}"


def _poison(records: Rows) -> str:
    """Return the worst answer, and in how many of the cases it was asked at all."""
    answers = [record.poison for record in records if _has_rows(record)]
    tried = [answer for answer in answers if answer != "not tried"]
    if not tried:
        return "not tried" if answers else UNKNOWN
    word = "differs" if "differs" in tried else tried[0]
    return f"{word} ({len(tried)}/{len(answers)} tried)"


def _reasons(records: Rows) -> str:
    return "; ".join(dict.fromkeys(one.reason or NO_REASON for one in records if one.verdict != "passed"))


BY_LOGITS_NOTE = (
    "Over all variants of the model. With a larger logit deviation p_max goes to 1, the entropy to 0, and the margin "
    "before exp overflows shrinks. What was skipped looked at no rows and is in the first table only."
)
_MODEL: Column[Rows] = Column("model", "name of the module", lambda records: records[0].model)
_DTYPE: Column[Rows] = Column("dtype", "floating dtype of the graph", lambda records: records[0].dtype)
_RUNTIME: Column[Rows] = Column("runtime", "what executed the file", lambda records: records[0].runtime)
_VERDICT: Column[Rows] = Column(
    "verdict", "of all cases; known failures do not count but are named", shown_together
)
_ROWS: Column[Rows] = Column("rows", "softmax rows looked at", _figure("rows", sum))
_OVER_LIMIT: tuple[Column[Rows], ...] = (
    Column("row-sum/limit", "row-sum error over its limit", _figure("row_sum_err_over_limit", max, ratio)),
    Column(
        "weight/limit",
        "largest relative weight error over its limit",
        _figure("weight_err_over_limit", max, ratio),
    ),
    Column(
        "KL/limit",
        "KL divergence of the renormalised weights over its limit",
        _figure("kl_over_limit", max, ratio),
    ),
)
_SATURATION: tuple[Column[Rows], ...] = (
    Column("p_max", "largest weight of a row; at 1 the row is saturated", _figure("p_max", max, share)),
    Column("min entropy", "smallest entropy of a row, in nats", _figure("entropy_min", min)),
    Column("min keys", "smallest effective number of keys, e^entropy", _figure("effective_keys_min", min)),
    Column(
        "min margin",
        "ln(largest number of the dtype) less the largest logit before the shift; below 0 exp overflows without it",
        _figure("overflow_margin", min),
    ),
    Column(
        "exp flushed",
        "weights that are exactly 0 although the true weight is not",
        _figure("exp_flushed", sum),
    ),
)
BY_EXPORT: tuple[Column[Rows], ...] = (
    _MODEL,
    Column("variant", "form of the graph", lambda records: records[0].variant),
    Column("opset", "opset of the file", lambda records: subject(records[0]).opset),
    _DTYPE,
    _RUNTIME,
    _VERDICT,
    _ROWS,
    Column("finite", "smallest part of a case's rows that is finite", _figure("finite_ratio", min, share)),
    Column(
        "row-sum err (u)", "largest |sum of weights - 1| in unit roundoffs", _figure("row_sum_err_u", max)
    ),
    *_OVER_LIMIT,
    Column(
        "LSE/limit",
        "log-sum-exp error over its limit; n/a: logits not seen",
        _figure("lse_err_over_limit", max, ratio),
    ),
    *_SATURATION,
    Column("mask leak", "largest sum of the weights on masked keys; should be 0", _figure("mask_leak", max)),
    Column("poison", "outputs with huge masked keys and values: bitwise the same, or not", _poison),
    Column(
        "source",
        "how the weights were seen",
        lambda records: listed(one.source for one in filter(_has_rows, records)),
    ),
    Column("reason", "why it did not pass", _reasons),
)
BY_LOGITS: tuple[Column[Rows], ...] = (
    _MODEL,
    _DTYPE,
    _RUNTIME,
    Column("logit_std", "standard deviation that the logits were scaled to", _logit_std),
    _ROWS,
    *_SATURATION,
    Column("max logit", "largest logit before the shift", _figure("largest_logit", max)),
    Column("condition", "relative change of the output for one of the logits", _figure("condition", max)),
    *_OVER_LIMIT,
    _VERDICT,
)
