"""``holt version``: the versions to put into a bug report."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import click

from holtmq import __version__

_PARTS = ("uvloop", "httptools", "msgspec", "cryptography", "google-re2", "isal")


@click.command()
def version() -> None:
    """Print the versions of HoltMQ and of what it runs on."""
    click.echo(f"HoltMQ {__version__}")
    click.echo(f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}")
    for part in _PARTS:
        try:
            click.echo(f"{part} {installed(part)}")
        except PackageNotFoundError:
            click.echo(f"{part} is missing")
