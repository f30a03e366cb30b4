"""A RabbitMQ for tests: Debian's server in a folder of its own, on loopback, with ports of its own.

Owns: starting, killing and restarting it. Must not touch: a RabbitMQ that already runs here; node name,
port mapper, cookie and folders are private.
"""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from ports import free_port

SERVER: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_START_SECONDS: Final = 180.0
_PLUGINS: Final = "[rabbitmq_management].\n"


class RabbitMq:
    """One node; its data survives ``kill``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.amqp_port, self.http_port = free_port(), free_port()
        self._dist_port, self._epmd_port = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._port_mapper: subprocess.Popen[bytes] | None = None
        (folder / "log").mkdir(parents=True)
        (folder / "enabled_plugins").write_text(_PLUGINS)
        (folder / "rabbitmq.conf").write_text(
            f"management.tcp.port = {self.http_port}\nmanagement.tcp.ip = 127.0.0.1\n"
            "loopback_users = none\ncollect_statistics_interval = 1000\n"
        )

    @property
    def amqp_url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.amqp_port}/%2F"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def _environment(self) -> dict[str, str]:
        folder = self.folder
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(folder),  # where Erlang keeps its cookie
            "RABBITMQ_NODENAME": f"holt-test-{os.getpid()}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.amqp_port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_BASE": str(folder),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_LOGS": str(folder / "log" / "server.log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
            # Idle schedulers that spin would take the processor time of the tests beside this one.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +sbwt none +sbwtdcpu none +sbwtdio none +S 1:1"
            ),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
        }

    def start(self) -> None:
        """Until it answers over HTTP and AMQP."""
        if self._port_mapper is None:
            self._start_port_mapper()
        with (self.folder / "log" / "console.log").open("ab") as console:
            self._process = subprocess.Popen(
                [str(SERVER)],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait(self._process, self.amqp_port, self.http_port)  # the management API comes last

    def _start_port_mapper(self) -> None:
        """Erlang would start one that outlives its node: told to end, it refuses until it has noticed the
        death of the node."""
        with (self.folder / "log" / "console.log").open("ab") as console:
            self._port_mapper = subprocess.Popen(
                ["epmd"],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait(self._port_mapper, self._epmd_port)

    def _wait(self, process: subprocess.Popen[bytes], *ports: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not all(_is_open(port) for port in ports):
            if process.poll() is not None or time.monotonic() > deadline:
                log = (self.folder / "log" / "console.log").read_text(errors="replace")
                raise RuntimeError(f"RabbitMQ did not start:\n{log[-2000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """SIGKILL, to every process of the node; its ports are closed afterwards.

        Erlang is a child of the script that is waited for, and may take longer to end: a start at that moment
        would find the old ports open, and return before there is a new node.
        """
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            deadline = time.monotonic() + _START_SECONDS
            while any(_is_open(port) for port in (self.amqp_port, self.http_port, self._dist_port)):
                if time.monotonic() > deadline:
                    raise RuntimeError("RabbitMQ was killed and still listens")
                time.sleep(0.02)

    def stop(self) -> None:
        """End the node and its port mapper."""
        self.kill()
        if self._port_mapper is not None:
            self._port_mapper.kill()
            self._port_mapper.wait()
            self._port_mapper = None


def _is_open(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def started(folder: Path) -> RabbitMq:
    """A started node."""
    if not SERVER.exists():
        raise RuntimeError("no RabbitMQ in /usr/lib/rabbitmq: scripts/setup-system.sh installs it")
    node = RabbitMq(folder)
    try:
        node.start()
    except BaseException:
        node.stop()
        raise
    return node
