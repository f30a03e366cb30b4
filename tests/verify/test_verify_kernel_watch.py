"""What ``strace`` writes is understood, and a sync counts for one report of it."""

import os
from pathlib import Path

import pytest

from holtmq.verify.kernel_watch import KernelWatch, Strace


def seen(lines: bytes) -> KernelWatch:
    watch = KernelWatch()
    read_end, write_end = os.pipe()
    os.write(write_end, lines)
    os.close(write_end)
    watch.read(read_end)
    return watch


def test_a_call_counts_for_one_report() -> None:
    watch = seen(b"12 fdatasync(7</data/0000.seg>)   = 0\n13 fsync(9</data>) = 0\n")

    assert watch.confirms("0000.seg")
    assert not watch.confirms("0000.seg")
    assert watch.confirms("data")


def test_calls_of_threads_that_overlap_are_told_apart() -> None:
    watch = seen(
        b"12 fdatasync(7</data/a.seg> <unfinished ...>\n"
        b"13 fdatasync(8</data/b.ckpt.tmp>) = 0\n"
        b"12 <... fdatasync resumed>)       = 0\n"
    )

    assert watch.confirms("a.seg")
    assert watch.confirms("b.ckpt.tmp")


@pytest.mark.parametrize(
    "line",
    [
        b"12 fdatasync(7</data/a.seg>) = -1 EIO (Input/output error)\n",
        b"12 fdatasync(7</data/a.seg> <unfinished ...>\n",
        b"12 fdatasync(7</data/a.seg> <unfinished ...>\n12 <... fdatasync resumed>) = -1 EIO (x)\n",
        b"12 +++ killed by SIGKILL +++\n",
    ],
)
def test_a_call_that_failed_or_never_returned_confirms_nothing(line: bytes) -> None:
    assert not seen(line).confirms("a.seg")


def test_without_the_program_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holtmq.verify.kernel_watch.shutil.which", lambda name: None)

    assert Strace.find() == Strace(why_not="strace is not installed")


@pytest.mark.parametrize(
    ("trace", "works"),
    [
        ("12 fdatasync(3</tmp/x>(deleted)) = 0\n12 getppid() = 11", True),
        ("12 getppid() = 11", True),  # the sync did not reach the kernel: the broker's will not either
        ("12 fdatasync in words that are not understood\n12 getppid() = 11\nfdatasync(", False),
        ("", False),
    ],
)
def test_a_sync_that_does_not_reach_the_kernel_is_told_from_a_trace_that_is_not_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trace: str, works: bool
) -> None:
    program = tmp_path / "strace"
    program.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncat > "$2" <<END\n{trace}\nEND\n')
    program.chmod(0o755)
    monkeypatch.setattr("holtmq.verify.kernel_watch.shutil.which", lambda _: str(program))

    found = Strace.find()

    assert (found.path == str(program)) is works
    assert bool(found.why_not) is not works
