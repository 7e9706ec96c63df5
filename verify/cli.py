"""The command line: each command checks its arguments, calls one library function and prints what came back.

What a command needs is imported inside it, so that `--help` answers at once and never imports torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnx_attest import __version__
from onnx_attest.errors import UsageError
from onnx_attest.verify import console

if TYPE_CHECKING:
    from onnx_attest.models.entry import Entry
    from onnx_attest.verify.engine import Plan

app = typer.Typer(
    name=console.PROGRAM,
    help="Verify that an ONNX file computes what its PyTorch module computes, on every runtime.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Seed = Annotated[int, typer.Option(help="Seed of all made inputs.")]
Runtimes = Annotated[
    list[str] | None, typer.Option("--runtime", help="A runtime to use (repeatable); all by default.")
]
Require = Annotated[
    list[str] | None,
    typer.Option("--require", help="A runtime without which nothing is proven: exit 3 (repeatable)."),
]
KnownFile = Annotated[Path | None, typer.Option("--known", help="A TOML file of further known failures.")]
FailFast = Annotated[
    bool, typer.Option("--fail-fast", help="Stop an artifact at its first unexpected failure.")
]
# More threads than any machine has cores for is a slip, and ONNX Runtime tries to start them all.
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of each runtime.")]
LISTED = ("--input-shapes",)


def _version(value: bool) -> None:
    if value:
        console.show(f"{console.PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the reports.")] = Path(
        "reports/latest"
    ),
    model: Annotated[
        list[str] | None, typer.Option("--model", help="A model (repeatable); all by default.")
    ] = None,
    variant: Annotated[list[str] | None, typer.Option("--variant", help="A variant (repeatable).")] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", help="A dtype of the graphs (repeatable); float32 and float16 by default."),
    ] = None,
    runtime: Runtimes = None,
    require: Require = None,
    known: KnownFile = None,
    seed: Seed = 0,
    threads: Threads = None,
    jobs: Annotated[
        int | None,
        typer.Option("-j", "--jobs", min=1, help="Models verified at a time; one a core by default."),
    ] = None,
    claims: Annotated[
        bool | None,
        typer.Option(
            "--claims/--no-claims",
            help="Test the chapter's statements; by default if sdpa is among the models.",
        ),
    ] = None,
    latency: Annotated[bool, typer.Option(help="Time what was verified.")] = True,
    fail_fast: FailFast = False,
    json: Json = False,
) -> None:
    """Export, verify and time the catalogue; write reports."""
    from onnx_attest.export.api import DTYPES, OPSETS
    from onnx_attest.models import catalogue, resolve
    from onnx_attest.verify.job import Job, run_job

    _refuse_unknown("variant", variant, OPSETS)
    _refuse_unknown("dtype", dtype, DTYPES)
    plan = _plan(runtime, require, known, seed, threads, fail_fast)
    with console.progress() as step:
        entries = [resolve(name) for name in model] if model else list(catalogue().values())
        job = Job(
            entries,
            plan,
            output,
            tuple(variant or ()),
            tuple(dtype or ("float32", "float16")),
            tuple(require or ()),
            claims,
            latency,
            jobs,
            step,
        )
        records = run_job(job)
    _finish(records, json, f"The reports are in {output}.")


@app.command()
def export(
    model: Annotated[
        str | None, typer.Argument(help="A catalogue name, file.py:factory or package.module:factory.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the files.")] = Path(),
    variant: Annotated[list[str] | None, typer.Option("--variant", help="A variant (repeatable).")] = None,
    opset: Annotated[int | None, typer.Option(min=1, help="An opset instead of the variant's own.")] = None,
    dtype: Annotated[str, typer.Option(help="Floating dtype of the graph.")] = "float32",
    list_: Annotated[bool, typer.Option("--list", help="List the catalogue.")] = False,
    json: Json = False,
) -> None:
    """Export a module, and compare what came out with what was asked."""
    if list_:
        _list_models(json)
        return
    if model is None:
        raise UsageError(
            "name a model: a catalogue name (see --list), path/to/file.py:factory or package.module:factory"
        )
    from onnx_attest.models import resolve
    from onnx_attest.verify.exported import export_and_compare

    with console.progress():
        results = export_and_compare(resolve(model), output, tuple(variant or ()), opset, dtype)
    if json:
        console.show_json(results.as_object())
    else:
        console.show(results.as_text())
    raise typer.Exit(results.exit_code)


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="The ONNX file; its manifest is found beside it.")],
    against: Annotated[
        str | None,
        typer.Option(
            help="The module it is to compute, as for `export`, or the .onnx file it was made from."
        ),
    ] = None,
    runtime: Runtimes = None,
    require: Require = None,
    input_shapes: Annotated[
        list[str] | None,
        typer.Option("--input-shapes", help="Sizes instead of the sweep: x:[2,128,512] (several)."),
    ] = None,
    load_inputs: Annotated[
        Path | None,
        typer.Option("--load-inputs", help="Inputs: an .npz, a test_data_set folder, or file.py:function."),
    ] = None,
    session_option: Annotated[
        list[str] | None,
        typer.Option("--session-option", help="Of the ONNX Runtime session: key=value (repeatable)."),
    ] = None,
    custom_ops: Annotated[
        list[str] | None,
        typer.Option("--custom-ops", help="A library of ONNX Runtime operators (repeatable)."),
    ] = None,
    time_budget: Annotated[
        float | None,
        typer.Option("--time-budget", min=0, help="Seconds after which no further case is begun."),
    ] = None,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Also cross-check the deviations by injecting noise.")
    ] = False,
    arithmetic: Annotated[
        str | None, typer.Option(help="Declared arithmetic, instead of the manifest's.")
    ] = None,
    atol: Annotated[float | None, typer.Option(help="An extra gate beside the bound, with --rtol.")] = None,
    rtol: Annotated[float | None, typer.Option(help="An extra gate beside the bound, with --atol.")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write reports to this folder.")
    ] = None,
    known: KnownFile = None,
    seed: Seed = 0,
    threads: Threads = None,
    fail_fast: FailFast = False,
    json: Json = False,
) -> None:
    """Verify one ONNX file on every runtime."""
    from dataclasses import replace

    from onnx_attest.export.artifact import read_artifact
    from onnx_attest.verify import api
    from onnx_attest.verify.inputs import load_inputs as load
    from onnx_attest.verify.inputs import parse_options, parse_shapes
    from onnx_attest.verify.report.folder import refuse_unwritable
    from onnx_attest.verify.runtimes.registry import with_session
    from onnx_attest.verify.signature import read_signature

    plan = _plan(runtime, require, known, seed, threads, fail_fast)
    plan = replace(
        plan,
        runtimes=with_session(plan.runtimes, parse_options(session_option or ()), custom_ops or ()),
        arithmetic=arithmetic,
        atol=atol,
        rtol=rtol,
        time_budget_s=time_budget,
        thorough=thorough,
    )
    artifact = read_artifact(file)
    if output is not None:
        refuse_unwritable(output)
    inputs = load(load_inputs, read_signature(artifact)) if load_inputs else None
    with console.progress() as step:
        report = api.verify(
            artifact,
            require=require or (),
            against=_entry(against),
            input_shapes=parse_shapes(input_shapes) if input_shapes else None,
            inputs=inputs,
            plan=replace(plan, on_step=lambda taken: step(str(taken))),
        )
    if output is not None:
        report.save(output)
    _finish(report.records, json, f"The reports are in {output}." if output else "")


@app.command()
def power(
    file: Annotated[Path, typer.Argument(help="The ONNX file; its manifest is found beside it.")],
    runtime: Annotated[str, typer.Option(help="The runtime that the mutants run on.")] = "ort-cpu",
    arithmetic: Annotated[
        str | None, typer.Option(help="Declared arithmetic, instead of the runtime's own.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write reports to this folder.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Inject faults into a file, and report which of them a verification would catch."""
    from onnx_attest.export.artifact import read_artifact
    from onnx_attest.verify.power.job import run_power
    from onnx_attest.verify.report import render, write_reports
    from onnx_attest.verify.report.folder import refuse_unwritable

    artifact = read_artifact(file)
    if output is not None:
        refuse_unwritable(output)
    with console.progress() as step:
        done = run_power(artifact, runtime, arithmetic=arithmetic, seed=seed, on_step=step)
    if output is not None:
        write_reports(done.records, output)
    if json:
        console.show_json(done.as_object())
    else:
        note = f"\nThe reports are in {output}." if output else ""
        console.show(render(done.records)["power.md"] + note)
    raise typer.Exit(done.exit_code)


