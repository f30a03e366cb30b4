"""Management API: the figures of a vhost, which are those of its queues and clients together.

Owns: adding them up, in steps: a vhost may have 20,000 queues. Must not touch: counting, field names.
"""

from typing import Final

from holtmq.broker.topology.vhost import VHost
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.http.engine.clients import Traffic
from holtmq.http.engine.endpoints import Call
from holtmq.http.engine.stepwise import Stepwise
from holtmq.http.management.client_rows import details
from holtmq.http.management.message_stats import Sums
from holtmq.http.management.topology import is_hidden, stream_counts

_LOOK_EVERY: Final = 32  # queues or clients between two looks at the clock
_ANSWERS: Final = ("confirm", "return_unroutable", "drop_unroutable")
_OCTETS: Final = ("recv_oct", "send_oct")


async def vhost_figures(call: Call, vhost: VHost, stepwise: Stepwise) -> dict[str, object]:
    """Messages, ``message_stats`` and bytes of a vhost."""
    sums = Sums(int(call.context.clock()))
    await stepwise.between()
    for place, queue in enumerate(list(vhost.queues.values())):
        if not place % _LOOK_EVERY:
            await stepwise.between()
        if isinstance(queue, WorkQueue):
            if not is_hidden(queue):
                sums.add(queue)
        else:
            sums.add_stream(queue, *stream_counts(call, queue))
    clients = await _clients(call, vhost, stepwise)
    octets, answers = (clients.received, clients.sent), clients[2:]
    return {
        "messages": sums.ready + sums.unacked,
        "messages_ready": sums.ready,
        "messages_unacknowledged": sums.unacked,
        **sums.lengths(),
        "message_stats": {
            **sums.stats(),
            **dict(zip(_ANSWERS, answers, strict=True)),
            **details(call, ("channels of", vhost.name), _ANSWERS, answers),
        },
        **dict(zip(_OCTETS, octets, strict=True)),  # of the connections that are open
        **details(call, (vhost.name,), _OCTETS, octets),
    }


async def _clients(call: Call, vhost: VHost, stepwise: Stepwise) -> Traffic:
    """What the connections of a vhost did together."""
    received = sent = confirmed = returned = dropped = 0
    for place, one in enumerate(call.context.clients.traffic(vhost.name)):
        if not place % _LOOK_EVERY:
            await stepwise.between()
        received += one.received
        sent += one.sent
        confirmed += one.confirmed
        returned += one.returned
        dropped += one.dropped
    return Traffic(received, sent, confirmed, returned, dropped)
