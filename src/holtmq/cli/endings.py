"""How a verb ends when it cannot go on: one sentence on standard error, and an exit status.

Owns: interrupts, and output that cannot be written. Must not touch: what verbs do; errors of the broker are
``broker_api``'s. Any other exception is a bug and keeps its traceback.
"""

import errno
import os
import sys
from typing import Any, Final, NoReturn

import click

INTERRUPTED: Final = 130  # as a shell reports a program that SIGINT ended
FAILED: Final = 2  # 1 is an answer of some verbs, such as `holt stuck`
_OF_OUTPUT: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF))


class PlainEndings(click.Group):
    """A group whose verbs never end in a traceback for an interrupt or a disk error."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run a verb; as click's own, with the output flushed before the exit status is decided."""
        try:
            try:
                return super().main(*arguments, **options)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()  # at the interpreter's exit it would be too late for a sentence
        except OSError as error:
            _end(error)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except click.Abort as abort:  # a prompt's answer
            if isinstance(abort.__context__, EOFError):
                raise click.ClickException("standard input ended where an answer was expected") from None
            click.echo("\nInterrupted.", err=True)
            ctx.exit(INTERRUPTED)


def _end(error: OSError) -> NoReturn:
    reason = error.strerror or str(error)
    if error.filename is not None:
        text = f"{error.filename}: {reason}"
    elif error.errno in _OF_OUTPUT:
        text = f"the output cannot be written: {reason}"
    else:
        text = reason
    if error.errno != errno.EPIPE:  # a reader that has enough, such as head, is no error to report
        click.echo(f"Error: {text}", err=True)
    _drop_output()
    raise SystemExit(FAILED) from None


def _drop_output() -> None:
    """Forget what standard output did not take: the interpreter would try again at its exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
