"""What every layer may raise."""

from __future__ import annotations


class UsageError(Exception):
    """Bad input: the message is one line that says what is wrong and what to do.

    The command line prints it and exits with 2; nothing has been written.
    """

    def __init__(self, message: str) -> None:
        # Third-party messages run over several lines; ours is one.
        super().__init__(" ".join(message.split()))


class UnwritableError(UsageError):
    """The place for the files cannot be written: no later step can go on, unlike after other bad input."""
