"""Reading answers from bytes, and addresses from URLs: no socket needed."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holtmq.client import BadAnswer, ConnectionFailed
from holtmq.client.http1 import Address, Answer, AnswerReader

PLAIN = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"ok": "true"}'[:-1]
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n[1,2\r\n1\r\n]\r\n0\r\n\r\n"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
BUSY = b"HTTP/1.1 429 Too Many\r\nRETRY-AFTER: 3\r\nContent-Length: 2\r\n\r\n{}"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + EMPTY
CASES = {
    PLAIN: Answer(200, b'{"ok": "true"'),
    CHUNKED: Answer(200, b"[1,2]"),
    EMPTY: Answer(204, b""),
    BUSY: Answer(429, b"{}", "3"),
    CONTINUED: Answer(204, b""),
}


@pytest.mark.parametrize("raw", CASES)
def test_an_answer_is_read_whole(raw: bytes) -> None:
    reader = AnswerReader()

    reader.feed(raw)

    assert reader.answer == CASES[raw]
    assert reader.keep_alive


@given(raw=st.sampled_from(list(CASES)), cuts=st.lists(st.integers(0, 200)))
def test_an_answer_is_read_however_it_is_cut(raw: bytes, cuts: list[int]) -> None:
    reader = AnswerReader()
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]

    for start, end in pairwise(edges):
        assert start == len(raw) or reader.answer is None
        if start < end:
            reader.feed(raw[start:end])

    assert reader.answer == CASES[raw]
    assert reader.keep_alive


@pytest.mark.parametrize("raw", CASES)
def test_bytes_after_an_answer_make_the_connection_unusable(raw: bytes) -> None:
    whole, two_reads = AnswerReader(), AnswerReader()

    whole.feed(raw + EMPTY)
    two_reads.feed(raw)
    two_reads.feed(EMPTY)

    assert whole.answer == two_reads.answer == CASES[raw]
    assert not whole.keep_alive
    assert not two_reads.keep_alive


@given(raw=st.binary(min_size=1, max_size=60))
def test_garbage_is_a_bad_answer_and_nothing_else(raw: bytes) -> None:
    reader = AnswerReader()

    try:
        reader.feed(raw)
    except BadAnswer:
        return

    assert reader.answer is None or raw.startswith(b"HTTP/")


def test_an_answer_that_ends_early_is_a_failed_connection() -> None:
    reader = AnswerReader()
    reader.feed(PLAIN[:-1])

    with pytest.raises(ConnectionFailed, match="in the middle"):
        reader.end()


def test_a_broker_that_says_close_is_not_asked_again_on_that_connection() -> None:
    reader = AnswerReader()

    reader.feed(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")

    assert reader.answer == Answer(200, b"")
    assert not reader.keep_alive


@pytest.mark.parametrize(
    ("url", "expected", "authority"),
    [
        ("http://localhost:6632", Address("localhost", 6632, False, ""), "localhost:6632"),
        ("https://mq.example/", Address("mq.example", 443, True, ""), "mq.example:443"),
        ("http://[::1]:80/base/", Address("::1", 80, False, "/base"), "[::1]:80"),
    ],
)
def test_an_address_comes_from_a_url(url: str, expected: Address, authority: str) -> None:
    assert Address.parse(url) == expected
    assert Address.parse(url).authority == authority


@pytest.mark.parametrize("url", ["", "localhost:6632", "amqp://x", "http://", "http://a?b=c", "http://u:p@a"])
def test_what_is_not_a_brokers_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        Address.parse(url)
