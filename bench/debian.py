"""Peers from Debian: installed when they are missing and we may, run in a folder that is removed again.

Owns: the package, the temporary folder, and stopping what was started. Must not touch: a server of the same
kind that already runs here.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_POLICY = Path("/usr/sbin/policy-rc.d")


def install(package: str) -> None:
    """Have apt install a package without starting its service."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SystemExit(f"not installed: apt-get install {package}")
    ours = not _POLICY.exists()
    if ours:
        _POLICY.write_text("#!/bin/sh\nexit 101\n")
        _POLICY.chmod(0o755)
    try:
        subprocess.run(["apt-get", "update", "-q"], check=True)
        command = ["apt-get", "install", "-q", "-y", "--no-install-recommends", package]
        subprocess.run(command, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})
    finally:
        if ours:
            _POLICY.unlink()


@contextmanager
def folder(name: str, owner: str | None = None) -> Iterator[Path]:
    """A temporary folder, for ``owner`` when given."""
    path = Path(tempfile.mkdtemp(prefix=f"holt-bench-{name}-"))
    try:
        if owner is not None:
            shutil.chown(path, owner)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def server(
    command: Sequence[str], log: Path, stop: signal.Signals, user: str | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server for as long as the block lasts."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, user=user, cwd=log.parent
        )
    try:
        yield process
    finally:
        process.send_signal(stop)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def ended(process: subprocess.Popen[bytes], log: Path, what: str) -> None:
    """Give up on a server that does not start, with its last words."""
    if process.poll() is not None:
        raise SystemExit(f"{what} did not start:\n{log.read_text(errors='replace')[-2000:]}")