@app.command()
def report(
    records: Annotated[Path, typer.Argument(help="A records.jsonl, or the folder that holds one.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder to write all reports to.")
    ] = None,
    view: Annotated[str, typer.Option(help="The view to print.")] = "summary.md",
) -> None:
    """Make the reports again from records."""
    from onnx_attest.verify.records import read_records
    from onnx_attest.verify.report import render, write_reports

    read = read_records(records)
    views = render(read)
    if view not in views:
        raise UsageError(f"unknown view {view!r}; there are {', '.join(views)}")
    if output is None:
        console.show(views[view])
        return
    artifacts = records / "artifacts" if records.is_dir() else records.parent / "artifacts"
    same = artifacts.is_dir() and artifacts.parent.resolve() == output.resolve()
    write_reports(read, output, artifacts if same else None)
    console.show(f"The reports are in {output}.")


@app.command()
def explain(
    code: Annotated[
        str | None, typer.Argument(help="A finding code such as OA401; all of them if none is given.")
    ] = None,
    json: Json = False,
) -> None:
    """Say what a finding code means and what to do about it."""
    from onnx_attest.verify import findings

    if code is None:
        pages = list(findings.CODES.values())
        text = "\n".join(f"{page.code}  {page.severity:8} {page.title}" for page in pages)
    else:
        pages = [findings.explain(code)]
        text = findings.page(pages[0])
    console.show_json({"codes": [vars(page) for page in pages]}) if json else console.show(text)


