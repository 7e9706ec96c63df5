"""The command line: each command checks its arguments, calls one library function and prints what came back.

What a command needs is imported inside it, so that `--help` answers at once and never imports torch.
"""

from __future__ import annotations

import math
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onnx_attest import __version__
from onnx_attest.errors import UsageError
from onnx_attest.verify import console
from onnx_attest.verify.commands.compare import Baseline, beside_baseline, compare, read_baseline
from onnx_attest.verify.commands.convert import convert
from onnx_attest.verify.commands.deploy import deploy, replay
from onnx_attest.verify.commands.github import GithubSummary, append, step_summary
from onnx_attest.verify.commands.init import init
from onnx_attest.verify.commands.merge import merge
from onnx_attest.verify.commands.report import report

if TYPE_CHECKING:
    from onnx_attest.verify.engine import Plan
    from onnx_attest.verify.records import AnyRecord
    from onnx_attest.verify.runtimes.base import Runtime
    from onnx_attest.verify.task import Engine
    from onnx_attest.verify.workers.limits import Limits

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
    bool,
    typer.Option("--fail-fast/--no-fail-fast", help="Stop an artifact at its first unexpected failure."),
]
# More threads than any machine has cores for is a slip, and ONNX Runtime tries to start them all.
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="Threads of each runtime.")]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        help="Seconds after which a runtime's process is taken for hung and ended, and a tenth of a verification's step; "
        "300 by default.",
    ),
]
MemoryLimit = Annotated[
    int | None,
    typer.Option(
        "--memory-limit",
        help="MiB of memory, as resident size, that a process may hold, a runtime's or the verification's own; four fifths "
        "of the machine's by default.",
    ),
]
InProcess = Annotated[
    bool,
    typer.Option("--in-process", help="Run the runtimes in this process, for debugging: a crash ends it."),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Go on where an earlier call into the same folder was interrupted or killed."
    ),
]
ShardOption = Annotated[
    str,
    typer.Option("--shard", help="One part of the work, 2/5 say; `onnx-attest merge` puts them together."),
]
LISTED = ("--input-shapes",)


