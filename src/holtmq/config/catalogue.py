"""The list of all settings, with all names of each one.

Owns: the mapping from a field of a section to its TOML key, environment variables and flag.
Must not touch: values.
"""

from dataclasses import dataclass
from functools import cache
from typing import get_type_hints

import msgspec

from holtmq.config.about import About
from holtmq.config.settings import Config
from holtmq.config.values import SECRET


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting and its names."""

    section: str  # empty: a key above all sections
    key: str
    about: About
    default: object

    @property
    def name(self) -> str:
        """As in the file: ``amqp.port``."""
        return f"{self.section}.{self.key}" if self.section else self.key

    @property
    def env(self) -> str:
        """The environment variable: ``HOLT_AMQP_PORT``."""
        return f"HOLT_{self.name}".replace(".", "_").upper()

    @property
    def flag(self) -> str:
        """The option of ``holt serve``: ``--amqp-port``."""
        return f"--{self.name}".replace(".", "-").replace("_", "-")

    @property
    def is_secret(self) -> bool:
        """Whether its value must never be shown."""
        return self.about.kind is SECRET

    @property
    def default_text(self) -> str:
        """The default as the documentation shows it."""
        shown = self.about.default_note or self.about.kind.show(self.default)
        if isinstance(shown, bool):
            return str(shown).lower()
        return ",".join(shown) if isinstance(shown, list) else str(shown)


@cache
def all_settings() -> tuple[Setting, ...]:
    """Every setting, in the order of the documentation."""
    found = []
    for section in msgspec.structs.fields(Config):
        if isinstance(section.default, msgspec.Struct):
            found += _settings_of(section.name, type(section.default))
    return (*_settings_of("", Config), *found)


def _settings_of(section: str, kind: type[msgspec.Struct]) -> list[Setting]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Setting(section, field.name, about, field.default)
        for field in msgspec.structs.fields(kind)
        for about in getattr(hints[field.name], "__metadata__", ())
        if isinstance(about, About)
    ]


@cache
def by_name() -> dict[str, Setting]:
    """The settings by their dotted names."""
    return {setting.name: setting for setting in all_settings()}


def section_help(section: str) -> str:
    """The one line that introduces a section."""
    default = getattr(Config(), section)
    return (type(default).__doc__ or "").strip().splitlines()[0]


def section_names() -> tuple[str, ...]:
    """The sections, in the order of the documentation."""
    return tuple(
        field.name for field in msgspec.structs.fields(Config) if isinstance(field.default, msgspec.Struct)
    )
