"""All mutants of a model: its correct rewritings, and one for each fault that each attention can have."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import onnx

from onnx_attest.verify.power import bias, layout, masks, precision, scale, softmax
from onnx_attest.verify.power.expand import UnopenableError, open_site
from onnx_attest.verify.power.fault import CLASSES, Fault, Inapplicable, Offer
from onnx_attest.verify.power.sites import Chain, Operator, Site, find_sites, untouched
from onnx_attest.verify.power.workbench import LOWEST_OPSET, Workbench
from onnx_attest.verify.records import CORRECT


@dataclass(frozen=True, eq=False)
class Mutant:
    """A model that differs from the file by one fault.

    Attributes:
        fault: its class, a key of CLASSES, or `none`.
        size: as it is asked for, None where a class has none.
        realised: where a constant had to be rounded to the file's dtype: the size that came out.
        label: for a report.
        node: the attention's name, "" where it is all of them.
        above_fp32: whether the size is one that float32 can tell from its own rounding.
        model: takes and gives what the file does.
    """

    fault: str
    size: float | None
    label: str
    node: str
    above_fp32: bool
    model: onnx.ModelProto
    realised: float | None = None


def mutants(
    model: onnx.ModelProto, *, traced_length: int | None = None, nodes: Collection[str] | None = None
) -> Iterator[Mutant]:
    """Yield the correct rewritings of a model, then each fault of each attention in it.

    Args:
        model: checked by `onnx.checker` before.
        traced_length: the number of keys that the file was traced with, None if it is not known.
        nodes: names of the attentions that get faults; all of them if None.
    """
    original = Workbench(model)
    sites = _sites(original)
    yield from _correct(original, sites)
    for site in sites:
        if nodes is None or site.name in nodes:
            yield from _of_site(original, site, traced_length)


def inapplicable(model: onnx.ModelProto, *, traced_length: int | None = None) -> dict[str, str]:
    """Return the classes that no attention of a model can have, each with the reason, several joined."""
    original = Workbench(model)
    sites = _sites(original)
    if not sites:
        return dict.fromkeys(CLASSES, _why_none(original))
    offered: set[str] = set()
    reasons: dict[str, dict[str, None]] = {}
    for site in sites:
        for item in _offers(original, site, traced_length):
            if isinstance(item, Fault):
                offered.add(item.kind)
            else:
                reasons.setdefault(item.kind, {})[item.reason] = None
    return {kind: "; ".join(reasons[kind]) for kind in CLASSES if kind in reasons and kind not in offered}


def _sites(original: Workbench) -> list[Site]:
    return find_sites(original) if original.opset >= LOWEST_OPSET else []


def _why_none(original: Workbench) -> str:
    if original.opset < LOWEST_OPSET:
        return f"the file is of opset {original.opset}; faults are written for {LOWEST_OPSET} and later"
    others = untouched(original)
    return f"{others[0]}, which is not taken apart" if others else "no attention was found in the graph"


def _correct(original: Workbench, sites: list[Site]) -> Iterator[Mutant]:
    """Yield the model with all its operators taken apart, and with every softmax written in another way."""
    if any(isinstance(site, Operator) for site in sites):
        bench = original.copy()
        opened = [_opened(bench, site) for site in sites]
        if any(opened):
            yield Mutant(CORRECT, None, "attention as several nodes", "", True, bench.finish())
    bench = original.copy()
    chains = [chain for chain in (_opened(bench, site) for site in sites) if chain is not None]
    for chain in chains:
        (softmax.as_operator() if chain.naive else softmax.in_steps()).apply(bench, chain)
    if chains:
        yield Mutant(CORRECT, None, "softmax written in another way", "", True, bench.finish())


def _opened(bench: Workbench, site: Site) -> Chain | None:
    try:
        return open_site(bench, site)
    except UnopenableError:
        return None


def _of_site(original: Workbench, site: Site, traced_length: int | None) -> Iterator[Mutant]:
    for fault in _offers(original, site, traced_length):
        if isinstance(fault, Fault):
            bench = original.copy()
            realised = fault.apply(bench, open_site(bench, site) if fault.opens else site)
            yield Mutant(
                fault.kind, fault.size, fault.label, site.name, fault.above_fp32, bench.finish(), realised
            )


def _offers(original: Workbench, site: Site, traced_length: int | None) -> Offer:
    """Yield each fault that one attention can have, and why it cannot have the others."""
    closed = _why_closed(original, site)
    for item in _all(original, site, traced_length):
        yield Inapplicable(item.kind, closed) if isinstance(item, Fault) and item.opens and closed else item


def _why_closed(original: Workbench, site: Site) -> str:
    try:
        open_site(original.copy(), site)
    except UnopenableError as error:
        return str(error)
    return ""


def _all(bench: Workbench, site: Site, traced_length: int | None) -> Offer:
    yield from scale.faults(bench, site)
    yield from masks.faults(bench, site, traced_length)
    yield from softmax.faults(isinstance(site, Chain) and site.naive)
    yield from layout.faults(bench, site)
    yield from precision.faults(bench, site)
    yield from bias.faults(bench, site)
