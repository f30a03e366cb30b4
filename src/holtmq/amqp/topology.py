"""Declaring, binding, purging and deleting, for one channel.

Owns: the exchange and queue methods and their permissions. Must not touch: messages and leases.
"""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import ChannelFault, ConnectionFault
from holtmq.amqp.late_answers import answering_late
from holtmq.amqp.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    Method,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)
from holtmq.auth.permissions import Action
from holtmq.broker.broker import new_server_name
from holtmq.broker.dialect import Dialect
from holtmq.broker.errors import ResourceLocked
from holtmq.broker.publish.publish_properties import DIRECT_REPLY_TO
from holtmq.broker.topology.destinations import Queue
from holtmq.broker.topology.queue_arguments import queue_text
from holtmq.broker.topology.queue_options import QueueType
from holtmq.broker.topology.vhost import refuse_default
from holtmq.broker.work.work_queue import WorkQueue

if TYPE_CHECKING:
    from holtmq.amqp.channel import Channel

log = logging.getLogger(__name__)


class Topology:
    """Exchange and queue methods. The reply to a change that is journalled waits until it is durable."""

    def __init__(self, channel: "Channel") -> None:
        self._channel = channel
        self._broker = channel.broker
        self._connection = channel.connection
        self._last_queue = ""  # an empty queue name means the last one declared on this channel

    def readable_queue(self, name: str) -> Queue:
        """The queue a method names, if this connection may read from it."""
        name = self._named(name)
        self._check(Action.READ, name)  # first: who may not read does not learn which queues exist
        return self._connection.vhost.queue(name, self._connection)

    def handle(self, method: Method) -> None:
        """Run one exchange or queue method."""
        match method:
            case ExchangeDeclare():
                self._exchange_declare(method)
            case ExchangeDelete(name, if_unused, no_wait):
                self._check(Action.CONFIGURE, name)
                lasting = self._broker.exchanges.delete(self._connection.vhost, name, if_unused)
                self._answer(ExchangeDeleteOk(), lasting, no_wait)
            case ExchangeBind(destination, source, key, no_wait, arguments):
                self._refuse_unreadable("routing key", key)
                self._check(Action.WRITE, destination)
                self._check(Action.READ, source)
                self._connection.rights.check_topic(source, key, write=False)
                lasting = self._broker.bind(
                    self._connection.vhost, source, destination, key, arguments, to_exchange=True
                )
                self._answer(ExchangeBindOk(), lasting, no_wait)
            case ExchangeUnbind(destination, source, key, no_wait, arguments):
                self._check(Action.WRITE, destination)
                self._check(Action.READ, source)
                self._connection.rights.check_topic(source, key, write=False)
                lasting = self._broker.exchanges.unbind(
                    self._connection.vhost, source, destination, key, arguments, to_exchange=True
                )
                self._answer(ExchangeUnbindOk(), lasting, no_wait)
            case QueueDeclare():
                self._queue_declare(method)
            case QueueBind(queue, exchange, key, no_wait, arguments):
                self._refuse_unreadable("routing key", key)
                name = self._named(queue)
                key = self._last_queue if not queue and not key else key
                self._check(Action.WRITE, name)
                self._check(Action.READ, exchange)
                self._connection.rights.check_topic(exchange, key, write=False)
                lasting = self._broker.bind(
                    self._connection.vhost, exchange, name, key, arguments, owner=self._connection
                )
                self._answer(QueueBindOk(), lasting, no_wait)
            case QueueUnbind(queue, exchange, key, arguments):
                name = self._named(queue)
                self._check(Action.WRITE, name)
                self._check(Action.READ, exchange)
                self._connection.rights.check_topic(exchange, key, write=False)
                lasting = self._broker.exchanges.unbind(
                    self._connection.vhost, exchange, name, key, arguments, owner=self._connection
                )
                self._answer(QueueUnbindOk(), lasting, False)
            case QueuePurge(queue, no_wait):
                name = self._named(queue)
                self._check(Action.READ, name)
                found = self._connection.vhost.queues.get(name)
                if found is not None:
                    refuse_on_stream("queue.purge", found, self._broker.dialect)
                count, lasting = self._broker.purge_queue(self._connection.vhost, name, self._connection)
                self._answer(QueuePurgeOk(count), lasting, no_wait)
            case QueueDelete(queue, if_unused, if_empty, no_wait):
                name = self._named(queue)
                self._check(Action.CONFIGURE, name)
                self._queue_delete(name, if_unused, if_empty, no_wait)
            case _:
                raise ConnectionFault(ReplyCode.COMMAND_INVALID, f"unimplemented method {method.name}")

    def _exchange_declare(self, method: ExchangeDeclare) -> None:
        vhost, name = self._connection.vhost, _one_line(method.exchange)
        if method.passive:
            refuse_default(name)
            vhost.exchange(name)
            self._answer(ExchangeDeclareOk(), False, method.no_wait)
            return
        self._refuse_unreadable("exchange name", name)
        self._check(Action.CONFIGURE, name)
        alternate = method.arguments.get("alternate-exchange")
        if isinstance(alternate, str):
            self._check(Action.READ, name)
            self._check(Action.WRITE, alternate)
        lasting = self._broker.exchanges.declare(
            vhost,
            name,
            method.type,
            durable=method.durable,
            auto_delete=method.auto_delete,
            internal=method.internal,
            arguments=method.arguments,
        )
        self._answer(ExchangeDeclareOk(), lasting, method.no_wait)

    def _queue_declare(self, method: QueueDeclare) -> None:
        vhost, name = self._connection.vhost, _one_line(method.queue)
        if name == DIRECT_REPLY_TO or name.startswith(DIRECT_REPLY_TO + "."):
            found = vhost.queues.get(name)
            if name != DIRECT_REPLY_TO and found is None:
                raise ChannelFault(ReplyCode.NOT_FOUND, f"no queue '{name}' in vhost '{vhost.name}'")
            self._answer(QueueDeclareOk(name, 0, 1), False, method.no_wait)
            return
        lasting = False
        if method.passive:
            queue = vhost.queue(name, self._connection)
        else:
            made = name or new_server_name()
            self._refuse_unreadable("queue name", made)
            self._check(Action.CONFIGURE, made)
            dead_letters = method.arguments.get("x-dead-letter-exchange")
            if isinstance(dead_letters, str):
                self._check(Action.READ, made)
                self._check(Action.WRITE, dead_letters)
            queue, lasting = self._broker.declare_queue(
                vhost,
                name,
                durable=method.durable,
                exclusive=method.exclusive,
                auto_delete=method.auto_delete,
                arguments=method.arguments,
                owner=self._connection,
                server_name=made,
            )
            if isinstance(queue, WorkQueue):
                self._tell_of_clamp(queue)
        self._last_queue = queue.name
        self._broker.flow.turn()  # so that the counts in the reply are current
        self._answer(QueueDeclareOk(queue.name, len(queue), len(queue.consumers)), lasting, method.no_wait)

    def _tell_of_clamp(self, queue: WorkQueue) -> None:
        """Warn once per queue: it reports the declared value, so only the log shows the lower limit."""
        if queue.levels_clamped:
            queue.levels_clamped = False
            log.warning(
                "x-max-priority above amqp.max_priority: higher priorities count as the highest kept",
                extra={
                    "queue": queue.name,
                    "vhost": queue.vhost,
                    "declared": queue.declared.max_priority,
                    "kept": self._broker.max_priority,
                },
            )

    def _queue_delete(self, name: str, if_unused: bool, if_empty: bool, no_wait: bool) -> None:
        """Send delete-ok before the cancel notices, as RabbitMQ does: waiting clients expect it first."""
        channel = self._channel
        if if_unused or if_empty:
            found = self._connection.vhost.queues.get(name)
            if found is not None:
                flag = "if-unused" if if_unused else "if-empty"
                refuse_conditional_delete(found, flag, self._broker.dialect)
        doomed = self._connection.vhost.queues.get(name)
        if self._broker.removals.is_long(doomed):
            self._connection.stall()
            steps = self._delete_in_steps(doomed, QueueDelete(name, if_unused, if_empty, no_wait))
            self._broker.long_changes.add(steps, 1)
            return
        notices = channel.consuming.notices = []
        try:
            count, lasting = self._broker.delete_queue(
                self._connection.vhost, name, if_unused=if_unused, if_empty=if_empty, owner=self._connection
            )
        finally:
            channel.consuming.notices = None
        self._answer(QueueDeleteOk(count), lasting, no_wait)
        for notice in notices:
            self._answer(notice, lasting, False)

    def _delete_in_steps(self, queue: Queue | None, method: QueueDelete) -> Iterator[None]:
        """Dead-letter what the queue has cast out, then delete it. The connection processes no frame."""
        with answering_late(self._channel, QueueDelete):
            yield from self._broker.removals.cast_out(queue)
            if not self._channel.closing:
                self._queue_delete(method.queue, method.if_unused, method.if_empty, method.no_wait)

    def _named(self, name: str) -> str:
        if name:
            return _one_line(name)
        if not self._last_queue:
            raise ChannelFault(ReplyCode.NOT_FOUND, "no previously declared queue")
        return self._last_queue

    def _refuse_unreadable(self, what: str, text: str) -> None:
        """Refuse a name that is not UTF-8: it is listed, logged, journalled. (Messages may have any key.)"""
        try:
            text.encode()
        except UnicodeEncodeError:
            shown = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
            wrong = f"{what} '{shown}' is not UTF-8"
            if self._broker.dialect.unreadable_names_close_connection:
                raise ConnectionFault(ReplyCode.FRAME_ERROR, wrong) from None
            raise ChannelFault(ReplyCode.PRECONDITION_FAILED, wrong) from None

    def _check(self, action: Action, name: str) -> None:
        self._connection.rights.check(action, name)

    def _answer(self, method: Method, lasting: bool, no_wait: bool) -> None:
        if not no_wait:
            self._connection.reply_when_durable(self._channel, method, lasting)


