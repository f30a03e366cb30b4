"""What can go wrong on the Spark side, each with a text that says what to do about it.

Owns: the error types. All of them pickle, because Spark carries them from executors to the driver.
Must not touch: anything else.
"""

import re
from typing import Final

_OURS: Final = re.compile(r"holtmq\.spark\.[\w.]*?(\w+): (.+)")
_WRAPPING: Final = 1500


class HoltSparkError(Exception):
    """Base of all errors the connector raises itself."""


class InvalidOption(HoltSparkError, ValueError):
    """An option that cannot be meant like that; the text names it."""


class BrokerUnreachable(HoltSparkError):
    """The broker did not answer in time, however often it was asked."""


class BrokerRefused(HoltSparkError):
    """The broker answered, and said no."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(status, text)
        self.status = status
        self.text = text

    def __str__(self) -> str:
        return f"the broker refused ({self.status}): {self.text}"


class DataLoss(HoltSparkError):
    """Messages the query had not read are gone."""


class UnfitSchema(HoltSparkError, ValueError):
    """Columns that do not fit the relation, on the way in or out."""


def our_words(text: str) -> str:
    """Spark's text of a failure with our own sentence, where there is one, first and its wrapping after."""
    text = text.strip()
    found = _OURS.findall(text)
    if not found:
        return text[:2000]
    sentence = str(found[-1][1]).strip()
    head = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if sentence in head:
        return sentence
    return f"{sentence}\n  (Spark: {head[:_WRAPPING]})"
