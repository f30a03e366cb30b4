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
from contextlib import contextmanager
from pathlib import Path

from holtmq.load.link import Address, Link, LoadError

_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_START_SECONDS = 90.0


@contextmanager
def rabbitmq() -> Iterator[str]:
    """Run a RabbitMQ with its defaults; its URL."""
    _install_if_missing()
    folder = Path(tempfile.mkdtemp(prefix="holt-bench-rabbitmq-"))
    port, dist_port, epmd_port = free_port(), free_port(), free_port()
    environment = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(folder),  # where Erlang keeps its cookie
        "RABBITMQ_NODENAME": f"holt-bench-{os.getpid()}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_BASE": str(folder),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": str(folder / "log" / "server.log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(epmd_port),
    }
    (folder / "enabled_plugins").write_text("[].\n")
    (folder / "log").mkdir()
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
        # The port mapper outlives the server it was started by; this one serves our node alone.
        subprocess.run(["epmd", "-kill"], env=environment, capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)


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
