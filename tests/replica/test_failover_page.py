"""docs/failover.md as a newcomer follows it: its commands and its client, as they stand, on other ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ports import free_port
from postgres import Cluster, programs

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("failover")]

PAGE = Path(__file__).parents[2] / "docs" / "failover.md"
PATIENCE = 180.0
# A machine where PostgreSQL's administrator is reached by sudo. Here it is the tests' own cluster.
SUDO = '#!/bin/sh\n[ "$1 $2" = "-u postgres" ] || exit 64\nshift 2\nPGUSER=postgres exec "$@"\n'


def blocks(language: str) -> list[str]:
    tutorial = PAGE.read_text(encoding="utf-8").partition("## What is guaranteed")[0]
    return re.findall(rf"```{language}\n(.*?)```", tutorial, flags=re.S)


@pytest.fixture
def shell(postgres: Cluster, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts what the page says in a folder of its own, with PostgreSQL where its tools look for it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "sudo").write_text(SUDO)
    (tools / "sudo").chmod(0o755)
    folders = [str(tools), str(Path(sys.executable).parent), str(programs()), os.environ["PATH"]]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLT_")}
    environment |= {"PATH": ":".join(folders), "PGHOST": "127.0.0.1", "PGPORT": str(postgres.port)}
    environment |= {"USER": "newcomer", "PGUSER": "newcomer"}
    environment["HOLT_JOURNAL_TAKEOVER_AFTER"] = (
        "60"  # only the kill ends the owner, no matter how slow it is
    )
    started: list[subprocess.Popen[str]] = []

    def start(command: str) -> subprocess.Popen[str]:
        log = open(tmp_path / f"terminal-{len(started)}", "w+", encoding="utf-8")  # noqa: SIM115
        process = subprocess.Popen(
            ["bash", "-euc", command],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        log.close()
        started.append(process)
        return process

    yield start
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for process in started:
        process.wait()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_the_page_can_be_followed_word_by_word(
    tmp_path: Path, shell: Callable[[str], subprocess.Popen[str]]
) -> None:
    ports = {port: str(free_port()) for port in ("5672", "5673", "6632", "6642")}

    def here(text: str) -> str:
        # All at once: a port put in may contain another one's digits.
        return re.sub("|".join(ports), lambda found: ports[found[0]], text)

    install, prepare, first, second, end = blocks("sh")
    (client,) = blocks("python")
    assert "apt install postgresql" in install  # done by scripts/setup-system.sh
    (tmp_path / "client.py").write_text(here(client))

    def said(terminal: int) -> str:
        return (tmp_path / f"terminal-{terminal}").read_text(encoding="utf-8")

    def numbers() -> list[int]:
        return [int(number) for number in re.findall(r"^got (\d+)$", said(3), flags=re.M)]

    assert shell(prepare).wait(PATIENCE) == 0, said(0)
    # The page leaves the first node on its usual ports.
    shell(first.strip() + f" --amqp-port {ports['5672']} --http-port {ports['6632']}")
    until(lambda: "holtmq.node ready" in said(1), "the first node is ready")
    shell(here(second))
    until(lambda: "standing by" in said(2), "the second node stands by")
    shell("python client.py")
    until(lambda: len(numbers()) >= 5, "the client works")

    killing = shell(end)
    until(lambda: "holtmq.node ready" in said(2), "the second node takes over")
    before = len(numbers())
    until(lambda: len(numbers()) >= before + 5, "the client goes on")

    assert killing.wait(PATIENCE) == 0, said(4)
    assert "log holtmq" in said(4)
    assert "looking for the owner" in said(3)
    found = numbers()
    missing = set(range(found[-1])) - set(found)
    assert not missing, f"confirmed and never seen again: {missing}"