def _version(value: bool) -> None:
    if value:
        console.show(f"{console.PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if not {"-h", "--help"} & set(sys.argv[1:]):
        context.default_map = _standing_in(context.invoked_subcommand or "")


@app.command()
def run(
    context: typer.Context,
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
    time_limit: TimeLimit = None,
    memory_limit: MemoryLimit = None,
    evidence: Annotated[
        Path, typer.Option(help="Folder of what other machines recorded, told beside the verdict.")
    ] = Path("reports/evidence"),
    baseline: Baseline = None,
    github_summary: GithubSummary = False,
    profile: Annotated[bool, typer.Option("--profile", help="Also say where the time went.")] = False,
    engine: Annotated[
        str,
        typer.Option(
            help="Where models are verified: local, ray, or ray://HOST:PORT; timing is done here all the same."
        ),
    ] = "local",
    shard: ShardOption = "1/1",
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Export, verify and time the catalogue; write reports."""
    from onnx_attest.export.api import DTYPES, OPSETS
    from onnx_attest.models import catalogue, resolve
    from onnx_attest.verify.job import Job, run_job
    from onnx_attest.verify.journal.shard import Shard
    from onnx_attest.verify.report import render
    from onnx_attest.verify.workers.limits import SILENCE_S, Limits

    _refuse_unknown("variant", variant, OPSETS)
    _refuse_unknown("dtype", dtype, DTYPES)
    before, step_file = read_baseline(baseline), step_summary(github_summary)
    limits = _limits(time_limit, memory_limit)
    plan = _plan(_runtimes(runtime, require, limits), known, seed, threads, fail_fast, _resolved(context))
    task_limits = _for_all(limits)
    of_tasks = Limits(task_limits["time_s"] or SILENCE_S, task_limits["memory_bytes"])
    with console.progress() as step:
        entries = [resolve(name) for name in model] if model else list(catalogue().values())
        job = Job(
            entries,
            plan,
            output,
            tuple(variant or ()),
            tuple(dtype or ("float32", "float16")),
            _names(require),
            claims,
            latency,
            jobs,
            of_tasks,
            _engine(engine, of_tasks, step),
            profile=profile,
            on_step=step,
            evidence=evidence,
            shard=Shard.parsed(shard),
            resume=resume,
            on_note=console.note,
        )
        records = run_job(job)
    if profile and not json:
        console.show(render(records)["time.md"])
    _finish(records, json, f"The reports are in {output}.", before, step_file)


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
    context: typer.Context,
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
        bool,
        typer.Option("--thorough/--no-thorough", help="Also cross-check the deviations by injecting noise."),
    ] = False,
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows",
            min=1,
            help="Query rows that a long attention is verified by; all, or 4096 if that would take minutes, by default.",
        ),
    ] = None,
    relations_only: Annotated[
        bool,
        typer.Option(
            "--relations-only/--no-relations-only",
            help="No reference: judge each runtime by the relations between its own outputs alone.",
        ),
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
    time_limit: TimeLimit = None,
    memory_limit: MemoryLimit = None,
    in_process: InProcess = False,
    baseline: Baseline = None,
    github_summary: GithubSummary = False,
    shard: ShardOption = "1/1",
    resume: Resume = False,
    json: Json = False,
) -> None:
    """Verify one ONNX file on every runtime."""
    before, step_file = read_baseline(baseline), step_summary(github_summary)
    runtimes = _runtimes(runtime, require, _limits(time_limit, memory_limit), in_process=in_process)
    from dataclasses import replace

    from onnx_attest.export.artifact import read_artifact
    from onnx_attest.verify import api
    from onnx_attest.verify.inputs import load_inputs as load
    from onnx_attest.verify.inputs import parse_options, parse_shapes
    from onnx_attest.verify.journal.shard import Shard
    from onnx_attest.verify.report.folder import refuse_unwritable
    from onnx_attest.verify.runtimes.registry import with_session
    from onnx_attest.verify.signature import read_signature

    plan = _plan(runtimes, known, seed, threads, fail_fast, _resolved(context))
    plan = replace(
        plan,
        runtimes=with_session(plan.runtimes, parse_options(session_option or ()), custom_ops or ()),
        arithmetic=arithmetic,
        atol=atol,
        rtol=rtol,
        time_budget_s=time_budget,
        thorough=thorough,
        relations_only=relations_only,
        rows=rows,
        shard=Shard.parsed(shard),
    )
    _refuse_without_folder(output, plan, resume=resume)
    artifact = read_artifact(file)
    if output is not None:
        refuse_unwritable(output)
    with console.progress() as step:
        asked: dict[str, Any] = {
            "require": _names(require),
            "against": _entry(against),
            "input_shapes": parse_shapes(input_shapes) if input_shapes else None,
            "inputs": load(load_inputs, read_signature(artifact)) if load_inputs else None,
            "plan": replace(plan, on_step=lambda taken: step(str(taken))),
        }
        if output is None:
            done = api.verify(artifact, **asked)
        else:
            done = api.verify_into(output, artifact, resume=resume, on_note=console.note, **asked)
    _finish(done.records, json, f"The reports are in {output}." if output else "", before, step_file)


@app.command()
def power(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The ONNX file; its manifest is found beside it.")],
    runtime: Annotated[str, typer.Option(help="The runtime that the mutants run on.")] = "ort-cpu",
    arithmetic: Annotated[
        str | None, typer.Option(help="Declared arithmetic, instead of the runtime's own.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write reports to this folder.")
    ] = None,
    seed: Seed = 0,
    time_limit: TimeLimit = None,
    memory_limit: MemoryLimit = None,
    in_process: InProcess = False,
    json: Json = False,
) -> None:
    """Inject faults into a file, and report which of them a verification would catch."""
    from onnx_attest.export.artifact import read_artifact
    from onnx_attest.verify.power.job import run_power
    from onnx_attest.verify.report.folder import refuse_unwritable

    (chosen,) = _runtimes([runtime], (), _limits(time_limit, memory_limit), in_process=in_process)
    artifact = read_artifact(file)
    if output is not None:
        refuse_unwritable(output)
    with console.progress() as step:
        done = run_power(
            artifact,
            chosen,
            arithmetic=arithmetic,
            seed=seed,
            on_step=step,
            configuration=_resolved(context),
        )
    _leave(done, "power.md", output, json)


@app.command()
def bench(
    context: typer.Context,
    file: Annotated[
        list[Path], typer.Argument(help="ONNX files; those of one model are timed against each other.")
    ],
    runtime: Runtimes = None,
    require: Require = None,
    against: Annotated[
        str | None, typer.Option(help="The module that torch is to be timed with, as for `verify`.")
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Size of all axes that are no batch (repeatable); 32, 128, 512 by default."),
    ] = None,
    input_shapes: Annotated[
        list[str] | None,
        typer.Option("--input-shapes", help="Shapes instead of lengths: x:[2,128,512] (several)."),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            help="About how long each runtime is timed at each size, and up to three times as long on a noisy machine."
        ),
    ] = 2.0,
    threads: Threads = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Also write reports to this folder.")
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Time ONNX files on every runtime, side by side; whether they are right, `verify` says."""
    from dataclasses import replace

    from onnx_attest.export.artifact import read_artifact
    from onnx_attest.verify.api import with_module
    from onnx_attest.verify.inputs import parse_shapes
    from onnx_attest.verify.latency import LENGTHS, THOROUGH
    from onnx_attest.verify.latency.bench import run_bench
    from onnx_attest.verify.pool import cores
    from onnx_attest.verify.report.folder import refuse_unwritable

    if not 0 < seconds < math.inf:
        raise UsageError(f"--seconds {seconds:g}: give a number above 0")
    if length and input_shapes:
        raise UsageError("give --length or --input-shapes, not both")
    artifacts = [read_artifact(path) for path in file]
    if against is not None:
        artifacts = [with_module(artifact, _entry(against)) for artifact in artifacts]
    if output is not None:
        refuse_unwritable(output)
    with console.progress() as step:
        done = run_bench(
            artifacts,
            _named(runtime, require),
            threads=threads or cores(),
            budget=replace(THOROUGH, seconds=seconds),
            lengths=tuple(length or LENGTHS),
            shapes=parse_shapes(input_shapes) if input_shapes else None,
            required=_names(require),
            seed=seed,
            on_step=step,
            configuration=_resolved(context),
        )
    _leave(done, "latency.md", output, json)


@app.command()
def conformance(
    runtime: Runtimes = None,
    require: Require = None,
    operator: Annotated[
        list[str] | None,
        typer.Option("--operator", help="An operator to look at (repeatable); all by default."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Also write conformance.md and conformance.json to this folder."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="An earlier conformance.json: show what changed, and exit 1 if a case got worse."),
    ] = None,
    time_limit: TimeLimit = None,
    memory_limit: MemoryLimit = None,
    json: Json = False,
) -> None:
    """Say which runtime implements which part of ONNX's attention operators, and rightly.

    Runs ONNX's own cases of Attention, FlexAttention, LinearAttention, Softmax, LogSoftmax, RotaryEmbedding,
    LayerNormalization, RMSNormalization, Gelu and TensorScatter, and ours beyond them, as operators and expanded, on
    every runtime that runs graphs. What is wrong there is the result and not an error: without --against the exit code
    is 0. With it, 1 if a case got worse. 3 if nothing ran, nothing could be compared, or a runtime named with --require
    did not run.
    """
    from onnx_attest.verify.conformance.confirmed import built_in
    from onnx_attest.verify.conformance.difference import difference
    from onnx_attest.verify.conformance.job import run_conformance
    from onnx_attest.verify.conformance.matrix import read_report
    from onnx_attest.verify.conformance.result import Result

    before = None if against is None else read_report(against)
    chosen = _named(runtime, require)
    with console.progress() as step:
        found = run_conformance(
            chosen, operator or (), step, limits=_for_all(_limits(time_limit, memory_limit))
        )
    change = None if before is None else difference(before, found)
    result = Result(found, built_in(), change, tuple(require or ()))
    if output is not None:
        result.save(output)
    if json:
        console.show_json(result.as_object())
    else:
        note = f"\n\nconformance.md and conformance.json are in {output}." if output else ""
        console.show(result.as_text() + note)
    raise typer.Exit(result.exit_code)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="An ONNX file.")],
    attention: Annotated[
        bool, typer.Option("--attention", help="Show every attention and softmax found in it.")
    ] = False,
    provider: Annotated[
        list[str] | None,
        typer.Option(help="Also say which nodes this runtime leaves to another provider (repeatable)."),
    ] = None,
    json: Json = False,
) -> None:
    """Find what is wrong with attention in a file, without running it."""
    from onnx_attest.verify.static.check import check_file

    checked = check_file(file, tuple(provider or ()))
    if json:
        console.show_json(checked.as_object())
    else:
        console.show(checked.as_text(attention=attention))
    raise typer.Exit(checked.exit_code)


