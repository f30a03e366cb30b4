"""The second run of a failed test: who gets one, what it starts from, and that it is seen."""

import os
import subprocess
import sys
from pathlib import Path

import reruns

TRIED = """
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("one")
runs = Path(__file__).with_name("runs")


class Server:
    alive = True


@pytest.fixture(scope="session")
def postgres():
    server = Server()
    yield server
    with runs.open("a") as log:
        log.write(f"stopped {'alive' if server.alive else 'dead'}\\n")
    if not server.alive:
        raise RuntimeError("cannot stop what is dead")


@pytest.fixture(scope="module")
def user(postgres):
    return postgres


def first_run(name):
    seen = name in (runs.read_text().split() if runs.exists() else ())
    with runs.open("a") as log:
        log.write(f"{name}\\n")
    return not seen


def test_a_server_that_died(user):
    assert user.alive
    if first_run("died"):
        user.alive = False
        raise ConnectionError("the server is gone")


def test_after_it(postgres, user):
    assert user is postgres
    assert user.alive


def test_a_limit_that_ran_out(postgres):
    if first_run("limit"):
        signal.setitimer(signal.ITIMER_REAL, 0)  # it has fired
        pytest.fail("Timeout")
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0


def test_fails_twice(postgres):
    first_run("twice")
    raise AssertionError("a fault, not chance")


def test_in_one_process():
    first_run("alone")
    raise AssertionError("a fault at the first sight")
"""


def run(folder: Path, *options: str) -> tuple[int, str, list[str]]:
    (folder / "test_tried.py").write_text(TRIED)
    (folder / "pytest.ini").write_text("[pytest]\ntimeout = 600\n")
    (folder / "runs").unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "reruns", "-raR", "--rerun-show-tracebacks", *options]
        + [f"-pno:{plugin}" for plugin in ("randomly", "asyncio", "cacheprovider", "holtmq")],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        | {"PYTHONPATH": str(reruns.TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr, (folder / "runs").read_text().splitlines()


def test_a_second_run_has_new_fixtures_and_the_whole_limit_and_is_named(tmp_path: Path) -> None:
    code, out, runs = run(tmp_path, "-n", "1", "--dist", "loadgroup", "-k", "died or after or limit")
    assert code == 0, out
    assert "3 passed, 2 rerun" in out
    assert "RERUN test_tried.py::test_a_server_that_died" in out
    assert "the server is gone" in out
    assert runs == ["died", "stopped dead", "died", "limit", "stopped alive", "limit", "stopped alive"], out


def test_two_failures_fail_the_run_and_a_test_in_one_process_gets_one_try(tmp_path: Path) -> None:
    code, out, runs = run(tmp_path, "-k", "twice or process")
    assert code == 1, out
    assert "2 failed" in out
    assert "1 rerun" in out
    assert runs.count("twice") == 2
    assert runs.count("alone") == 1


def test_the_list_names_what_exists_and_leaves_the_tests_of_rules_out() -> None:
    assert [part for part in reruns.WITH_PROCESSES if not (reruns.TESTS / part).exists()] == []
    for part in ("model", "broker", "journal", "amqp", "simulation"):
        assert not reruns.starts_processes(reruns.TESTS / part / "test_one.py", ())
    assert reruns.starts_processes(reruns.TESTS / "journal" / "test_one.py", ("postgres",))
