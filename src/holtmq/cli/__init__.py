"""The ``holt`` command.

Owns: the list of verbs, with the module and a line about each. A verb's module is imported when the verb is
used: ``holt serve`` does not load the others, and ``--help`` and shell completion load none.
"""

import importlib
from typing import Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from holtmq import __version__
from holtmq.cli.endings import PlainEndings


class Verb(NamedTuple):
    """A command that is not imported yet."""

    where: str  # module:attribute
    about: str  # one line of ``holt --help``


_VERBS: Final = {
    "serve": Verb("holtmq.cli.serve:serve", "Run a broker in the foreground"),
    "health": Verb("holtmq.cli.health:health", "Tell whether a broker is healthy"),
    "stuck": Verb("holtmq.cli.attention:stuck", "List what needs attention, since when, and who has it"),
    "top": Verb("holtmq.cli.attention:top", "Show the busiest queues, refreshed until Ctrl-C"),
    "config": Verb("holtmq.cli.show_config:config", "Print the effective settings and where each comes from"),
    "user": Verb("holtmq.cli.users:user", "Add, change and remove users"),
    "vhost": Verb("holtmq.cli.users:vhost", "Add and remove vhosts"),
    "permission": Verb("holtmq.cli.users:permission", "Set, list and remove permissions of users in a vhost"),
    "policy": Verb("holtmq.cli.queues:policy", "Set options of queues and exchanges by a pattern of names"),
    "queue": Verb("holtmq.cli.queues:queue", "List, pause, empty and delete queues; peek, move, copy"),
    "delayed": Verb("holtmq.cli.delayed:delayed", "List, deliver and cancel delayed messages"),
    "dead-letters": Verb(
        "holtmq.cli.dead_letters:dead_letters", "List dead letters by error; redrive, discard, export them"
    ),
    "job": Verb("holtmq.cli.jobs:job", "Watch, cancel and resume moves, copies, purges, redrives"),
    "exchange": Verb("holtmq.cli.clients:exchange", "Show where an exchange routes messages"),
    "connection": Verb("holtmq.cli.clients:connection", "List client connections, and close them"),
    "consumer": Verb("holtmq.cli.clients:consumer", "List the consumers of queues, and cancel them"),
    "migrate": Verb("holtmq.cli.migrate:migrate", "Move from a RabbitMQ to this broker while both run"),
    "shovel": Verb("holtmq.cli.shovels:shovel", "Move messages between brokers: list, set, delete, restart"),
    "journal": Verb("holtmq.cli.journal:journal", "Inspect and repair a journal folder"),
    "backup": Verb("holtmq.cli.backup:backup", "Back up a broker's data to a folder or a bucket"),
    "restore": Verb("holtmq.cli.backup:restore", "Restore a backup into an empty folder, verified"),
    "cluster": Verb("holtmq.cli.cluster:cluster", "Show which node owns a shared log; hand it over"),
    "bench": Verb("holtmq.cli.bench:bench", "Measure brokers: rates, CPU per message, latency, memory"),
    "pipeline": Verb("holtmq.cli.pipeline:pipeline", "Queues as streams and tables, on Apache Spark"),
    "verify": Verb("holtmq.cli.verify:verify", "Prove durability on your own disk"),
    "version": Verb("holtmq.cli.version:version", "Print the versions of HoltMQ and of what it runs on"),
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
        module, _, attribute = _VERBS[cmd_name].where.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs for ``--help``."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.about) for name, verb in _VERBS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs that begin so, then what click offers for any command: its options."""
        verbs = [
            CompletionItem(name, help=verb.about)
            for name, verb in _VERBS.items()
            if name.startswith(incomplete)
        ]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)


@click.group(
    cls=LazyVerbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: holt serve",
)
@click.version_option(__version__, "-V", "--version", prog_name="holt")
def main() -> None:
    """HoltMQ: a message broker you pip install."""