@app.command()
def evidence(
    records: Annotated[
        Path, typer.Argument(help="A records.jsonl of a run on a GPU, or a folder that holds one.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of all evidence; the machine gets a folder in it.")
    ] = Path("reports/evidence"),
) -> None:
    """Keep the records of a run on a GPU, to be told where there is none."""
    from onnx_attest.verify.evidence import publish

    console.show(f"The records are in {publish(records, output)}.")


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
def doctor(
    install: Annotated[
        str | None,
        typer.Option(help="Install the npm packages of a group first: web, for ort-node and ort-web."),
    ] = None,
    json: Json = False,
) -> None:
    """Say which runtimes work here, and why others do not."""
    from onnx_attest.verify.doctor import as_text, conflicts, diagnose
    from onnx_attest.verify.runtimes.isolated import processes_of

    if install is not None:
        from onnx_attest.verify.runtimes import web_packages

        _refuse_unknown("group to install", [install], ("web",))
        folder = web_packages.install()
        console.note(f"installed {', '.join(web_packages.pinned())} in {folder}")
    runtimes = _runtimes(None, (), _limits(None, None))
    with processes_of(runtimes):
        found, wrong = diagnose(runtimes), conflicts()
    if json:
        console.show_json({"runtimes": [vars(item) for item in found], "conflicts": wrong})
    else:
        console.show(as_text(found, wrong))
    raise typer.Exit(1 if wrong else 0)


