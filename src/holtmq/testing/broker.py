"""``TestBroker``: the real broker, in this process, for the duration of a ``with`` block.

Owns: the life cycle of its nodes, one after the other on one thread, and the test commands: time, faults,
inspection. Must not touch: rules and protocols. Nothing here changes what the broker does.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from math import ceil
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, Literal, TypeVar

from msgspec.structs import replace

from holtmq.amqp.protocol import AmqpProtocol
from holtmq.config import Config, Limits
from holtmq.journal import JournalError
from holtmq.journal.records import SYNC_SIZE
from holtmq.testing import views
from holtmq.testing.broker_thread import BrokerThread
from holtmq.testing.clock import RealClock, VirtualClock
from holtmq.testing.disk import FaultyDisk, FolderDisk, Keep, MemoryDisk
from holtmq.testing.faulty_node import FaultyNode
from holtmq.testing.held_port import HeldPort
from holtmq.testing.inspection import Inspection
from holtmq.testing.views import ConnectionView

T = TypeVar("T")

_HOST: Final = "127.0.0.1"
_SEGMENT_BYTES: Final = (
    1 << 20
)  # upper bound: a test's journal is short, and a disk in memory must hold all of it
_GRACE: Final = 0.05  # clients in tests are often gone, or blocked in the thread that stops the broker


class BrokerDidNotStart(RuntimeError):
    """The broker refused to start; the text says why."""


class TestBroker(Inspection):
    """A broker on a free port, in memory unless ``folder`` or ``durable`` says otherwise.

    In memory it still runs the real journal, on a simulated disk: durable queues and persistent
    messages survive ``restart`` and ``crash_and_restart``, transient ones do not.
    """

    __test__ = False  # pytest would collect it as a test class

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        durable: bool = False,
        clock: Literal["virtual", "real"] | VirtualClock = "virtual",
        config: Config | None = None,
        seed: int = 0,
    ) -> None:
        self.clock: VirtualClock | RealClock = (
            RealClock() if clock == "real" else VirtualClock() if clock == "virtual" else clock
        )
        self._folder = Path(folder) if folder is not None else None
        self._durable = durable
        self._config = config or Config(limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0))
        self._random = Random(seed)
        self._temporary: Path | None = None
        self._thread: BrokerThread | None = None
        self._node: FaultyNode | None = None
        self._disk: FaultyDisk | None = None
        self._amqp_port = 0
        self._http_port = 0
        self._held: list[HeldPort] = []

    def start(self) -> "TestBroker":
        """Start the broker; ``with`` calls this."""
        if self._thread is not None:
            raise RuntimeError("this broker is running")
        if self._disk is None:
            self._disk = self._make_disk()
        self._thread = BrokerThread("holt-test-broker")
        try:
            self._hold_ports()
            self._start_node()
        except BaseException:
            self._end_thread()
            raise
        return self

    def stop(self) -> None:
        """Shut down cleanly. In a folder the data stays, unless the folder was a temporary one."""
        if self._thread is None:
            return
        try:
            self._stop_node()
        finally:
            self._end_thread()
            if self._temporary is not None:
                shutil.rmtree(self._temporary, ignore_errors=True)
                self._temporary = self._disk = None

    def restart(self) -> None:
        """Shut down cleanly and start again on the same ports. Clients lose their connections."""
        self._stop_node()
        self._start_node()

    def crash_and_restart(self, *, keep: Keep = Keep.NOTHING) -> None:
        """Crash, lose what was not durable, and recover on the same ports.

        ``Keep.NOTHING`` is the hardest power cut, ``Keep.SECTORS`` keeps some unsynced sectors at random
        (``seed``), ``Keep.EVERYTHING`` is a crash of the process alone.
        """
        self._crash(keep)
        self._start_node()

    def corrupt_journal_tail(self, size: int = 100) -> None:
        """Crash in the middle of a write, which leaves half a record after the last durable one; restart.

        Recovery must truncate it and keep everything before it.
        """
        end = self._crash(Keep.NOTHING)
        self.disk.tear(end, self._random.randbytes(size))
        self._start_node()

    def __enter__(self) -> "TestBroker":
        return self.start() if self._thread is None else self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> "TestBroker":
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # In a thread, so that clients on the caller's loop can still answer the close.
        await asyncio.to_thread(self.stop)

    @property
    def amqp_port(self) -> int:
        """The AMQP port, the same after every restart."""
        return self._amqp_port

    @property
    def amqp_url(self) -> str:
        """For any AMQP client. The vhost is explicit: some clients read a bare slash as the empty vhost."""
        return f"amqp://guest:guest@{_HOST}:{self._amqp_port}/%2F"

    @property
    def http_port(self) -> int:
        """The HTTP port, the same after every restart."""
        return self._http_port

    @property
    def http_url(self) -> str:
        """Base of every HTTP address, without a trailing slash."""
        return f"http://{_HOST}:{self._http_port}"

    @property
    def disk(self) -> FaultyDisk:
        """The broker's disk, for ``fail_next_write``, ``fail_next_sync``, ``fill``, ``stall``."""
        if self._disk is None:
            raise RuntimeError("this broker is not running")
        return self._disk

    @property
    def node(self) -> FaultyNode:
        """The node itself. It belongs to the broker's thread: access it only through ``call``."""
        if self._node is None:
            raise RuntimeError("this broker is not running")
        return self._node

    def call(self, work: Callable[[FaultyNode], T]) -> T:
        """Run a function on the broker's thread, after everything clients have sent was processed."""

        async def taken_in(node: FaultyNode) -> T:
            await node.take_in()
            return work(node)

        node = self.node
        return self._on_loop(lambda: taken_in(node))

    def drop_connections(self, which: Callable[[ConnectionView], bool] | str | None = None) -> int:
        """Drop connections without a close: all, those with this name, or those for which ``which`` is true.

        Returns how many.
        """
        return self._to_connections(which, lambda _, protocol: protocol.abort())

    def drop_http_connections(self) -> int:
        """Drop every HTTP connection, including waiting pops. Returns how many."""
        return self._run(lambda node: node.drop_http_connections())

    def stop_reading(self, which: Callable[[ConnectionView], bool] | str | None = None) -> int:
        """Stop reading from the clients connected now, so that their writes pile up. Returns how many."""
        return self._to_connections(which, lambda node, protocol: node.stop_reading(protocol))

    def resume_reading(self) -> None:
        """Undo ``stop_reading``."""
        self._run(lambda node: node.resume_reading())

    def delay(self, seconds: float) -> None:
        """Delay everything the broker sends by this many real seconds; 0 ends the delay."""
        self._run(lambda node: node.delay(seconds))

    def _make_disk(self) -> FaultyDisk:
        if self._folder is not None:
            return FolderDisk(self._folder)
        if self._durable:
            self._temporary = Path(tempfile.mkdtemp(prefix="holt-test-"))
            return FolderDisk(self._temporary)
        return MemoryDisk()

    def _hold_ports(self) -> None:
        """Others start brokers and clients, too: a port that is free during a restart could become theirs."""
        try:
            for number in (self._amqp_port, self._http_port):
                self._held.append(HeldPort(_HOST, number))
        except OSError as error:
            raise BrokerDidNotStart(str(error)) from error
        self._amqp_port, self._http_port = (held.number for held in self._held)

    def _start_node(self) -> None:
        config = self._config
        config = replace(
            config,
            amqp=replace(config.amqp, host=(_HOST,), port=self._amqp_port),
            http=replace(config.http, host=(_HOST,), port=self._http_port),
            journal=replace(config.journal, segment_bytes=min(config.journal.segment_bytes, _SEGMENT_BYTES)),
        )
        node = FaultyNode(config, clock=self.clock, disk=self.disk)
        try:
            self._on_loop(node.start)
        except (JournalError, OSError) as error:
            raise BrokerDidNotStart(str(error)) from error
        self._node = node
        self._amqp_port, self._http_port = node.amqp_port, node.http_port
        if isinstance(self.clock, VirtualClock):
            self.clock.attach(self._drive)

    def _stop_node(self) -> None:
        node, self._node = self._node, None
        if isinstance(self.clock, VirtualClock):
            self.clock.attach(None)
        if node is not None:
            self.disk.resume()
            self._on_loop(lambda: node.stop(_GRACE))

    def _crash(self, keep: Keep) -> int:
        """Returns where the confirmed part of the log ends."""
        node, self._node = self.node, None
        if isinstance(self.clock, VirtualClock):
            self.clock.attach(None)

        async def crash() -> int:
            # First the disk, then the sockets: nothing that happens in between can be confirmed to a client.
            self.disk.die()
            end = node.journal.durable - SYNC_SIZE
            for protocol in list(node.amqp.connections):
                protocol.abort()
            await node.stop(0)
            return end

        end = self._on_loop(crash)
        self.disk.come_back(keep, self._random)
        return end

    def _end_thread(self) -> None:
        thread, self._thread = self._thread, None
        try:
            if thread is not None:
                thread.close()
        finally:
            for held in self._held:
                held.release()
            self._held.clear()

    def _drive(self, target_ms: int) -> None:
        """Advance through every deadline before the target, so that one may trigger the next."""
        clock, node = self.clock, self.node
        assert isinstance(clock, VirtualClock)

        async def drive() -> None:
            await node.take_in()
            last = -1.0
            while (due := node.broker.flow.timers.next_due()) is not None and due * 1000 <= target_ms:
                # The same deadline twice: rounding left it slightly in the future.
                clock.move_to(ceil(due * 1000 - 0.001) + (1 if due == last else 0))
                last = due
                node.scheduler.tick()
                await node.settle()
            clock.move_to(target_ms)
            node.scheduler.tick()
            await node.settle()

        self._on_loop(drive)

    def _to_connections(
        self,
        which: Callable[[ConnectionView], bool] | str | None,
        action: Callable[[FaultyNode, AmqpProtocol], None],
    ) -> int:
        def act(node: FaultyNode) -> int:
            chosen = [
                protocol
                for protocol in node.amqp.connections
                if which is None or _matches(which, views.connection_view(protocol))
            ]
            for protocol in chosen:
                action(node, protocol)
            return len(chosen)

        return self._run(act)

    def _run(self, work: Callable[[FaultyNode], T]) -> T:
        """Run on the broker's thread, without waiting for client input."""
        node = self.node

        async def run() -> T:
            return work(node)

        return self._on_loop(run)

    def _on_loop(self, work: Callable[[], Coroutine[object, object, T]]) -> T:
        if self._thread is None:
            raise RuntimeError("this broker is not running")
        return self._thread.run(work)


def _matches(which: Callable[[ConnectionView], bool] | str, view: ConnectionView) -> bool:
    return view.name == which if isinstance(which, str) else which(view)
