"""How long a delivery may stay unacknowledged before it returns to its queue, or its channel is closed.

Owns: the approximate delivery times of one holder (a consumer, or a channel's basic.get leases) and the
check whether the oldest is overdue. Must not touch: clocks; the broker's timers run the checks.
"""

from collections import deque
from typing import TYPE_CHECKING, Final
from weakref import ref

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import ChannelFault

if TYPE_CHECKING:
    from holtmq.amqp.channel import Channel
    from holtmq.broker.topology.destinations import Queue
    from holtmq.broker.work.leases import Holder

_LOOKS: Final = 16  # checks per timeout: a delivery is at most a sixteenth of the timeout overdue
_LEAST_STEP_MS: Final = 50


class AckTimeout:
    """Checks the unacknowledged deliveries of one holder from one queue, while there are any.

    Storing a time with each delivery would cost every message. Instead each check notes the time and the
    last delivery number. A lease counts as old as the first note at or after its number, so it is never
    found overdue too early.
    """

    __slots__ = ("__weakref__", "_channel", "_holder", "_notes", "_own_ms", "_queue", "armed")

    def __init__(
        self, channel: "Channel", holder: "Holder", queue: "Queue", own_ms: int | None = None
    ) -> None:
        self._own_ms = own_ms  # the consumer's own timeout
        self._channel = channel
        self._holder = ref(holder)  # which refers to this
        self._queue = queue
        self._notes: deque[tuple[int, int]] = deque()  # (when, the last number given out by then)
        self.armed = False

    @property
    def is_own(self) -> bool:
        """Whether the consumer has asked for a timeout by itself."""
        return self._own_ms is not None

    def delivered(self) -> None:
        """Start the timer after a delivery. The caller may skip this while ``armed`` is true."""
        timeout_ms = self._timeout_ms()
        if timeout_ms and not self.armed:
            self._look_again(timeout_ms)

    def _look(self) -> None:
        self.armed = False
        channel, notes = self._channel, self._notes
        oldest = None if channel.closing else self._oldest()
        timeout_ms = self._timeout_ms()
        if oldest is None or not timeout_ms:  # the next delivery starts the timer again
            notes.clear()
            return
        while notes and notes[0][1] < oldest:
            notes.popleft()
        now_ms = channel.flow.now_ms
        upto = 0
        for when_ms, last in notes:
            if now_ms - when_ms >= timeout_ms:
                upto = last
        if not upto:
            self._look_again(timeout_ms)
        elif channel.broker.dialect.consumer_timeout_closes_channel:
            self._close(timeout_ms)
        else:
            holder = self._holder()
            assert holder is not None
            channel.consuming.take_back(holder, self._queue, upto, timeout_ms)
            self.delivered()

    def _look_again(self, timeout_ms: int) -> None:
        self.armed = True
        flow, notes, last = self._channel.flow, self._notes, self._channel.ledger.last
        if not notes or notes[-1][1] < last:
            notes.append((flow.now_ms, last))
        step_ms = max(timeout_ms // _LOOKS, _LEAST_STEP_MS)
        myself = ref(self)  # the timer may outlive the channel and must not keep it alive

        def look() -> None:
            watch = myself()
            if watch is not None:
                watch._look()

        flow.at(min(flow.now_ms + step_ms, notes[0][0] + timeout_ms), look)

    def _oldest(self) -> int | None:
        """The delivery number of the oldest lease."""
        holder = self._holder()
        if holder is None:
            return None
        held = holder.held
        # Numbers rise in insertion order, but a rollback inserts old numbers at the end.
        return next(iter(held), None) if self._channel.transaction is None else min(held, default=None)

    def _timeout_ms(self) -> int:
        if self._own_ms is not None:
            return self._own_ms
        own = self._queue.options.consumer_timeout_ms
        if own is not None:
            return own
        return self._channel.connection.settings.consumer_timeout_ms if self._queue.has_ack_timeout else 0

    def _close(self, timeout_ms: int) -> None:
        fault = ChannelFault(
            ReplyCode.PRECONDITION_FAILED,
            f"delivery acknowledgement on channel {self._channel.number} timed out. "
            f"Timeout value used: {timeout_ms} ms. "
            "This timeout value can be configured, see consumers doc guide to learn more",
        )
        self._channel.connection.fail_channel(self._channel, fault, 0)
