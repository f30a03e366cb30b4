"""What can go wrong on the Spark side, each with a text that says what to do about it.

Owns: the error types. All of them pickle, because Spark carries them from executors to the driver.
Must not touch: anything else.
"""


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
