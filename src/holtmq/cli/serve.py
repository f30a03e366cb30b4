"""``holt serve``: run a broker until it is told to stop.

Owns: reading the configuration and setting up logging. Must not touch: listeners and the broker;
``holtmq.process`` runs those.
"""

import logging
from pathlib import Path

import click

from holtmq import __version__, logs
from holtmq.cli.settings import load_or_exit, with_settings
from holtmq.config import Config, LogFormat

log = logging.getLogger(__name__)


@click.command()
@with_settings
@click.option(
    "--standby", is_flag=True, help="With a replica: leave a log that is free to other nodes first."
)
def serve(config_file: Path | None, standby: bool, **options: object) -> None:
    """Run a broker in the foreground.

    Every option can also be set in the configuration file (--amqp-port is port in [amqp]) or in the
    environment (HOLT_AMQP_PORT). An option overrides the environment, which overrides the file.
    SIGTERM and SIGINT stop the broker gracefully, SIGHUP makes it reload its certificates.
    """
    if standby:
        options["journal__replica_standby"] = True
    config = load_or_exit(config_file, options).config
    logs.configure(config.log)
    if config.log.format is LogFormat.JSON:  # a line that is not JSON would be an error of the log's reader
        where = "memory only" if config.data.memory else str(config.data.dir)
        log.info("starting", extra={"version": __version__, "data": where})
    else:
        click.echo(welcome(config))

    from holtmq.process import serve as run  # imports the whole broker, which --help does not need

    raise SystemExit(run(config))


def welcome(config: Config) -> str:
    """The addresses the broker will listen on. A port that is chosen later appears in the log only."""
    place = "memory only" if config.data.memory else f"data in {config.data.dir}"
    if config.journal.replica:
        place += f", replicated as {config.journal.replica_name}"
    amqp, http = config.amqp, config.http
    listeners = (
        ("AMQP", "amqp://guest:guest@", amqp.host, amqp.port if amqp.plain else 0),
        ("AMQPS", "amqps://guest:guest@", amqp.host, amqp.tls_port if amqp.tls_cert else 0),
        ("HTTP", "http://", http.host, http.port if http.plain else 0),
        ("HTTPS", "https://", http.host, http.tls_port if http.tls_cert else 0),
    )
    lines = [
        f"  {name:<6} {start}{_address(host, port)}/"
        for name, start, hosts, port in listeners
        if port
        for host in hosts
    ]
    web = next((line.split()[1] for line in lines if line.startswith("  HTTP")), "")
    if web:
        lines += [f"  health {web}health", f"  docs   {web}docs"]
    hint = " Once it is ready, it listens on:" if lines else ""
    return "\n".join([f"HoltMQ {__version__}, {place}.{hint}", *lines])


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
