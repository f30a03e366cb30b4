"""What a setting has besides its type and default.

Owns: `About`. Must not touch: the settings themselves.
"""

from dataclasses import dataclass

from holtmq.config import values
from holtmq.config.values import Kind

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class About:
    """Metadata of one setting besides its type and default."""

    help: str
    kind: Kind
    low: float | None = None
    high: float | None = None
    aliases: tuple[str, ...] = ()  # other environment variables that set it
    default_note: str = ""  # shown in place of a default that differs from version to version


def port_setting(text: str) -> About:
    """About the port of a listener."""
    return About(f"{text} 0 takes any free port.", values.INT, 0, 65535)
