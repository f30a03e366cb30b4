"""RabbitMQ beside us: Debian's server on a port of its own, in a temporary folder, on loopback only.

Owns: installing it when it is missing and we may, starting, stopping. Must not touch: a RabbitMQ that
already runs here; node name, epmd port, cookie and folders are all private to the bench.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holtmq.load.errors import LoadError
from holtmq.load.link import Address, Link

_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_START_SECONDS = 90.0


@contextmanager
def rabbitmq(config: str = "") -> Iterator[str]:
    """Run a RabbitMQ with its defaults, or with these lines in its ``rabbitmq.conf``; its URL."""
    name = f"holt-bench-{os.getpid()}@localhost"
    with _home() as (home, epmd_port), _node(home, epmd_port, name, config) as url:
        yield url


@contextmanager
def rabbitmq_cluster(size: int = 3) -> Iterator[str]:
    """Run a cluster of RabbitMQ nodes on this machine; the URL of the first."""
    names = [f"holt-bench-{os.getpid()}-{number}@localhost" for number in range(1, size + 1)]
    lines = ["cluster_formation.peer_discovery_backend = classic_config"]
    lines += [
        f"cluster_formation.classic_config.nodes.{number} = {name}" for number, name in enumerate(names)
    ]
    with _home() as (home, epmd_port), ExitStack() as nodes:
        # One after the other: nodes that start at once may each found a cluster of their own.
        urls = [nodes.enter_context(_node(home, epmd_port, name, "\n".join([*lines, ""]))) for name in names]
        count = subprocess.run(
            ["rabbitmqctl", "-n", names[0], "eval", "length(rabbit_mnesia:cluster_nodes(running))."],
            env=_environment(home, epmd_port),
            capture_output=True,
            text=True,
            check=True,
        )
        if int(count.stdout) != size:
            raise SystemExit(f"RabbitMQ's cluster has {count.stdout.strip()} of {size} nodes")
        yield urls[0]


@contextmanager
def _home() -> Iterator[tuple[Path, int]]:
    """A folder for the nodes of one cluster and its Erlang cookie, and a port mapper of its own."""
    _install_if_missing()
    home, epmd_port = Path(tempfile.mkdtemp(prefix="holt-bench-rabbitmq-")), free_port()
    try:
        yield home, epmd_port
    finally:
        # The port mapper outlives the server it was started by; this one serves our nodes alone.
        environment = _environment(home, epmd_port)
        subprocess.run(["epmd", "-kill"], env=environment, capture_output=True, check=False)
        shutil.rmtree(home, ignore_errors=True)


def _environment(home: Path, epmd_port: int) -> dict[str, str]:
    return {
        "PATH": f"/usr/lib/rabbitmq/bin:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "HOME": str(home),  # where Erlang keeps its cookie
        "RABBITMQ_CONF_ENV_FILE": str(home / "rabbitmq-env.conf"),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(epmd_port),
    }


@contextmanager
def _node(home: Path, epmd_port: int, name: str, config: str = "") -> Iterator[str]:
    folder, port = home / name, free_port()
    (folder / "log").mkdir(parents=True)
    (folder / "enabled_plugins").write_text("[].\n")
    (folder / "rabbitmq.conf").write_text(config)
    environment = _environment(home, epmd_port) | {
        "RABBITMQ_NODENAME": name,
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_BASE": str(folder),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": str(folder / "log" / "server.log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }
    with (folder / "log" / "console.log").open("wb") as console:
        process = subprocess.Popen(
            [str(_SERVER)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        url = f"amqp://guest:guest@127.0.0.1:{port}/"
        _wait_until_ready(url, process, folder)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            Link(Address.parse(url)).close()
            return
        except LoadError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                log = (folder / "log" / "console.log").read_text(errors="replace")
                raise SystemExit(f"RabbitMQ did not start: {error}\n{log[-2000:]}") from None
            time.sleep(0.25)


def _install_if_missing() -> None:
    if _SERVER.exists():
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SystemExit("RabbitMQ is not installed: apt-get install rabbitmq-server")
    # The package starts its service at once where a service manager runs; the bench wants only the files.
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        subprocess.run(["apt-get", "update", "-q"], check=True)
        subprocess.run(
            ["apt-get", "install", "-q", "-y", "--no-install-recommends", "rabbitmq-server"], check=True
        )
    finally:
        if ours:
            policy.unlink()
