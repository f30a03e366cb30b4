"""Queue options: defaults, merging, and what counts as set."""

import pytest

from holtmq.broker.errors import Conflict
from holtmq.broker.partitioned.queue_config import QueueConfig, merge, names_of


def test_zero_is_a_value_and_none_restores_the_default() -> None:
    changed = merge(QueueConfig(), {"retry_limit": 0, "lease_seconds": 10})

    assert (changed.retry_limit, changed.lease_seconds) == (0, 10)
    assert merge(changed, {"retry_limit": None}).retry_limit == 3
    assert merge(changed, {"priority": 7}).retry_limit == 0


def test_replacing_is_merging_into_the_defaults() -> None:
    old = QueueConfig(retry_limit=9, priority=1)

    assert merge(QueueConfig(), {"priority": 2}) == QueueConfig(priority=2)
    assert merge(old, {}) == old


def test_unknown_options_are_accepted_and_ignored() -> None:
    assert merge(QueueConfig(), {"min_pop_wait_time": 5}) == QueueConfig()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retry_limit", -1),
        ("lease_seconds", "soon"),
        ("retention_enabled", 1),
        ("max_size", True),
        ("window_buffer", float("inf")),
        ("window_buffer", float("nan")),
    ],
)
def test_values_that_make_no_sense_are_refused_by_name(name: str, value: bool | int | float | str) -> None:
    with pytest.raises(Conflict, match=name):
        merge(QueueConfig(), {name: value})


def test_dead_letters_are_filed_unless_both_switches_are_off() -> None:
    assert QueueConfig().files_dead_letters
    assert QueueConfig(dead_letter_queue=False).files_dead_letters
    assert not QueueConfig(dead_letter_queue=False, dlq_after_max_retries=False).files_dead_letters
    assert not QueueConfig().files_evicted
    assert QueueConfig(dead_letter_queue=True).files_evicted


def test_a_retry_delay_works_only_when_set() -> None:
    assert QueueConfig().retry_delay_us == 0
    assert QueueConfig(retry_delay_ms=1500).retry_delay_us == 1_500_000


def test_a_dotted_name_gives_namespace_and_task() -> None:
    assert names_of("shop.orders.eu") == ("shop", "orders")
    assert names_of("orders") == ("", "")
