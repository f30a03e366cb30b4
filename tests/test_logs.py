"""Log entries: both forms, and what must not get into them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from holtmq import logs
from holtmq.config import Log, LogFormat, LogLevel


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def written(form: LogFormat, *, level: LogLevel = LogLevel.INFO) -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    logs.configure(Log(format=form, level=level), stream)
    return logging.getLogger("holtmq.some.part"), stream


def test_a_text_entry_is_one_line_with_its_fields_behind_the_text() -> None:
    log, stream = written(LogFormat.TEXT)

    log.warning("lease expired", extra={"queue": "orders", "partition": 3, "held": True, "by": None})

    moment, rest = stream.getvalue().split(" ", 1)
    assert moment.endswith("Z")
    assert rest == "WARNING holtmq.some.part lease expired queue=orders partition=3 held=true by=null\n"


def test_a_json_entry_is_one_object_with_its_fields() -> None:
    log, stream = written(LogFormat.JSON)

    log.info("ready", extra={"port": 5672, "level": "of a queue"})

    entry = json.loads(stream.getvalue())
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "logger": "holtmq.some.part",
        "message": "ready",
        "port": 5672,
        "level_": "of a queue",
    }


@pytest.mark.parametrize("form", LogFormat)
def test_a_clients_name_cannot_forge_a_field_or_a_line(form: LogFormat) -> None:
    log, stream = written(form)

    log.info("connected", extra={"connection": "x\n2026 ERROR fake user=admin", "client": 'a b="c"'})

    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert "user=admin" not in lines[0].replace(json.dumps("x\n2026 ERROR fake user=admin"), "")


@pytest.mark.parametrize("form", LogFormat)
def test_payloads_and_secrets_do_not_appear_even_when_handed_in(form: LogFormat) -> None:
    log, stream = written(form)

    log.info("oops", extra={"body": b"private", "user_password": "hunter2", "Authorization": "Bearer x.y.z"})
    log.info("long", extra={"text": "z" * 10_000})

    text = stream.getvalue()
    assert "private" not in text
    assert "hunter2" not in text
    assert "x.y.z" not in text
    assert "<7 bytes>" in text
    assert len(text) < 1500


@pytest.mark.parametrize("form", LogFormat)
def test_an_exception_comes_with_its_traceback(form: LogFormat) -> None:
    log, stream = written(form)

    try:
        raise ValueError("broken")
    except ValueError:
        log.exception("a connection ended")

    assert "ValueError: broken" in stream.getvalue()
    if form is LogFormat.JSON:
        assert "Traceback" in json.loads(stream.getvalue())["error"]


def test_entries_below_the_level_are_not_written_and_configuring_again_replaces() -> None:
    _, first = written(LogFormat.TEXT)
    log, second = written(LogFormat.TEXT, level=LogLevel.ERROR)

    log.warning("not this")
    log.error("but this")

    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1
