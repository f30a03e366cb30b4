"""Stopping a job on request: after its current batch, not in the middle of it.

Owns: SIGTERM and SIGINT while a job runs. Must not touch: what jobs do. A second signal ends the job at once;
exactly once holds either way.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """A request to stop, set by a signal or by the program. As a context manager it handles the signals."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._before: dict[signal.Signals, object] = {}
        self.reason = ""

    def __bool__(self) -> bool:
        return self._event.is_set()

    def set(self, reason: str = "asked to") -> None:
        self.reason = self.reason or reason
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep until the timeout or a stop request; return whether there is a request."""
        return self._event.wait(seconds)

    def __enter__(self) -> "Stop":
        # Only the main thread may set handlers; a job in another thread shares the ``Stop`` of its owner.
        if threading.current_thread() is threading.main_thread() and not self._before:
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, before in self._before.items():
                signal.signal(number, before)  # type: ignore[arg-type]  # what signal() itself returned
            self._before.clear()

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self:
            raise KeyboardInterrupt
        self.set(signal.Signals(number).name)
