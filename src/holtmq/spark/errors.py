"""The errors of the Spark side, each with a text that says what to do about it.

Owns: the error types. All of them can be pickled, because Spark sends them from executors to the driver.
Must not touch: anything else.
"""

import re
from typing import Final

_OURS: Final = re.compile(r"holtmq\.spark\.[\w.]*?(\w+): (.+)")
_WRAPPING: Final = 1500


class HoltSparkError(Exception):
    """Base of all errors the connector raises itself."""


class InvalidOption(HoltSparkError, ValueError):
    """An invalid option; the text names it."""


class BrokerUnreachable(HoltSparkError):
    """The broker did not answer in time, after all retries."""


class BrokerRefused(HoltSparkError):
    """The broker refused the request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text

    def __str__(self) -> str:
        return f"the broker refused ({self.status}): {self.text}"


class DataLoss(HoltSparkError):
    """Messages the query had not read are lost."""


class UnfitSchema(HoltSparkError, ValueError):
    """Columns that do not fit the relation, in a read or a write."""


def our_words(text: str) -> str:
    """Reorder Spark's text of a failure: our own message first, if it contains one, then Spark's wrapping."""
    text = text.strip()
    found = _OURS.findall(text)
    if not found:
        return text[:2000]
    sentence = str(found[-1][1]).strip()
    head = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if sentence in head:
        return sentence
    return f"{sentence}\n  (Spark: {head[:_WRAPPING]})"