app.command()(report)
app.command()(compare)
app.command()(convert)
app.command()(deploy)
app.command()(replay)
app.command()(init)
app.command()(merge)


def _standing_in(command: str) -> dict[str, Any]:
    """Return what stands in for the options of a command that are not given: the configuration of this folder."""
    from onnx_attest.verify.configuration import read_configuration
    from onnx_attest.verify.configuration.keys import taken_by

    return {command: read_configuration().stand_in(command)} if taken_by(command) else {}


def _resolved(context: typer.Context) -> dict[str, str]:
    """Return the settings of a command that are not its defaults, for the report."""
    from onnx_attest.verify.configuration import read_configuration
    from onnx_attest.verify.configuration.resolved import resolved

    given = {
        name: value
        for name, value in context.params.items()
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }
    return resolved(context.info_name or "", given, read_configuration())


def _plan(
    runtimes: tuple[Runtime, ...],
    known: Path | None,
    seed: int,
    threads: int | None,
    fail_fast: bool,
    configuration: dict[str, str],
) -> Plan:
    from onnx_attest.verify.engine import Plan
    from onnx_attest.verify.known import built_in, read_known

    return Plan(
        runtimes=runtimes,
        known=read_known(known) if known else built_in(),
        seed=seed,
        threads=threads,
        fail_fast=fail_fast,
        configuration=configuration,
    )


