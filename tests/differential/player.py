"""Plays steps on one broker, and says what a client saw after each of them.

Owns: connections and channels, which deliveries are unsettled, the normal form of what is compared. Must not
touch: which broker it is. After each step every open channel asks for a reply, behind which nothing of the
step is left on the way, and confirms that are due are waited for; ``settle`` waits for what a broker does
beside its connections.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from differential.peer import Peer, Received
from differential.steps import Step
from holtmq.amqp.methods import (
    METHODS,
    BasicAck,
    BasicDeliver,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelectOk,
    ConnectionClose,
    ConnectionCloseOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    Method,
    QueueDeclareOk,
    QueueDeleteOk,
)
from holtmq.wire.properties import Properties
from holtmq.wire.tables import Timestamp

Seen = dict[str, Any]  # plain JSON

_BY_NAME: Final = {kind.name: kind for kind in METHODS}
_WITHOUT_REPLY: Final = ("basic.publish", "basic.ack", "basic.nack", "basic.reject", "basic.recover-async")
_WORDS: Final = 2  # of a refusal's text: the rest names the same things in other words
# Headers since RabbitMQ 3.13, or no longer since then; a stream's partition, which RabbitMQ does not have.
_NOT_COMPARED: Final = ("x-last-death-", "x-delivery-count", "x-partition")


@dataclass
class _Channel:
    is_open: bool = False
    unsettled: list[int] = field(default_factory=list)
    published: int | None = None  # since confirms were selected; None: they were not
    confirmed: set[int] = field(default_factory=set)


class Player:
    """One broker's side of a comparison."""

    def __init__(
        self,
        port: int,
        vhost: str,
        settle: Callable[[], None] = lambda: None,
        let_time_pass: Callable[[], None] = lambda: None,
    ) -> None:
        self._let_time_pass = let_time_pass
        self._port = port
        self._vhost = vhost
        self._settle = settle
        self._peers: dict[int, Peer] = {}
        self._channels: dict[tuple[int, int], _Channel] = {}
        self._events: dict[str, list[Any]] = {}
        self._answered: set[tuple[int, int]] = set()
        self._streams: set[str] = set()

    def close(self) -> None:
        """Close all sockets."""
        for peer in self._peers.values():
            peer.close()

    def play(self, step: Step) -> Seen:
        """Do one step; return what was seen until the broker had nothing more to say."""
        where, number = self._place(step)
        self._events = {}
        reply: Any = None
        if step["do"] == "wait":
            self._let_time_pass()
        elif self._open(where, number):
            reply = self._do(where, number, step)
        self._barrier()  # the broker has read the step; what it causes on other connections comes by the next
        self._wait_for_confirms()
        self._settle()
        self._barrier()
        return {"reply": reply, **{key: _joined(events) for key, events in sorted(self._events.items())}}

    def _place(self, step: Step) -> tuple[int, int]:
        """Where to do a step; a settlement goes to a channel with deliveries, as long as there is one."""
        where, number = step["at"]
        if "pick" in step and step["pick"] < 1000:
            holding = [key for key, channel in sorted(self._channels.items()) if channel.unsettled]
            if holding and (where, number) not in holding:
                return holding[0]
        return where, number

    def _open(self, where: int, number: int) -> bool:
        if where not in self._peers:
            self._peers[where] = Peer(self._port, self._vhost)
        channel = self._channels.setdefault((where, number), _Channel())
        if channel.is_open:
            return True
        self._peers[where].send(number, ChannelOpen())
        channel.is_open = True
        return isinstance(self._wait(where, number, ChannelOpenOk), ChannelOpenOk)

    def _do(self, where: int, number: int, step: Step) -> Any:
        fields = {key: value for key, value in step.items() if key not in ("at", "do")}
        kind, peer = _BY_NAME[step["do"]], self._peers[where]
        channel = self._channels[where, number]
        if step["do"] == "basic.publish":
            properties, body = Properties(**fields.pop("properties")), fields.pop("body").encode()
            if channel.published is not None:
                channel.published += 1
            peer.send_content(number, kind(**fields), properties, body)
            return None
        if "pick" in fields:
            if fields["pick"] < 1000 and not channel.unsettled:
                return "nothing to settle"
            fields["delivery_tag"] = _picked(channel.unsettled, fields.pop("pick"), fields)
        if step["do"] == "connection.close":
            peer.send(0, kind(**fields))
            self._wait(where, 0, ConnectionCloseOk)
            self._gone(where)
            return "closed"
        peer.send(number, kind(**fields))
        if step["do"] in _WITHOUT_REPLY or step.get("no_wait"):
            return None
        if step["do"] == "basic.get":
            self._wait(where, number, BasicGetOk, BasicGetEmpty)
            return self._reply
        got = self._wait(where, number, _BY_NAME[step["do"] + "-ok"])
        if isinstance(got, QueueDeclareOk) and step.get("arguments", {}).get("x-queue-type") == "stream":
            self._streams.add(step["queue"])
        if isinstance(got, QueueDeclareOk | QueueDeleteOk) and step["queue"] in self._streams:
            return self._reply[:1]  # RabbitMQ counts what is in a stream every five seconds
        if step["do"] == "channel.close" and isinstance(got, ChannelCloseOk):
            self._channels[where, number] = _Channel()
        if isinstance(got, ConfirmSelectOk) and channel.published is None:
            channel.published = 0
        return self._reply

    def _wait_for_confirms(self) -> None:
        """Every publish is confirmed, but one for a durable queue only after the broker's disk has it."""
        for (where, number), channel in list(self._channels.items()):
            while (
                self._channels.get((where, number)) is channel
                and channel.published is not None
                and len(channel.confirmed) < channel.published
            ):
                got = self._peers[where].read()
                if got is None:
                    self._note(where, 0, "socket closed")
                    self._gone(where)
                    return
                self._take(where, got)

    def _wait(self, where: int, number: int, *kinds: type[Method]) -> Method | None:
        """Read until this reply; what else comes is an event. None: the channel or connection ended."""
        self._reply: Any = None
        while (peer := self._peers.get(where)) is not None:
            got = peer.read()
            if got is None:
                self._note(where, 0, "socket closed")
                self._gone(where)
                return None
            if got.channel == number and isinstance(got.method, kinds):
                self._reply = _plain(got)
                if isinstance(got.method, BasicGetOk):
                    self._channels[where, number].unsettled.append(got.method.delivery_tag)
                return got.method
            self._take(where, got)
            channel = self._channels.get((where, number))
            if number and (channel is None or not channel.is_open):
                return None
        return None

    def _take(self, where: int, got: Received) -> None:
        channel = self._channels.get((where, got.channel))
        method = got.method
        match method:
            case ConnectionClose():
                self._note(where, 0, _plain(got))
                self._peers[where].send(0, ConnectionCloseOk())
                self._gone(where)
                return
            case ChannelClose():
                self._peers[where].send(got.channel, ChannelCloseOk())
                self._channels[where, got.channel] = _Channel()
            case ExchangeDeclareOk():  # of a barrier, on a channel that is asked later
                self._answered.add((where, got.channel))
                return
            case BasicDeliver(delivery_tag=tag) if channel is not None:
                channel.unsettled.append(tag)
            case BasicAck(tag, multiple) | BasicNack(tag, multiple) if channel is not None:
                tags = set(range(1, tag + 1)) if multiple else {tag}
                for one in sorted(tags - channel.confirmed):
                    self._note(where, got.channel, [method.name, one])
                channel.confirmed |= tags
                return
        self._note(where, got.channel, _plain(got))

    def _note(self, where: int, number: int, event: Any) -> None:
        self._events.setdefault(f"{where}.{number}", []).append(event)

    def _gone(self, where: int) -> None:
        self._peers.pop(where).close()
        for key in [key for key in self._channels if key[0] == where]:
            del self._channels[key]

    def _barrier(self) -> None:
        asked = [key for key, channel in self._channels.items() if channel.is_open]
        for where, number in asked:
            self._peers[where].send(number, ExchangeDeclare("amq.direct", passive=True))
        for key in asked:
            if key in self._channels and self._channels[key].is_open and key not in self._answered:
                self._wait(*key, ExchangeDeclareOk)
        self._answered.clear()


