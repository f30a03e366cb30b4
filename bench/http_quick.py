"""How fast the HTTP side is, in half a minute: durable push and pop+ack over keep-alive connections.

Starts ``holt serve`` on a disk of its own and loads it from this process over raw sockets, so that the
client's cost stays small against the broker's. Usage: python bench/http_quick.py [seconds per case]
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

CONNECTIONS = 32
PAYLOAD = {"order": 1234567, "note": "sixteen bytes ok", "amount": 12.5}


class Wire:
    """One keep-alive connection that does no more parsing than it must."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Wire":
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 24))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        if status == 204:
            return status, b""
        at = head.index(b"content-length: ") + 16
        return status, await self._reader.readexactly(int(head[at : head.index(b"\r\n", at)]))


def post(path: str, body: bytes) -> bytes:
    kind = "content-type: application/json\r\n"
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{kind}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()


async def run(port: int, seconds: float, work: Callable[[Wire, int], Awaitable[int]]) -> tuple[float, float]:
    """(messages a second, requests' p99 in ms) of one worker per connection."""
    wires = [await Wire.open(port) for _ in range(CONNECTIONS)]
    deadline = time.perf_counter() + seconds
    took: list[float] = []

    async def worker(wire: Wire, number: int) -> int:
        done = 0
        while (now := time.perf_counter()) < deadline:
            done += await work(wire, number)
            took.append(time.perf_counter() - now)
        return done

    began = time.perf_counter()
    done = sum(await asyncio.gather(*(worker(wire, number) for number, wire in enumerate(wires))))
    took.sort()
    return done / (time.perf_counter() - began), took[int(len(took) * 0.99)] * 1000 if took else 0.0


def pusher(queue: str, batch: int, partitions: int) -> Callable[[Wire, int], Awaitable[int]]:
    payload = json.dumps(PAYLOAD)
    serial = 0

    async def push(wire: Wire, number: int) -> int:
        nonlocal serial
        items = []
        for _ in range(batch):
            serial += 1
            where = f"p{(number if partitions <= CONNECTIONS else serial) % partitions}"
            items.append(
                f'{{"queue":"{queue}","partition":"{where}","payload":{payload},"transactionId":"t-{serial}"}}'
            )
        status, _ = await wire.ask(post("/api/v1/push", f'{{"items":[{",".join(items)}]}}'.encode()))
        assert status == 201, status
        return batch

    return push


_ACKED = re.compile(rb'"transactionId":("[^"]*").*?"partitionId":("[^"]*")')


def popper(queue: str, batch: int, group: str = "") -> Callable[[Wire, int], Awaitable[int]]:
    path = f"/api/v1/pop/queue/{queue}?batch={batch}&partitions=4&wait=true&timeout=1000"

    async def pop(wire: Wire, number: int) -> int:
        name = f"{group}{number % 10}" if group else ""
        status, body = await wire.ask(get(path + (f"&consumerGroup={name}" if name else "")))
        if status == 204:
            return 0
        lease = body[body.index(b'"leaseId":') + 10 :][:38]
        tail = b',"status":"completed","leaseId":' + lease + b"}"
        acks = b",".join(
            b'{"transactionId":' + found[0] + b',"partitionId":' + found[1] + tail
            for found in _ACKED.findall(body)
        )
        own = b'"consumerGroup":"' + name.encode() + b'",' if name else b""
        status, answer = await wire.ask(
            post("/api/v1/ack/batch", b"{" + own + b'"acknowledgments":[' + acks + b"]}")
        )
        assert status == 200, (status, answer[:200])
        assert b'"success":false' not in answer, answer[:300]
        return answer.count(b'"index"')

    return pop


def broker_seconds(pid: int) -> float:
    """CPU time the broker has used: what tells on a machine that others use too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def report(
    label: str, pid: int, port: int, seconds: float, work: Callable[[Wire, int], Awaitable[int]]
) -> None:
    before, began = broker_seconds(pid), time.perf_counter()
    rate, p99 = await run(port, seconds, work)
    busy, took = broker_seconds(pid) - before, time.perf_counter() - began
    cost = busy / max(rate * took, 1) * 1e6
    print(
        f"{label:<34}{rate:>9,.0f} msg/s  p99 {p99:6.1f} ms  broker {cost:6.2f} µs CPU a message", flush=True
    )


async def measure(pid: int, port: int, seconds: float) -> None:
    for batch in (1, 10, 100):
        await report(f"push batch {batch}", pid, port, seconds, pusher(f"push{batch}", batch, 32))
    await run(port, seconds * 1.5, pusher("drain", 100, 64))
    await report("pop + ack of 100", pid, port, seconds, popper("drain", 100))
    await report("10 groups, pop + ack of 100", pid, port, seconds, popper("drain", 100, "g"))


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    with tempfile.TemporaryDirectory(dir=os.environ.get("HOLT_BENCH_DIR")) as folder:
        log = Path(folder) / "log"
        settings = {"HOLT_DATA_DIR": f"{folder}/data", "HOLT_AMQP_PORT": "0", "HOLT_HTTP_PORT": "0"}
        hosts = {"HOLT_AMQP_HOST": "127.0.0.1", "HOLT_HTTP_HOST": "127.0.0.1"}
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "holtmq", "serve"],
                env={**os.environ, **settings, **hosts},
                stdout=out,
                stderr=out,
            )
        try:
            while not (found := re.search(r"http_port=(\d+)", log.read_text())):
                assert process.poll() is None, log.read_text()
                time.sleep(0.02)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(measure(process.pid, int(found[1]), seconds))
        finally:
            process.terminate()
            process.wait(20)


if __name__ == "__main__":
    main()
