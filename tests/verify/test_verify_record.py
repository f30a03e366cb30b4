"""The outside record: what counts as a broken promise, and what does not."""

import pytest

from holtmq.verify.record import Record, make_body, name_of


@pytest.fixture
def record() -> Record:
    return Record()


def bodies(*names: str) -> list[bytes]:
    return [make_body(name, 5) for name in names]


def send(record: Record, *, confirmed: bool = True, queue: str = "q", publisher: str = "p") -> str:
    name = record.next_name(queue, publisher)
    if confirmed:
        record.confirm(name)
    return name


def test_a_body_names_itself_and_shows_damage() -> None:
    body = make_body("p.1", 10)

    assert name_of(body) == "p.1"
    for at in range(len(body)):
        assert name_of(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]) is None


def test_a_confirmed_message_that_is_missing_is_lost(record: Record) -> None:
    name = send(record)

    assert record.compare({"q": []}).lost == [name]


def test_an_unconfirmed_message_may_be_there_or_not(record: Record) -> None:
    there, _ = send(record, confirmed=False), send(record, confirmed=False)

    assert record.compare({"q": bodies(there)}).is_clean


def test_what_was_seen_after_a_recovery_has_to_stay(record: Record) -> None:
    name = send(record, confirmed=False)
    record.compare({"q": bodies(name)})

    assert record.compare({"q": []}).lost == [name]


def test_what_was_missing_after_a_recovery_may_not_come_back(record: Record) -> None:
    name = send(record, confirmed=False)
    record.compare({"q": []})

    assert record.compare({"q": bodies(name)}).undone == [name]


def test_an_ack_without_proof_may_be_undone_and_one_with_proof_may_not(record: Record) -> None:
    unproven, proven = send(record), send(record)
    record.leave(unproven)
    record.leave(proven)
    record.ack_is_durable([proven])

    findings = record.compare({"q": bodies(unproven, proven)})

    assert findings.undone == [proven]


def test_a_confirm_that_comes_after_the_ack_brings_nothing_back(record: Record) -> None:
    name = send(record, confirmed=False)
    record.leave(name)
    record.confirm(name)

    assert record.compare({"q": []}).is_clean


def test_order_is_judged_within_a_publisher_only(record: Record) -> None:
    a, b, c = send(record), send(record, publisher="other"), send(record)

    assert record.compare({"q": bodies(b, a, c)}).is_clean
    assert record.compare({"q": bodies(c, b, a)}).disordered == [a]


@pytest.mark.parametrize("strange", [b"garbage", make_body("nobody.1", 0)])
def test_what_nobody_sent_is_damage(record: Record, strange: bytes) -> None:
    assert len(record.compare({"q": [strange]}).damaged) == 1


def test_a_message_that_is_there_twice_is_damage(record: Record) -> None:
    name = send(record)

    assert record.compare({"q": bodies(name, name)}).damaged == [name]


@pytest.mark.parametrize(
    ("left", "arrived", "torn"),
    [
        (True, (), False),
        (False, ("out", "audit"), False),
        (False, ("out",), True),
        (True, ("out", "audit"), True),
        (False, (), True),
    ],
)
def test_a_transaction_without_an_answer_happened_or_did_not(
    record: Record, left: bool, arrived: tuple[str, ...], torn: bool
) -> None:
    name = send(record)
    copies = dict(record.move([name], ("out", "audit")))

    findings = record.compare(
        {
            "q": bodies(name) if left else [],
            **{queue: bodies(copies[queue]) if queue in arrived else [] for queue in ("out", "audit")},
        }
    )

    assert bool(findings.torn) == torn


def test_a_source_that_was_never_durable_may_vanish_with_its_transaction(record: Record) -> None:
    name = send(record, confirmed=False)
    record.move([name], ("out", "audit"))

    assert record.compare({"q": [], "out": [], "audit": []}).is_clean


def test_a_committed_transaction_must_have_happened(record: Record) -> None:
    name = send(record)
    record.move([name], ("out", "audit"))
    record.moved()

    findings = record.compare({"q": bodies(name), "out": [], "audit": []})

    assert findings.undone == [name]
    assert findings.lost == [f"{name}>out", f"{name}>audit"]


def test_a_message_without_an_answer_may_be_sent_again_under_its_name(record: Record) -> None:
    name = send(record, confirmed=False)
    record.compare({"q": []})
    record.send_again(name)

    record.sent_again(name, stored=True)

    assert record.compare({"q": bodies(name)}).is_clean
    assert record.compare({"q": []}).lost == [name]


def test_a_repeat_that_dies_without_an_answer_leaves_the_message_in_doubt(record: Record) -> None:
    name = send(record, confirmed=False)
    record.compare({"q": []})
    record.send_again(name)

    assert record.compare({"q": bodies(name)}).is_clean


def test_a_repeat_taken_for_a_duplicate_of_nothing_is_a_loss(record: Record) -> None:
    name = send(record, confirmed=False)
    record.compare({"q": []})
    record.send_again(name)

    record.sent_again(name, stored=False)

    assert record.compare({"q": []}).lost == [name]


def test_a_repeat_that_is_stored_twice_is_damage(record: Record) -> None:
    name = send(record, confirmed=False)
    record.compare({"q": bodies(name)})
    record.send_again(name)

    record.sent_again(name, stored=True)

    assert record.compare({"q": bodies(name, name)}).damaged == [name]


@pytest.mark.parametrize(("stored", "found", "clean"), [(True, 1, True), (False, 0, True), (False, 1, False)])
def test_a_repeat_behind_an_unproven_ack_is_believed(
    record: Record, stored: bool, found: int, clean: bool
) -> None:
    name = send(record, confirmed=False)
    record.leave(name)
    record.compare({"q": []})
    record.send_again(name)

    record.sent_again(name, stored=stored)

    assert record.compare({"q": bodies(name) * found}).is_clean == clean


def test_a_repeat_behind_a_durable_ack_brings_nothing_back(record: Record) -> None:
    name = send(record, confirmed=False)
    record.leave(name)
    record.ack_is_durable([name])
    record.send_again(name)

    record.sent_again(name, stored=True)

    assert record.compare({"q": bodies(name)}).undone == [name]