@app.command()
def doctor(json: Json = False) -> None:
    """Say which runtimes work here, and why others do not."""
    from onnx_attest.verify.doctor import as_text, conflicts, diagnose
    from onnx_attest.verify.runtimes.registry import RUNTIMES

    found, wrong = diagnose(RUNTIMES), conflicts()
    if json:
        console.show_json({"runtimes": [vars(item) for item in found], "conflicts": wrong})
    else:
        console.show(as_text(found, wrong))
    raise typer.Exit(1 if wrong else 0)


def _plan(
    runtime: list[str] | None,
    require: list[str] | None,
    known: Path | None,
    seed: int,
    threads: int | None,
    fail_fast: bool,
) -> Plan:
    from onnx_attest.verify.engine import Plan
    from onnx_attest.verify.known import built_in, read_known
    from onnx_attest.verify.runtimes.registry import select

    select(tuple(require or ()))  # a name that does not exist is said even where all runtimes are used
    return Plan(
        runtimes=select((*runtime, *(require or ()))) if runtime else select(),
        known=read_known(known) if known else built_in(),
        seed=seed,
        threads=threads,
        fail_fast=fail_fast,
    )


def _entry(reference: str | None) -> Entry | str | None:
    """Return the entry of a module, or the name of an ONNX file as it is."""
    if reference is None or reference.endswith(".onnx"):
        return reference
    from onnx_attest.models import resolve

    return resolve(reference)


def _refuse_unknown(kind: str, given: list[str] | None, known: Iterable[str]) -> None:
    unknown = [name for name in given or () if name not in known]
    if unknown:
        raise UsageError(f"unknown {kind} {', '.join(unknown)}; there are {', '.join(known)}")


def _list_models(json: bool) -> None:
    from onnx_attest.models import catalogue

    entries = catalogue()
    if json:
        listed = [{"name": e.name, "summary": e.summary, "variants": e.variants} for e in entries.values()]
        console.show_json({"models": listed})
        return
    width = max(map(len, entries))
    console.show("\n".join(f"{entry.name:{width}}  {entry.summary}" for entry in entries.values()))


def _finish(records: Any, json: bool, note: str) -> None:
    from onnx_attest.verify.records import RunRecord
    from onnx_attest.verify.report import render

    if json:
        console.show_json(console.verdict_object(records))
    else:
        console.show(render(records)["summary.md"] + (f"\n{note}" if note else ""))
    raise typer.Exit(next(record.exit_code for record in records if isinstance(record, RunRecord)))


# typer keeps the base class of its parser's errors in a private module; BadParameter is public and two below it.
_CommandLineError: Any = typer.BadParameter.__mro__[2]
_INTERRUPTED = 130


def main() -> None:
    """Run a command and exit with its code; bad input ends in one line and 2, never in a traceback."""
    from onnx_attest.export.lower import ExportError
    from onnx_attest.verify.pages import keep_pages

    keep_pages()
    try:
        code = app(console.spread_lists(sys.argv[1:], LISTED), standalone_mode=False)
    except UsageError as error:
        console.fail(str(error), 2)
    except ExportError as error:
        console.fail(str(error), 1)
    except _CommandLineError as error:
        console.fail(f"{error.format_message()} (see {console.PROGRAM} --help)", 2)
    except OSError as error:  # of stdout in the parser's own --help, or of a temporary folder
        console.fail(f"{error.filename or 'the output'}: {error.strerror or error}; write it elsewhere", 2)
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    if code == _INTERRUPTED:  # the parser makes a code of the interruption, and says nothing
        console.fail("interrupted; what is written is whole, and no report is", _INTERRUPTED)
    raise SystemExit(code or 0)