def _picked(unsettled: list[int], pick: int, fields: Mapping[str, object]) -> int:
    """The delivery tag that a step settles; the channel forgets it."""
    if pick >= 1000 or not unsettled:
        return 1000
    tag = unsettled[pick % len(unsettled)]
    settled = [one for one in unsettled if one <= tag] if fields.get("multiple") else [tag]
    for one in settled:
        unsettled.remove(one)
    return tag


def _joined(events: list[Any]) -> list[Any]:
    """Confirms in the order of their tags, behind the rest: a broker may gather them differently."""
    confirms = [event for event in events if event[0] in ("basic.ack", "basic.nack")]
    return [event for event in events if event not in confirms] + sorted(confirms)


def _plain(got: Received) -> Any:
    method = got.method
    match method:
        case ChannelClose() | ConnectionClose():
            name, _, text = method.reply_text.partition(" - ")
            ids = [method.failing_class_id, method.failing_method_id]
            return [method.name, method.reply_code, name, " ".join(text.split()[:_WORDS]), ids]
        case QueueDeclareOk():
            return [method.name, method.message_count, method.consumer_count]
        case BasicReturn():
            what: list[Any] = [method.name, method.reply_code, method.exchange, method.routing_key]
        case BasicDeliver():
            what = [method.name, method.consumer_tag, method.redelivered, method.exchange, method.routing_key]
        case BasicGetOk():
            what = [
                method.name,
                method.redelivered,
                method.exchange,
                method.routing_key,
                method.message_count,
            ]
        case _:
            fields = [getattr(method, name) for name in method.__match_args__]
            return [method.name, *fields]
    properties = {
        name: _value(value)
        for name in Properties.__match_args__
        if (value := getattr(got.properties, name)) is not None
    }
    if not properties.get("headers"):  # RabbitMQ leaves an empty table where it has removed BCC
        properties.pop("headers", None)
    return [*what, got.body.decode(), properties]


def _value(value: object) -> Any:
    match value:
        case Mapping():
            kept = [key for key in sorted(value) if key != "time" and not key.startswith(_NOT_COMPARED)]
            return {key: _value(value[key]) for key in kept}
        case list() | tuple():
            return [_value(one) for one in value]
        case str() if value.startswith("amq.gen"):
            return "amq.gen"
        case bytes():
            return value.decode("utf-8", "replace")
        case datetime() | Timestamp():
            return "a time"
    return value
