"""Settings as options of a command; exits when the configuration is invalid.

Owns: the translation between click and ``holtmq.config``. Must not touch: what a setting means.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import click

from holtmq.config import ConfigError, Loaded, load
from holtmq.config.catalogue import Setting, all_settings

_Command = TypeVar("_Command", bound=Callable[..., object])

BAD_CONFIGURATION = 2


def with_settings(command: _Command) -> _Command:
    """Add ``--config`` and one option for every setting."""
    for setting in reversed(all_settings()):
        command = _option(setting)(command)
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The configuration file.  [default: HOLT_CONFIG, else ./holt.toml if there is one]",
    )(command)


def load_or_exit(config_file: Path | None, options: Mapping[str, object]) -> Loaded:
    """The configuration of this process; if it is invalid, print every problem and exit."""
    flags = {
        setting.name: options[_parameter(setting)]
        for setting in all_settings()
        if options.get(_parameter(setting)) is not None
    }
    try:
        return load(os.environ, flags, config_file)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"holt: {problem}", err=True)
        count = len(error.problems)
        click.echo(f"holt: {count} problem{'s' if count > 1 else ''} in the configuration", err=True)
        raise SystemExit(BAD_CONFIGURATION) from None


def _option(setting: Setting) -> Callable[[_Command], _Command]:
    default = setting.default_text
    help_text = setting.about.help + (f"  [default: {default}]" if default else "")
    name = setting.flag.removeprefix("--")
    if setting.about.kind.is_flag:
        return click.option(f"--{name}/--no-{name}", _parameter(setting), default=None, help=help_text)
    # Strings on purpose: the configuration parses them like environment variables and reports all
    # problems together; click would stop at the first.
    metavar = setting.about.kind.metavar or setting.about.kind.name.upper()
    return click.option(setting.flag, _parameter(setting), metavar=metavar, help=help_text)


def _parameter(setting: Setting) -> str:
    return f"{setting.section}__{setting.key}"
