"""What a node does once a second. A duty that fails is reported, and the others are done all the same.

Owns: the order of the duties, and the report. Must not touch: the duties themselves.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

log = logging.getLogger(__name__)

Duty = Callable[[], Awaitable[None] | None]


class Housekeeping:
    """The duties of one node, by name, in this order."""

    def __init__(self, duties: Mapping[str, Duty]) -> None:
        self._duties = dict(duties)
        self._failing: dict[str, str] = {}  # duty -> how it failed last time

    async def run(self, every_seconds: float) -> None:
        """Never returns: without it there would be no alarms and no checkpoints."""
        while True:
            await asyncio.sleep(every_seconds)
            await self.once()

    async def once(self) -> None:
        """Every duty, once."""
        for name, duty in self._duties.items():
            try:
                if (rest := duty()) is not None:
                    await rest
            except Exception as error:
                self._report(name, repr(error))
            else:
                self._failing.pop(name, None)

    def _report(self, name: str, how: str) -> None:
        """Once, and again when it fails in another way: it is tried again every second."""
        if self._failing.get(name) != how:
            self._failing[name] = how
            log.exception("a duty of the node failed", extra={"duty": name})
