"""The format of log entries: key=value text for people, or one JSON object per line.

Owns: the formatters and the one place that installs them.
Must not touch: what is logged. An entry is a constant text with its fields in ``extra``. Payloads and
secrets do not belong there; fields that look like one are still masked or cut here.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, TextIO

from holtmq.config import Log, LogFormat

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}
_SECRET_WORDS: Final = ("password", "secret", "token", "authorization", "credential")
_LONGEST: Final = 500  # characters of one field: an entry is a line, not a dump
_OWN_FIELDS: Final = frozenset({"time", "level", "logger", "message", "error"})

Field = str | int | float | bool | None


def configure(log: Log, stream: TextIO | None = None) -> logging.Handler:
    """Send every logger's entries to ``stream`` (standard error) in the configured form."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log.format is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h.formatter, (TextFormatter, JsonFormatter))]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(log.level.upper())
    logging.captureWarnings(True)  # otherwise a library's warning would be a line without structure
    return handler


class TextFormatter(logging.Formatter):
    """``2026-01-02T03:04:05.678Z WARNING holtmq.journal segment is full segment=3 bytes=67108864``"""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it when there is one."""
        pieces = [_time(record), f"{record.levelname:<7}", record.name, _one_line(record.getMessage())]
        pieces += [f"{name}={_text(value)}" for name, value in _fields(record).items()]
        line = " ".join(pieces)
        return f"{line}\n{error}" if (error := self._error(record)) else line

    def _error(self, record: logging.LogRecord) -> str:
        return self.formatException(record.exc_info) if record.exc_info else ""


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, the entry's fields, and error."""

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        entry: dict[str, Field] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= _fields(record)
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Field]:
    return {
        (f"{name}_" if name in _OWN_FIELDS else name): _safe(name, value)
        for name, value in vars(record).items()
        if name not in _STANDARD
    }


def _safe(name: str, value: object) -> Field:
    if any(word in name.lower() for word in _SECRET_WORDS):
        return "***"
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):  # a payload, or a part of one
        return f"<{len(value)} bytes>"
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def _text(value: Field) -> str:
    if isinstance(value, bool) or value is None or not isinstance(value, str):
        return json.dumps(value)
    # Quoted when ambiguous, so that a client's name cannot forge a field or a line.
    plain = value.isprintable() and value and not any(c in value for c in " =\"'\\")
    return value if plain else json.dumps(value, ensure_ascii=False)


def _one_line(message: str) -> str:
    return message.replace("\r", "\\r").replace("\n", "\\n")
