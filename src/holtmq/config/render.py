"""The configuration as text: a commented TOML file, a Markdown page, tables and JSON.

Owns: those four formats. Must not touch: how values are found.
"""

import json
from collections.abc import Iterable

from holtmq.config import Config
from holtmq.config.catalogue import Setting, all_settings, section_help, section_names
from holtmq.config.load import Loaded

MASK = "***"


def defaults_toml() -> str:
    """A configuration file with every setting at its default, commented out."""
    out = ["# HoltMQ's settings, each at its default. Take the # away from the lines you change.", ""]
    for section in ("", *section_names()):
        if section:
            out += [f"# {section_help(section)}", f"[{section}]"]
        for setting in _in_section(section):
            out += [f"# {setting.about.help}", f"#{setting.key} = {_toml(setting, setting.default)}", ""]
    return "\n".join(out)


def effective_rows(loaded: Loaded) -> list[tuple[str, str, str]]:
    """Name, value and origin of every setting; secrets masked."""
    return [(s.name, _toml(s, loaded.value(s)), loaded.origin(s)) for s in all_settings()]


def effective_json(loaded: Loaded) -> str:
    """The same as one JSON object; secrets masked."""
    return json.dumps(
        {s.name: {"value": _plain(s, loaded.value(s)), "origin": loaded.origin(s)} for s in all_settings()},
        indent=2,
    )


def settings_of(config: Config) -> dict[str, object]:
    """Every setting of a running node with its value; secrets masked."""
    loaded = Loaded(config, {}, None)
    return {s.name: _plain(s, loaded.value(s)) for s in all_settings()}


def markdown() -> str:
    """The reference part of docs/configuration.md."""
    out: list[str] = []
    for section in ("", *section_names()):
        out += [
            f"### `[{section}]`" if section else "### Above all sections",
            "",
            section_help(section) if section else "At the head of the file.",
            "",
            "| key | type | default | environment | meaning |",
            "|---|---|---|---|---|",
        ]
        for setting in _in_section(section):
            variables = ", ".join(f"`{name}`" for name in (setting.env, *setting.about.aliases))
            default = setting.default_text
            shown = default if setting.about.default_note else f"`{default}`" if default else "(none)"
            row = (f"`{setting.key}`", _type(setting), shown, variables, setting.about.help)
            out.append(f"| {' | '.join(row)} |")
        out.append("")
    return "\n".join(out)


def _in_section(section: str) -> Iterable[Setting]:
    return (setting for setting in all_settings() if setting.section == section)


def _type(setting: Setting) -> str:
    about = setting.about
    bounds = [
        f"from {about.low:.15g}" if about.low is not None else "",
        f"to {about.high:.15g}" if about.high else "",
    ]
    return " ".join([about.kind.name, *filter(None, bounds)])


def _plain(setting: Setting, value: object) -> object:
    if setting.is_secret and value:
        return MASK
    return setting.about.kind.show(value)


def _toml(setting: Setting, value: object) -> str:
    # JSON strings, numbers, booleans and lists are all valid TOML.
    return json.dumps(_plain(setting, value), ensure_ascii=False)
