"""What a dead message says about its deaths."""

from datetime import UTC, datetime

from core_support import content_header

from holtmq.broker.work.dead_letter import DeadLetter, dead_letter
from holtmq.wire.properties import Properties, decode_properties, encode_header, encode_properties
from holtmq.wire.tables import FieldTable

NOW = 1_700_000_000


def die(header: bytes, queue: str = "q", reason: str = "rejected", now_s: int = NOW) -> DeadLetter:
    return dead_letter(header, "x", "key", queue, reason, now_s)


def test_the_first_death_is_written_in_full() -> None:
    letter = die(content_header(b"m", expiration="500", headers={"CC": ["copy"]}))

    assert letter.headers == {
        "CC": ["copy"],
        "x-death": [
            {
                "count": 1,
                "reason": "rejected",
                "queue": "q",
                "time": datetime.fromtimestamp(NOW, UTC),
                "exchange": "x",
                "routing-keys": ["key", "copy"],
                "original-expiration": "500",
            }
        ],
        "x-first-death-exchange": "x",
        "x-first-death-queue": "q",
        "x-first-death-reason": "rejected",
        "x-last-death-exchange": "x",
        "x-last-death-queue": "q",
        "x-last-death-reason": "rejected",
    }


def test_its_expiration_goes_and_every_other_property_stays() -> None:
    before = Properties(
        content_type="text/plain",
        headers={"mine": 1},
        delivery_mode=2,
        priority=7,
        correlation_id="c",
        reply_to="r",
        expiration="500",
        message_id="m",
        app_id="a",
    )

    after = decode_properties(die(encode_header(1, encode_properties(before))).header, 12)

    assert after.expiration is None
    assert (after.content_type, after.priority, after.delivery_mode) == ("text/plain", 7, 2)
    assert (after.correlation_id, after.reply_to, after.message_id, after.app_id) == ("c", "r", "m", "a")
    assert after.headers is not None
    assert after.headers["mine"] == 1


def test_the_same_death_again_is_counted_and_moves_to_the_front() -> None:
    first = die(content_header(b"m"), "q", "rejected")
    second = die(first.header, "other", "expired")

    third = die(second.header, "q", "rejected")

    assert [(death["queue"], death["reason"], death["count"]) for death in third.deaths] == [
        ("q", "rejected", 2),
        ("other", "expired", 1),
    ]


def test_the_first_death_is_remembered_and_the_last_one_follows() -> None:
    letter = die(die(content_header(b"m"), "a", "expired").header, "b", "maxlen")

    assert (letter.headers["x-first-death-queue"], letter.headers["x-last-death-queue"]) == ("a", "b")
    assert (letter.headers["x-first-death-reason"], letter.headers["x-last-death-reason"]) == (
        "expired",
        "maxlen",
    )


def test_other_reasons_in_the_same_queue_are_other_entries() -> None:
    letter = die(die(content_header(b"m"), "q", "expired").header, "q", "maxlen")

    assert [death["reason"] for death in letter.deaths] == ["maxlen", "expired"]


def test_a_circle_is_one_without_a_rejection_on_the_way() -> None:
    expired = die(die(content_header(b"m"), "a", "expired").header, "b", "expired")
    rejected = die(die(content_header(b"m"), "a", "expired").header, "b", "rejected")

    assert expired.cycles_through("a")
    assert expired.cycles_through("b")
    assert not expired.cycles_through("c")
    assert not rejected.cycles_through("a")


def test_a_history_that_a_client_made_up_is_no_obstacle() -> None:
    nonsense: list[FieldTable] = [
        {"x-death": "nonsense"},
        {"x-death": [1, "two", {"queue": "q", "reason": "rejected", "count": "many"}]},
        {"x-death": [{"count": 3}]},
        {"CC": "not a list"},
    ]

    for headers in nonsense:
        letter = die(content_header(b"m", headers=headers))
        assert letter.deaths[0]["queue"] == "q"
        assert letter.deaths[0]["count"] == 1


def test_a_headers_table_that_cannot_be_read_is_replaced() -> None:
    broken = (0x2000).to_bytes(2, "big") + (3).to_bytes(4, "big") + b"\x09zz"

    letter = die(encode_header(1, broken))

    assert letter.headers["x-last-death-queue"] == "q"
    assert decode_properties(letter.header, 12).headers == letter.headers


def test_a_dead_letter_routing_key_drops_the_copies() -> None:
    header = content_header(b"m", headers={"CC": ["copy"], "mine": 1})

    letter = dead_letter(header, "x", "key", "q", "rejected", NOW, keep_cc=False)

    assert "CC" not in letter.headers
    assert letter.deaths[0]["routing-keys"] == ["key", "copy"]