def refuse_on_stream(what: str, queue: Queue, dialect: Dialect) -> None:
    """Close the connection for a method that streams do not have, if RabbitMQ's behaviour is selected."""
    if queue.is_stream and dialect.stream_misuse_closes_connection:
        thing = queue_text(queue.name, queue.vhost)
        raise ConnectionFault(ReplyCode.NOT_IMPLEMENTED, f"{what} not supported by stream queues {thing}")


def refuse_conditional_delete(queue: Queue, flag: str, dialect: Dialect) -> None:
    """Close the connection for a conditional delete of a quorum queue, if RabbitMQ's way is selected."""
    if dialect.refuse_conditional_quorum_delete and queue.options.queue_type is QueueType.QUORUM:
        raise ConnectionFault(
            ReplyCode.NOT_IMPLEMENTED,
            f"cannot delete {queue_text(queue.name, queue.vhost)}. queue.delete operations with {flag} flag "
            "set are not supported by quorum queues",
        )


def refuse_single_active_get(queue: Queue, dialect: Dialect) -> None:
    """Refuse basic.get beside a single active consumer of a quorum queue, if RabbitMQ's way is selected."""
    if not dialect.refuse_single_active_get:
        return
    options = queue.options
    if options.queue_type is QueueType.QUORUM and options.single_active_consumer:
        raise ResourceLocked(
            f"cannot obtain access to locked {queue_text(queue.name, queue.vhost)}. basic.get operations are "
            "not supported by quorum queues with single active consumer"
        )


def _one_line(name: str) -> str:
    """Remove line ends from a name, as RabbitMQ does: they would break listings."""
    return name.replace("\r", "").replace("\n", "") if "\r" in name or "\n" in name else name
