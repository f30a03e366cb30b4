"""The ``holt`` command.

Owns: the list of verbs and the module of each. A verb's module is imported when the verb is used, so that
``holt serve`` does not load the others.
"""

import importlib

import click

from holtmq import __version__
from holtmq.cli.endings import PlainEndings

_VERBS = {
    "serve": "holtmq.cli.serve:serve",
    "health": "holtmq.cli.health:health",
    "stuck": "holtmq.cli.attention:stuck",
    "top": "holtmq.cli.attention:top",
    "config": "holtmq.cli.show_config:config",
    "user": "holtmq.cli.users:user",
    "vhost": "holtmq.cli.users:vhost",
    "permission": "holtmq.cli.users:permission",
    "policy": "holtmq.cli.queues:policy",
    "queue": "holtmq.cli.queues:queue",
    "delayed": "holtmq.cli.delayed:delayed",
    "dead-letters": "holtmq.cli.dead_letters:dead_letters",
    "job": "holtmq.cli.jobs:job",
    "exchange": "holtmq.cli.clients:exchange",
    "connection": "holtmq.cli.clients:connection",
    "consumer": "holtmq.cli.clients:consumer",
    "migrate": "holtmq.cli.migrate:migrate",
    "shovel": "holtmq.cli.shovels:shovel",
    "journal": "holtmq.cli.journal:journal",
    "backup": "holtmq.cli.backup:backup",
    "restore": "holtmq.cli.backup:restore",
    "cluster": "holtmq.cli.cluster:cluster",
    "bench": "holtmq.cli.bench:bench",
    "pipeline": "holtmq.cli.pipeline:pipeline",
    "verify": "holtmq.cli.verify:verify",
    "version": "holtmq.cli.version:version",
}


class LazyVerbs(PlainEndings):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order in which a new user needs them."""
        return list(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the verb; None when no verb has that name."""
        if cmd_name not in _VERBS:
            return None
        module, _, attribute = _VERBS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=LazyVerbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: holt serve",
)
@click.version_option(__version__, "-V", "--version", prog_name="holt")
def main() -> None:
    """HoltMQ: a message broker you pip install."""