def _engine(name: str, limits: Limits, on_step: Callable[[str], None]) -> Engine | None:
    """Return the engine of this name, None for the one of this machine."""
    if name == "local":
        return None
    from functools import partial

    from onnx_attest.verify.on_ray import NAME, run_on_ray

    if name != NAME and not name.startswith(f"{NAME}://"):
        raise UsageError(f"unknown engine {name!r}; there are local, ray and ray://HOST:PORT")
    return partial(run_on_ray, address="" if name == NAME else name, limits=limits, on_step=on_step)


def _refuse_without_folder(output: Path | None, plan: Plan, *, resume: bool) -> None:
    """Refuse what needs a folder where it has none, and to split what no part of can be said alone."""
    if output is None and (resume or not plan.shard.is_whole):
        raise UsageError(
            f"{'--resume' if resume else '--shard'} needs the folder of the report: give it with -o"
        )
    if plan.shard.is_whole:
        return
    alone = {"--fail-fast": plan.fail_fast, "--time-budget": plan.time_budget_s is not None}
    for flag, given in (alone | {"--relations-only": plan.relations_only}).items():
        if given:
            raise UsageError(f"--shard and {flag}: what one part leaves out, no other does; give one of them")


def _names(references: list[str] | None) -> tuple[str, ...]:
    """Return what the records call these runtimes."""
    from onnx_attest.verify.runtimes.registry import select

    return tuple(one.name for one in select(tuple(references))) if references else ()


def _limits(time_s: float | None, memory_mib: int | None) -> dict[str, Any]:
    """Return the limits that are asked for, as `isolate` and `usual_limits` take them.

    Raises:
        UsageError: one that nothing keeps, or that this system cannot watch.
    """
    from onnx_attest.verify import guard
    from onnx_attest.verify.workers import resident
    from onnx_attest.verify.workers.limits import MIB

    for flag, value in (("--time-limit", time_s), ("--memory-limit", memory_mib)):
        if value is not None and not 0 < value < math.inf:
            raise UsageError(f"{flag} {value:g}: give a number above 0")
    if memory_mib is not None and not resident.is_told():
        raise UsageError("--memory-limit: this system does not tell what a process holds; leave it out")
    limits = {"time_s": time_s, "memory_bytes": None if memory_mib is None else memory_mib * MIB}
    guard.limit(**_for_all(limits))
    return limits


def _for_all(limits: dict[str, Any]) -> dict[str, Any]:
    """Return the limits of what all runtimes share: those that are asked for, else the configuration's."""
    from onnx_attest.verify.configuration import read_configuration
    from onnx_attest.verify.runtimes.configured import general_limits

    general = general_limits(read_configuration())
    return {name: value or general[name] for name, value in limits.items()}


def _runtimes(
    named: Sequence[str] | None,
    required: Sequence[str] | None,
    limits: dict[str, Any],
    *,
    in_process: bool = False,
) -> tuple[Runtime, ...]:
    """Return the runtimes; their processes, if they have one, import them while this one imports the verifier."""
    from onnx_attest.verify.configuration import read_configuration
    from onnx_attest.verify.runtimes.configured import limited
    from onnx_attest.verify.runtimes.isolated import in_this_process, start

    chosen = _named(named, required)
    if in_process:
        return tuple(in_this_process(runtime) for runtime in chosen)
    runtimes = limited(chosen, read_configuration(), **limits)
    start(runtimes)
    return runtimes


def _named(named: Sequence[str] | None, required: Sequence[str] | None) -> tuple[Runtime, ...]:
    """Return the runtimes of these names, all if none is named, and those that are required."""
    from onnx_attest.verify.runtimes.registry import select

    also = select(tuple(required)) if required else ()
    return tuple({one.name: one for one in (*select(tuple(named or ())), *also)}.values())


