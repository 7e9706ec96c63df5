"""The settings: one table, which the reader, `onnx-attest init`, the pytest plugin and docs/configuration.md are made of.

A key is called as its option of the command line is, with the unit in its name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from onnx_attest.verify.configuration.kinds import (
    NOT_NEGATIVE,
    OPTIONS,
    PATH,
    PATHS,
    POSITIVE,
    TEXT,
    TEXTS,
    TRUTH,
    Kind,
    whole,
)

PYTEST = "pytest"
"""Where a key says it is for pytest, the fixture takes it too."""


@dataclass(frozen=True)
class Key:
    """One setting.

    Attributes:
        meaning: in a sentence.
        default: what holds without it, in words.
        example: a value, as TOML.
        commands: that take it.
        option: of these commands, without its dashes; "" where they have none.
        stands_in: whether its value is taken as if the option had been given. A limit is not: the one of a single
            runtime goes before it, and the option before both.
    """

    name: str
    kind: Kind
    meaning: str
    default: str
    example: str
    commands: tuple[str, ...]
    option: str = ""
    stands_in: bool = True

    @property
    def parameter(self) -> str:
        """What the functions of the commands call it."""
        return self.option.replace("-", "_")


_RUNNING = ("run", "verify", "bench", "conformance", PYTEST)
_VERIFYING = ("run", "verify", PYTEST)
_ONE_FILE = ("verify", PYTEST)

KEYS = (
    Key("runtime", TEXTS, "The runtimes to use, by their names in `onnx-attest doctor`.", "all of them", '["ort-cpu", "ort-cuda"]', _RUNNING, "runtime"),
    Key("require", TEXTS, "Runtimes without which nothing is proven: exit code 3, and a test that fails.", "none", '["ort-cpu"]', _RUNNING, "require"),
    Key("known", PATH, "A TOML file of further known failures.", "none", '"known.toml"', _VERIFYING, "known"),
    Key("seed", whole(), "Seed of all made inputs.", "0", "0", ("run", "verify", "power", "bench", PYTEST), "seed"),
    Key("threads", whole(1, 1024), "Threads of each runtime.", "each one's own choice; all cores where it is timed", "4", ("run", "verify", "bench", PYTEST), "threads"),
    Key("fail_fast", TRUTH, "Stop an artifact at its first unexpected failure.", "false", "true", _VERIFYING, "fail-fast"),
    Key("time_limit_s", POSITIVE, "Seconds after which a runtime's process is taken for hung and ended, and a tenth of what a step of the verification itself may take; a runtime's own limit goes before it.", "300", "300", ("run", "verify", "power", "conformance", PYTEST), "time-limit", stands_in=False),
    Key("memory_limit_mib", POSITIVE, "MiB of memory, as resident size, that a process may hold, a runtime's or the verification's own; a runtime's own limit goes before it.", "four fifths of the machine's", "4096", ("run", "verify", "power", "conformance", PYTEST), "memory-limit", stands_in=False),
    Key("output", PATH, "Folder of the reports, replaced whole.", "`reports/latest` for `run`, none for `verify`", '"reports/latest"', ("run", "verify"), "output"),
    Key("time_budget_s", NOT_NEGATIVE, "Seconds after which no further case is begun.", "none", "60", _ONE_FILE, "time-budget"),
    Key("thorough", TRUTH, "Also cross-check the deviations by injecting noise.", "false", "true", _ONE_FILE, "thorough"),
    Key("rows", whole(1), "Query rows that a long attention is verified by.", "all, or 4096 if that would take minutes", "1024", _ONE_FILE, "rows"),
    Key("relations_only", TRUTH, "No reference: judge each runtime by the relations between its own outputs alone.", "false", "true", _ONE_FILE, "relations-only"),
    Key("arithmetic", TEXT, "Declared arithmetic, instead of the manifest's.", "the manifest's, or the runtime's own", '"fp32"', ("verify", "power", PYTEST), "arithmetic"),
    Key("atol", NOT_NEGATIVE, "An extra gate beside the bound, with `rtol`.", "none", "1e-5", _ONE_FILE, "atol"),
    Key("rtol", NOT_NEGATIVE, "An extra gate beside the bound, with `atol`.", "none", "1e-3", _ONE_FILE, "rtol"),
    Key("session_options", OPTIONS, "Of the ONNX Runtime session that you really run.", "none", '{ "session.disable_prepacking" = true }', _ONE_FILE, "session-option"),
    Key("custom_ops", PATHS, "Libraries of ONNX Runtime operators.", "none", '["libmy_ops.so"]', _ONE_FILE, "custom-ops"),
    Key("allow_inconclusive", TRUTH, "A test in which nothing could be concluded passes; it fails otherwise.", "false", "true", (PYTEST,)),
    Key("model", TEXTS, "The models of the main job: catalogue names, file.py:factory or package.module:factory.", "the catalogue", '["mha", "my_attention.py:entry"]', ("run",), "model"),
    Key("variant", TEXTS, "Its variants.", "all that each model has", '["attention"]', ("run",), "variant"),
    Key("dtype", TEXTS, "Its dtypes of the graphs.", "float32 and float16", '["float32"]', ("run",), "dtype"),
    Key("jobs", whole(1), "Models that it verifies at a time.", "one a core", "2", ("run",), "jobs"),
    Key("engine", TEXT, "Where it verifies models: `local`, `ray` or `ray://HOST:PORT`.", "local", '"ray"', ("run",), "engine"),
    Key("claims", TRUTH, "Whether it tests the chapter's statements.", "if sdpa is among the models", "false", ("run",), "claims"),
    Key("latency", TRUTH, "Whether it times what was verified.", "true", "false", ("run",), "latency"),
    Key("baseline", PATH, "Records of an earlier run to compare with: exit code 1 if something became worse.", "none", '"reports/reference"', ("run", "verify"), "baseline"),
    Key("evidence", PATH, "Folder of what other machines recorded, told beside its verdict.", "`reports/evidence`", '"reports/evidence"', ("run",), "evidence"),
)  # fmt: skip
BY_NAME = {key.name: key for key in KEYS}

RUNTIMES = "runtimes"
"""The table of runtimes of the user's own, each a table under its name."""
RUNTIME_KEYS = (
    Key("python", TEXT, "Another interpreter, with another version of the runtime; relative to this file.", "the one that runs onnx-attest", '"../venv-ort-1.24/bin/python"', ()),
    Key("runtime", TEXT, "The runtime that it is a variant of.", "the one of its name, or `ort-cpu`", '"ort-cpu"', ()),
    Key("provider_options", OPTIONS, "Of ONNX Runtime's provider.", "none", '{ use_tf32 = "1" }', ()),
    Key("session_options", OPTIONS, "Of ONNX Runtime's session.", "none", '{ "session.disable_prepacking" = true }', ()),
    Key("time_limit_s", POSITIVE, "As above, for this runtime alone.", "as above", "60", ()),
    Key("memory_limit_mib", POSITIVE, "As above, for this runtime alone.", "as above", "2048", ()),
)  # fmt: skip


def no_such_key(given: str, known: Iterable[str]) -> str:
    """Return what to say of a key that there is not: the one that was probably meant, else all of them."""
    known = list(known)
    near = difflib.get_close_matches(given, known, n=1)
    return "there is no such key; " + (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    )


def taken_by(command: str) -> tuple[Key, ...]:
    """Return the settings of a command."""
    return tuple(key for key in KEYS if command in key.commands)
