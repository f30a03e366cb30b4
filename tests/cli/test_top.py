"""``holt top``: what a window of some size shows of the table, and what happens while the broker is away."""

import io
import time

import pytest
from click.testing import CliRunner
from rich.console import Console
from rich.table import Table

from holtmq.cli import attention, main
from holtmq.cli.attention import QueueLine, QueuesAnswer, _table
from holtmq.cli.broker_api import BrokerApi, NoAnswer

ROW = QueueLine("orders", "/", "classic", 1_234_567, 3, 12, 86_400.0, 1000.5, 999.5, 998.5)
MANY = QueuesAnswer([ROW] * 30, 1_002)


def shown(width: int, rows: int = 30) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(_table(MANY, width, rows))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [120, 100, 80, 60, 40, 30])
def test_a_narrow_window_has_fewer_columns_and_cuts_no_number(width: int) -> None:
    lines = shown(width)

    assert all("1,234,567" in line for line in lines[4:-1])
    assert not any("\u2026" in line for line in lines)
    assert len(lines) == 4 + 30 + 1
    assert ("consumers" in lines[2]) == (width >= 80)


def test_the_title_counts_the_rows_that_the_window_shows() -> None:
    assert shown(100, 7)[0].strip() == "7 of 1002 queues"


def test_a_broker_that_is_away_for_a_while_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    titles: list[str] = []
    answers: list[QueuesAnswer | BaseException] = [
        MANY,
        NoAnswer("it did not answer"),
        MANY,
        KeyboardInterrupt(),
    ]

    def get(*_: object, **__: object) -> QueuesAnswer:
        found = answers.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    class Window:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> "Window":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, table: Table, refresh: bool) -> None:
            titles.append(str(table.title))

    monkeypatch.setattr(BrokerApi, "connect", lambda _: None)
    monkeypatch.setattr(BrokerApi, "get", get)
    monkeypatch.setattr(attention, "Live", Window)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(Console, "is_terminal", True)
    assert CliRunner().invoke(main, ["top"]).exit_code == 0
    assert ["it did not answer" in title for title in titles] == [True, False]
