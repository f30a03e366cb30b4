"""Work in steps, between which others may run.

Owns: what such work looks like. Must not touch: when the next step is; who runs it knows that.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]  # returns a result after the last step


def finish(steps: Steps[T]) -> T:
    """Run all steps at once; return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
