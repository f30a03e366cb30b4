"""Builds one checked configuration from file, environment and flags.

Owns: the precedence (profile < file < environment < flag), the origin of every value, and the list of all
problems, each with its place and the nearest valid name.
Must not touch: the process. Environment and flags are arguments; nothing global is read or written.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final

import msgspec

from holtmq.config.catalogue import Setting, all_settings, by_name, section_names
from holtmq.config.choices import Profile
from holtmq.config.cross_checks import contradictions
from holtmq.config.differences import rabbitmq_settings
from holtmq.config.settings import Config
from holtmq.config.toml_lines import key_lines
from holtmq.config.values import BadValue

CONFIG_ENV: Final = "HOLT_CONFIG"
DEFAULT_FILE: Final = Path("holt.toml")

# HOLT_ variables of other readers: other verbs of the command, the test suite, the benchmarks.
_NOT_SETTINGS: Final = re.compile(
    r"HOLT_(CONFIG|ADMIN_\w+|TOKEN|TOKEN_FILE|URL|MODEL_EXAMPLES|TEST_\w+|BENCH_\w+)"
)
# Kubernetes sets variables of these forms in every pod for a service named "holt" or "holt-...".
_SERVICE_LINK: Final = re.compile(r"HOLT_(\w+_)?(SERVICE_(HOST|PORT)\w*|PORT_\d+_(TCP|UDP)\w*)")
_SERVICE_LINK_VALUE: Final = re.compile(r"(tcp|udp)://")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the configuration."""

    where: str  # "holt.toml:12", "HOLT_AMQP_PORT", "--amqp-port"
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


class ConfigError(Exception):
    """The configuration cannot be used; ``problems`` holds all reasons, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and the origin of each value that is not a default."""

    config: Config
    origins: Mapping[str, str]  # by dotted name
    file: Path | None

    def value(self, setting: Setting) -> object:
        """The effective value of one setting."""
        part = getattr(self.config, setting.section) if setting.section else self.config
        found: object = getattr(part, setting.key)
        return found

    def origin(self, setting: Setting) -> str:
        """Where its value came from."""
        return self.origins.get(setting.name, "default")


@dataclass(slots=True)
class _Draft:
    values: dict[str, object] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def offer(self, setting: Setting, raw: object, where: str) -> None:
        """Set the setting to ``raw``, over the value of a lower layer; note a problem if it is invalid."""
        try:
            value = setting.about.kind.parse(raw)
            _check_bounds(setting, value)
        except BadValue as error:
            shown = "the value" if setting.is_secret else repr(raw)
            text = f"{shown} is not usable for {setting.name}: {error}"
            if isinstance(raw, str) and _SERVICE_LINK_VALUE.match(raw):
                text += " (set by Kubernetes for a service of this name? then switch enableServiceLinks off)"
            self.problems.append(Problem(where, text))
            return
        self.values[setting.name] = value
        self.origins[setting.name] = where


def load(
    environ: Mapping[str, str], flags: Mapping[str, object] | None = None, file: Path | None = None
) -> Loaded:
    """Read all layers; ``flags`` maps dotted names to the values given on the command line.

    Without ``file`` the one named by ``HOLT_CONFIG`` is read, else ``holt.toml`` in the current folder if
    there is one.
    Raises ConfigError with every problem found.
    """
    draft = _Draft()
    path = _file_to_read(environ, file)
    if path is not None:
        _read_file(draft, path)
    _read_environment(draft, environ)
    for name, raw in (flags or {}).items():
        setting = by_name()[name]
        draft.offer(setting, raw, setting.flag)

    if draft.values.get("profile") is Profile.RABBITMQ:
        for name, value in rabbitmq_settings().items():
            if name not in draft.values:
                draft.values[name], draft.origins[name] = value, "profile rabbitmq"
    config = _build(draft.values)
    if not draft.problems:
        draft.problems += (
            Problem(draft.origins.get(name, ""), text) for name, text in contradictions(config)
        )
    if draft.problems:
        raise ConfigError(draft.problems)
    return Loaded(config, draft.origins, path)


def _file_to_read(environ: Mapping[str, str], file: Path | None) -> Path | None:
    if file is not None:
        return file
    if named := environ.get(CONFIG_ENV):
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.is_file() else None


def _read_file(draft: _Draft, path: Path) -> None:
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        draft.problems.append(Problem(str(path), f"cannot be read: {error.strerror}"))
        return
    except ValueError as error:  # not TOML, or not UTF-8
        draft.problems.append(Problem(str(path), f"is not valid TOML: {error}"))
        return

    lines = key_lines(text)

    def place(name: str) -> str:
        return f"{path}:{lines[name]}" if name in lines else str(path)

    for section, entries in document.items():
        if (setting := by_name().get(section)) is not None:
            draft.offer(setting, entries, place(section))
        elif section not in section_names():
            what = f"section [{section}]" if isinstance(entries, dict) else f"setting {section}"
            problem = f"unknown {what}" + _nearest(section, (*section_names(), "profile"))
            draft.problems.append(Problem(place(section), problem))
        elif not isinstance(entries, dict):
            draft.problems.append(Problem(place(section), f"{section} is a section: write [{section}]"))
        else:
            for key, raw in entries.items():
                name = f"{section}.{key}"
                if (known := by_name().get(name)) is not None:
                    draft.offer(known, raw, place(name))
                else:
                    text = f"unknown setting {name}" + _nearest(name, by_name())
                    draft.problems.append(Problem(place(name), text))


def _read_environment(draft: _Draft, environ: Mapping[str, str]) -> None:
    known: dict[str, Setting] = {}
    for setting in all_settings():
        # HOLT_... comes last, so it overrides the aliases that other products use for the setting.
        for variable in (*setting.about.aliases, setting.env):
            known[variable] = setting
            if variable in environ:
                draft.offer(setting, environ[variable], variable)
    for variable, raw in environ.items():
        if not variable.startswith("HOLT_") or variable in known or _NOT_SETTINGS.fullmatch(variable):
            continue
        if not _SERVICE_LINK.fullmatch(variable) and not _SERVICE_LINK_VALUE.match(raw):
            draft.problems.append(Problem(variable, "unknown setting" + _nearest(variable, known)))


def _check_bounds(setting: Setting, value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    low, high = setting.about.low, setting.about.high
    if low is not None and value < low:
        raise BadValue(f"the least is {low:g}" if low < 1e6 else f"the least is {low}")
    if high is not None and value > high:
        raise BadValue(f"the most is {high:g}" if high < 1e6 else f"the most is {high}")


def _nearest(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _build(values: Mapping[str, object]) -> Config:
    top = {
        setting.key: values[setting.name]
        for setting in all_settings()
        if setting.name in values and not setting.section
    }
    config = msgspec.structs.replace(Config(), **top)
    for section in section_names():
        changes = {
            setting.key: values[setting.name]
            for setting in all_settings()
            if setting.section == section and setting.name in values
        }
        part = msgspec.structs.replace(getattr(config, section), **changes)
        config = msgspec.structs.replace(config, **{section: part})
    return config
