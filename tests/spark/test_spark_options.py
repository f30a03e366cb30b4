"""Options of the source and the sink: what they mean, and what is refused with which words."""

import pytest

from holtmq.spark.errors import InvalidOption
from holtmq.spark.offset_bounds import EARLIEST, LATEST, Bound
from holtmq.spark.offsets import Head, resolve
from holtmq.spark.option_values import parse_seconds, parse_size, parse_timestamp_us
from holtmq.spark.options import sink_options, source_options
from holtmq.spark.relations import Relation, split_relation


def test_names_of_options_are_case_insensitive_and_defaults_are_kafkas() -> None:
    batch = source_options({"QUEUE": "a, b,a"}, streaming=False)
    stream = source_options({"queue": "a"}, streaming=True)

    assert batch.selection.queues == ("a", "b")
    assert (batch.starting.word, batch.ending.word) == (EARLIEST, LATEST)
    assert stream.starting.word == LATEST
    assert batch.fail_on_data_loss
    assert not batch.limited


def test_a_timestamp_wins_over_offsets() -> None:
    options = source_options(
        {"queue": "a", "startingOffsets": "earliest", "startingTimestamp": "2026-05-01T00:00:00Z"},
        streaming=True,
    )

    assert options.starting.timestamp_us == 1_777_593_600_000_000
    assert options.starting.word is None


def test_json_offsets_take_numbers_and_both_words() -> None:
    options = source_options(
        {"queue": "a,b,c", "startingOffsets": '{"a": 12, "b": -2, "c": "earliest"}'}, streaming=False
    )

    assert dict(options.starting.offsets) == {"a": 12, "b": EARLIEST, "c": EARLIEST}


@pytest.mark.parametrize(
    ("given", "streaming", "words"),
    [
        ({}, False, "say what to read"),
        ({"queue": "a", "queuePattern": "b"}, False, "not both"),
        ({"queuePattern": "("}, False, "not a regular expression"),
        ({"queue": "a,a$dlq"}, False, "different columns"),
        ({"queue": "a", "startingOffsets": "latest"}, False, "nothing to read"),
        ({"queue": "a", "startingOffsets": '{"a": -1}'}, False, "nothing to read"),
        ({"queue": "a", "endingOffsets": "earliest"}, False, "nothing to read"),
        ({"queue": "a", "endingOffsets": "latest"}, True, "no end"),
        ({"queue": "a", "endingTimestamp": "5"}, True, "no end"),
        ({"queue": "a", "startingOffsets": "soon"}, True, "earliest, latest, or JSON"),
        ({"queue": "a", "startingOffsets": '{"a": -3}'}, True, "needs an offset"),
        ({"queue": "a", "startingOffsets": '{"a": true}'}, True, "needs an offset"),
        ({"queue": "a", "startingTimestamp": "yesterday"}, True, "ISO-8601"),
        ({"queue": "a", "maxOffsetsPerTrigger": "0"}, True, "at least 1"),
        ({"queue": "a", "maxOffsetsPerTrigger": "-5"}, True, "at least 1"),
        ({"queue": "a", "maxBytesPerTrigger": "10 apples"}, True, "size such as"),
        ({"queue": "a", "maxTriggerDelay": "soon"}, True, "duration such as"),
        ({"queue": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, True, "more than"),
        ({"queue": "a", "failOnDataLoss": "perhaps"}, True, "true or false"),
        ({"queue": "a$dlq", "payloadSchema": "x INT"}, True, r"\$dlq"),
        ({"queue": "a", "url": "localhost:6632"}, True, "http://host:6632"),
        ({"queue": "a", "tlsCert": "x"}, True, "go together"),
        ({"queue": "a", "startingOffset": "earliest"}, True, "did you mean startingOffsets"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_by_name(
    given: dict[str, str], streaming: bool, words: str
) -> None:
    with pytest.raises(InvalidOption, match=words):
        source_options(given, streaming=streaming)


def test_options_of_spark_itself_pass() -> None:
    assert source_options({"queue": "a", "path": "/x", "checkpointLocation": "/y"}, streaming=True)


def test_a_token_is_never_part_of_an_error() -> None:
    with pytest.raises(InvalidOption) as refusal:
        source_options({"queue": "a", "token": "secret", "url": "nonsense"}, streaming=True)

    assert "secret" not in str(refusal.value)


def test_a_relation_is_read_only() -> None:
    with pytest.raises(InvalidOption, match="read, not written"):
        sink_options({"queue": "orders$dlq"})


def test_an_unknown_suffix_belongs_to_the_name() -> None:
    assert split_relation("orders$dlq") == ("orders", Relation.DEAD_LETTERS)
    assert split_relation("orders$deliveries") == ("orders", Relation.DELIVERIES)
    assert split_relation("us$ales") == ("us$ales", Relation.MESSAGES)
    assert split_relation("$dlq") == ("$dlq", Relation.MESSAGES)


def test_durations_sizes_and_times_in_every_spelling() -> None:
    assert [parse_seconds(text) for text in ("500ms", "10s", "15m", "1h", "3")] == [0.5, 10, 900, 3600, 3]
    assert [parse_size(text) for text in ("7", "1k", "64m", "2GB")] == [7, 1024, 64 << 20, 2 << 30]
    assert parse_timestamp_us("1000") == 1_000_000  # Kafka's epoch milliseconds
    assert parse_timestamp_us("1970-01-01T00:00:01") == parse_timestamp_us("1970-01-01T01:00:01+01:00")


def test_kafkas_names_for_what_to_read_are_understood() -> None:
    assert source_options({"subscribe": "a,b"}, streaming=True).selection.queues == ("a", "b")
    assert source_options({"subscribePattern": "a.*"}, streaming=True).selection.pattern == "a.*"
    with pytest.raises(InvalidOption, match="another name of queue"):
        source_options({"subscribe": "a", "queue": "b"}, streaming=True)


def test_each_queue_may_have_a_time_of_its_own() -> None:
    text = '{"a": "1970-01-01T00:00:01Z", "b": 2000}'

    bound = source_options({"queue": "a,b", "startingOffsetsByTimestamp": text}, streaming=True).starting

    assert dict(bound.timestamps_us) == {"a": 1_000_000, "b": 2_000_000}
    for wrong in ("soon", "{}", '{"a": "soon"}'):
        with pytest.raises(InvalidOption, match="startingOffsetsByTimestamp"):
            source_options({"queue": "a", "startingOffsetsByTimestamp": wrong}, streaming=True)
    with pytest.raises(InvalidOption, match="a stream has no end"):
        source_options({"queue": "a", "endingOffsetsByTimestamp": text}, streaming=True)


def test_a_time_is_resolved_for_each_queue_and_one_without_a_time_is_refused() -> None:
    heads = [Head("a", 1, 0, 10, 10), Head("b", 2, 0, 10, 10)]
    bound = Bound(timestamps_us=(("a", 5), ("b", 6)))

    assert resolve(bound, heads, {"a": 3, "b": 7}, "x") == {"a#1": 3, "b#2": 7}
    with pytest.raises(InvalidOption, match="no offset for queue b"):
        resolve(Bound(timestamps_us=(("a", 5),)), heads, {"a": 3}, "startingOffsetsByTimestamp")
    with pytest.raises(InvalidOption, match="names c"):
        resolve(Bound(timestamps_us=(*bound.timestamps_us, ("c", 1))), heads, {"a": 3, "b": 7}, "x")
