"""Numbers that options take.

Owns: their limits, beyond what click checks. Must not touch: what the numbers mean.
"""

import math

import click


class Finite(click.FloatRange):
    """A range of numbers without ``nan``, which click takes for being in every range."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; exits with an error when it is none, or out of the range."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number
