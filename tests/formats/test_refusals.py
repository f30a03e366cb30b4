"""What a version does not understand: it refuses to start, and says which record, where, and who wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from holtmq.broker.partitioned.log.bodies import Body, encode_body
from holtmq.broker.records.changes import Kind, VhostPut, encode_change
from holtmq.cli.journal import journal as command
from holtmq.journal import JournalTooNew, open_journal
from holtmq.testing import TestBroker
from holtmq.testing.broker import BrokerDidNotStart

_pack = msgspec.msgpack.encode
_EVENT_HEAD = b"\x01\x00\x00\x00"


def write(folder: Path, records: Sequence[tuple[int, bytes]]) -> int:
    """Behind a broker's own records; where the last of these lies."""
    with TestBroker(folder):
        pass
    journal, recovery = open_journal(folder)
    recovery.drain()
    positions = journal.append_batch(records)
    journal.close()
    return positions[-1]


BODY = (int(Kind.PARTITIONED_BODY), encode_body(Body("t", b"1")))
NOT_UNDERSTOOD: dict[str, list[tuple[int, bytes]]] = {
    "an unknown kind": [(99, b"from the future")],
    "an unknown kind behind bodies": [BODY, (99, b"from the future")],
    "an unknown kind of work queues": [(29, b"from the future")],
    "an unknown change": [(Kind.CHANGE, _pack(["gadget+", "x"]))],
    "a change with a field more": [(Kind.CHANGE, _pack(["user-", "guest", "a new field"]))],
    "an unknown vhost": [
        (Kind.CHANGE, _pack(["exchange+", "nowhere", "x", "fanout", False, False, b"\0\0\0\0"]))
    ],
    "an unknown event": [(Kind.PARTITIONED, b"\x01\x00\x00\x00" + b"\xc8" + _EVENT_HEAD + b"\x80")],
    "an event with a field more": [
        (
            Kind.PARTITIONED,
            len(_pack({"group": 1, "new": 2})).to_bytes(4, "little")
            + b"\x13"
            + _EVENT_HEAD
            + _pack({"group": 1, "new": 2}),
        )
    ],
    "a state with a field more": [(Kind.COUNTERS, _pack([1, 2, 3]))],
    "bodies without their record": [BODY],
    "a spool with more places than bodies": [BODY, (Kind.SPOOLED, _pack([["q", "p"], ["q", "p"]]))],
}


@pytest.mark.parametrize("what", NOT_UNDERSTOOD)
def test_it_is_refused_by_kind_position_and_version(what: str, tmp_path: Path) -> None:
    records = NOT_UNDERSTOOD[what]
    position = write(tmp_path, records)
    kind = records[-1][0]

    with pytest.raises(BrokerDidNotStart) as refusal:
        TestBroker(tmp_path).start()

    text = str(refusal.value)
    assert isinstance(refusal.value.__cause__, JournalTooNew)
    assert f"kind {int(kind)}" in text
    assert f"at position {position} " in text
    assert "field more" not in what or "unknown field" in text or "at most" in text
    assert "HoltMQ 0.1.0 wrote the journal: start that version, or a later one" in text
    checked = CliRunner().invoke(command, ["check", str(tmp_path)])
    assert checked.exit_code == 1
    assert f"A broker does not start on it: {text}" in checked.output
    repaired = CliRunner().invoke(command, ["repair", str(tmp_path), "--yes"])
    assert repaired.exit_code == 1  # nothing is damaged: there is nothing to give up
    assert not list(tmp_path.glob("*.removed"))


def test_bodies_never_attach_to_a_later_push(tmp_path: Path) -> None:
    write(tmp_path, [BODY])
    journal, recovery = open_journal(tmp_path)
    recovery.drain()
    journal.append(Kind.CHANGE, encode_change(VhostPut("later")))
    journal.close()

    with pytest.raises(BrokerDidNotStart, match="bodies of messages without the record"):
        TestBroker(tmp_path).start()


def test_a_repaired_journal_does_not_excuse_it(tmp_path: Path) -> None:
    write(tmp_path, [(Kind.PAGED, b"to be damaged"), (Kind.PAGED, b"whole")])
    segment = max(tmp_path.glob("*.seg"))
    segment.write_bytes(segment.read_bytes().replace(b"to be damaged", b"to be DAMAGED"))
    assert CliRunner().invoke(command, ["repair", str(tmp_path), "--yes"]).exit_code == 0
    write(tmp_path, [(99, b"from the future"), (Kind.PAGED, b"whole")])

    with pytest.raises(BrokerDidNotStart, match="unknown kind 99"):
        TestBroker(tmp_path).start()
