"""The records as one page that needs no network: report.html.

What a person reads first, and what is printed, is in the page as text. What belongs to single cells is in it as data,
and made visible when it is asked for: a page with a table for each of thousands of cells would not open.
"""

from __future__ import annotations

from onnx_attest.verify.report.html.page import html

__all__ = ["html"]
