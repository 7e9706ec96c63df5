"""Records in, reports out: Markdown for people, CSV for machines."""

from __future__ import annotations

from onnx_attest.verify.report.folder import write_reports
from onnx_attest.verify.report.views import render

__all__ = ["render", "write_reports"]
