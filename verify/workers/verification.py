"""The process that a task of the main job runs in, see `verify.pool`: a task a line on stdin, steps on stdout.

Requirements:
* each step is announced before it is taken, so that the last one says what a crash happened in;
* records go to a file, of which only a finished task is read;
* nothing that a library prints reaches the parent.
"""

from __future__ import annotations

import gc
from pathlib import Path

import msgspec

from onnx_attest.errors import UsageError
from onnx_attest.verify.engine import Step
from onnx_attest.verify.pages import keep_pages
from onnx_attest.verify.records import encode
from onnx_attest.verify.task import Task, run_task
from onnx_attest.verify.workers.streams import one_line, private_streams


class Request(msgspec.Struct, frozen=True):
    """A task, and the file that its records go to."""

    task: Task
    records: str


class Taken(msgspec.Struct, frozen=True, tag="step"):
    """What is going on now."""

    step: Step


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The end of a task; `refusal` is why the whole run cannot go on, "" if it can."""

    refusal: str = ""


Answer = Taken | Done


def main() -> None:
    """Work off the tasks on stdin until there are no more."""
    keep_pages()
    requests, answers = private_streams()
    decoder = msgspec.json.Decoder(Request)

    def say(answer: Answer) -> None:
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()

    for line in requests:
        request = decoder.decode(line)
        try:
            with Path(request.records).open("wb") as file:
                for record in run_task(request.task, lambda step: say(Taken(step))):
                    file.write(encode([record]))
        except (UsageError, OSError) as error:
            say(Done(one_line(str(error))))
        else:
            say(Done())
        # Torch and its exporter leave a million objects that stay: walking them again and again is a tenth of a task.
        gc.collect()
        gc.freeze()


if __name__ == "__main__":
    main()
