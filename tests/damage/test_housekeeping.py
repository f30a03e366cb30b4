"""What a node does every second goes on when a part of it fails; a folder that is gone ends the journal."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from damage.test_node_life import config
from holtmq import node as nodes
from holtmq.config import Journal
from holtmq.journal import JournalError, open_journal
from holtmq.journal.disk import OsDisk
from holtmq.node import Node
from holtmq.upkeep.housekeeping import Housekeeping


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not reached():
            await asyncio.sleep(0.001)


async def test_a_duty_that_fails_does_not_end_the_others_and_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []
    troubles = ["stale", "stale", "stale", "", "stale", "other"]

    def failing() -> None:
        if trouble := troubles.pop(0):
            raise OSError(trouble)

    async def also_failing() -> None:
        raise ValueError("never")

    async def good() -> None:
        done.append("good")

    house = Housekeeping({"first": failing, "second": also_failing, "third": good})
    with caplog.at_level(logging.ERROR):
        for _ in range(6):
            await house.once()

    assert len(done) == 6
    reported = [str(record.exc_info and record.exc_info[1]) for record in caplog.records]
    assert sorted(reported) == ["never", "other", "stale", "stale"]


async def test_checkpoints_are_made_while_the_free_space_cannot_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_HOUSEKEEPING_SECONDS", 0.001)
    settings = config(tmp_path / "data", disk_free_min_bytes=1)
    small = Journal(segment_bytes=65_536, checkpoint_bytes=65_536)
    node = Node(msgspec.structs.replace(settings, journal=small))
    await node.start()
    asked = 0

    def stale(_: object) -> None:
        nonlocal asked
        asked += 1
        raise OSError("Stale file handle")

    monkeypatch.setattr("holtmq.upkeep.alarms.os.statvfs", stale)
    await until(lambda: asked > 3)
    node.journal.append(20, bytes(70_000))

    await until(lambda: node.journal.stats().checkpoints > 0)

    await node.stop(0)


def gone(folder: Path) -> None:
    shutil.rmtree(folder)


def moved(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def replaced(folder: Path) -> None:
    shutil.rmtree(folder)
    open_journal(folder)[1].drain()


def became_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize("what", [gone, moved, replaced, became_a_file])
async def test_a_node_whose_folder_is_no_longer_there_confirms_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(nodes, "_HOUSEKEEPING_SECONDS", 0.001)
    folder = tmp_path / "data"
    node = Node(config(folder, disk_free_min_bytes=0))
    await node.start()
    what(folder)

    await until(lambda: node.journal.failed is not None)

    assert f"{folder}/lock" in str(node.journal.failed)
    with pytest.raises(JournalError):
        node.journal.append(20, b"")
    await node.stop(0)


def test_a_folder_that_is_where_it_was_is_not_lost(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path / "data")
    assert disk.lost() == ""
    disk.lock()
    assert disk.lost() == ""
    disk.unlock()
    assert disk.lost() == ""
