"""Run the broker of an installed wheel and send a message through it: ``try_wheel.py PYTHON``.

Owns: the proof that a wheel alone is enough. PYTHON is the interpreter of the environment that has the wheel;
this script runs in the development environment, which has a client.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pika


def try_wheel(python: str, path: str = "") -> str:
    """Publish, confirm and get one message, and load the dashboard; return where the package was found.

    ``path``: folders to look for packages in first.
    """
    environment = {**os.environ, "PYTHONPATH": path}
    with tempfile.TemporaryDirectory() as folder:
        where = subprocess.run(
            [python, "-c", "import holtmq; print(holtmq.__file__)"],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        options = ("--amqp-port", "0", "--http-port", "0", "--log-format", "json", "--amqp-host", "127.0.0.1")
        broker = subprocess.Popen(
            [python, "-m", "holtmq", "serve", "--data-dir", f"{folder}/data", *options],
            cwd=folder,
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        try:
            _use(*_ports(broker))
        finally:
            broker.terminate()
            _, rest = broker.communicate(timeout=60)
        if broker.returncode:
            raise SystemExit(f"the broker ended with {broker.returncode}: {rest}")
    return where.stdout.strip()


def _ports(broker: "subprocess.Popen[str]") -> tuple[int, int]:
    assert broker.stderr is not None
    seen = []
    for line in broker.stderr:
        seen.append(line)
        entry = json.loads(line)
        if entry.get("message") == "ready":
            return entry["amqp_port"], entry["http_port"]
    raise SystemExit("the broker did not start:\n" + "".join(seen))


def _use(amqp: int, http: int) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", amqp))
    channel = connection.channel()
    channel.queue_declare("hello", durable=True)
    channel.confirm_delivery()
    channel.basic_publish("", "hello", b"hi", pika.BasicProperties(delivery_mode=2), mandatory=True)
    if channel.basic_get("hello", auto_ack=True)[2] != b"hi":
        raise SystemExit("the message did not come back")
    connection.close()
    for page, text in (
        ("/", b"<html"),
        ("/ui/app.js", b"import"),
        ("/docs", b"<html"),
        ("/health", b"healthy"),
    ):
        with urllib.request.urlopen(f"http://127.0.0.1:{http}{page}", timeout=30) as answer:
            if text not in answer.read():
                raise SystemExit(f"{page} is not what it should be")


if __name__ == "__main__":
    print("ran", Path(try_wheel(str(Path(sys.argv[1]).absolute()))).parent)
