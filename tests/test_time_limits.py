"""What hangs in a test may keep its teardown from ending: that has a limit, too."""

import os
import subprocess
import sys
from pathlib import Path

import time_limits

HANGING = """
import threading
import pytest

@pytest.fixture
def stuck():
    server = threading.Event()
    yield server
    server.wait()


@pytest.mark.timeout(1)
def test_hangs(stuck):
    stuck.wait()


def test_after_it():
    pass
"""


def test_a_teardown_that_hangs_is_stopped_and_the_next_test_runs(tmp_path: Path) -> None:
    (tmp_path / "test_tried.py").write_text(HANGING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "time_limits"]
        + [f"-pno:{plugin}" for plugin in ("randomly", "asyncio", "cacheprovider", "holtmq")],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        | {"PYTHONPATH": str(Path(time_limits.__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert "1 failed, 1 passed, 1 error" in done.stdout, done.stdout + done.stderr