def _entry(reference: str | None) -> Any:
    """Return the entry of a module or the module itself, or the name of an ONNX file as it is."""
    if reference is None or reference.endswith(".onnx"):
        return reference
    from onnx_attest.models.entry import resolve_module

    return resolve_module(reference)


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


def _leave(done: Any, page: str, output: Path | None, json: bool) -> None:
    """Write the reports of a command if asked to, show one page of them or all as an object, and exit with its code."""
    from onnx_attest.verify.report import render, write_reports

    if output is not None:
        write_reports(done.records, output)
    if json:
        console.show_json(done.as_object())
    else:
        console.show(render(done.records)[page] + (f"\nThe reports are in {output}." if output else ""))
    raise typer.Exit(done.exit_code)


def _finish(
    records: Any, json: bool, note: str, baseline: Sequence[AnyRecord] | None, step_file: Path | None
) -> None:
    from onnx_attest.verify.records import RunRecord

    code = next(record.exit_code for record in records if isinstance(record, RunRecord))
    interrupted = code > _FIRST_OF_SIGNALS
    beside, fields, code = beside_baseline(None if interrupted else baseline, records, code)
    if json:
        console.show_json(console.verdict_object(records) | fields)
    else:
        console.show_run(records, beside, note, is_written=bool(note))
    append(records, step_file, beside)
    if interrupted:
        console.note("interrupted: what was finished is kept, and --resume goes on with it")
        raise SystemExit(code)  # an exit of the parser with this code would be taken for one without a report
    raise typer.Exit(code)


_FIRST_OF_SIGNALS = 128
# typer keeps the base class of its parser's errors in a private module; BadParameter is public and two below it.
_CommandLineError: Any = typer.BadParameter.__mro__[2]
_INTERRUPTED = "interrupted; what is written is whole, and no report is"
_TRACEBACK = "ONNX_ATTEST_TRACEBACK"
"""Variable of the environment that asks for the traceback of what is a fault of ours."""
UNFORESEEN = "a fault of onnx-attest itself"


def _unforeseen(error: Exception) -> str:
    """Return in words what no code foresaw, and where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"{UNFORESEEN}: {type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno}); please report "
        f"it, with what {_TRACEBACK}=1 shows"
    )


def main() -> None:
    """Run a command and exit with its code; bad input ends in one line and 2, never in a traceback."""
    from onnx_attest.verify.interruption import Terminated, code_of, heed_sigterm
    from onnx_attest.verify.pages import keep_pages, one_thread_in_blas

    heed_sigterm()
    one_thread_in_blas()
    keep_pages()
    from onnx_attest.export.lower import ExportError

    ctrl_c = code_of(KeyboardInterrupt())
    try:
        code = app(console.spread_lists(sys.argv[1:], LISTED), standalone_mode=False)
    except UsageError as error:
        console.fail(str(error), 2)
    except ExportError as error:
        console.fail(str(error), 1)
    except _CommandLineError as error:
        console.fail(f"{error.format_message()} (see {console.PROGRAM} --help)", 2)
    except RecursionError as error:
        if os.environ.get(_TRACEBACK):
            raise
        console.fail(f"what was read is nested too deeply to be dealt with: {error}", 2)
    except MemoryError as error:
        if os.environ.get(_TRACEBACK):
            raise
        console.fail(f"what was read asks for more memory than there is: {error}", 2)
    except OSError as error:  # of stdout in the parser's own --help, or of a temporary folder
        console.fail(f"{error.filename or 'the output'}: {error.strerror or error}; write it elsewhere", 2)
    except (KeyboardInterrupt, typer.Abort):
        code = ctrl_c
    except Terminated as error:
        console.fail(_INTERRUPTED, code_of(error))
    except Exception as error:
        if os.environ.get(_TRACEBACK):
            raise
        console.fail(_unforeseen(error), 2)
    if code == ctrl_c:  # the parser makes a code of the interruption, and says nothing
        console.fail(_INTERRUPTED, ctrl_c)
    raise SystemExit(code or 0)
