"""tx.commit and tx.rollback on a channel: at once, or in steps if the transaction is large.

Owns: when their parts run, and the answer. Must not touch: what a transaction does
(``transaction.py``).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import ChannelFault
from holtmq.amqp.late_answers import answering_late
from holtmq.amqp.methods import TxCommit, TxCommitOk, TxRollback, TxRollbackOk
from holtmq.amqp.transaction import STEP, Committed, Transaction

if TYPE_CHECKING:
    from holtmq.amqp.channel import Channel


def commit(channel: "Channel", transaction: Transaction) -> None:
    """Commit the open transaction of a channel."""
    if transaction.is_long:
        channel.connection.stall()
        channel.broker.long_changes.add(_commit_in_steps(channel, transaction), STEP)
    else:
        _after(channel, transaction, transaction.commit())


def roll_back(channel: "Channel", transaction: Transaction) -> None:
    """Roll back the open transaction of a channel."""
    if transaction.is_long_to_roll_back:
        channel.connection.stall()
        channel.broker.long_changes.add(_roll_back_in_steps(channel, transaction), step=1)
    else:
        transaction.rollback()
        channel.send(TxRollbackOk())


def _roll_back_in_steps(channel: "Channel", transaction: Transaction) -> Iterator[None]:
    with answering_late(channel, TxRollback):
        for _ in transaction.rollback_in_steps():
            yield
            if channel.closing:
                return
        channel.send(TxRollbackOk())


def _commit_in_steps(channel: "Channel", transaction: Transaction) -> Iterator[None]:
    """The connection processes no frame until the end."""
    with answering_late(channel, TxCommit):
        done = yield from transaction.commit_in_steps(lambda: channel.closing)
        if done is not None:
            _after(channel, transaction, done)
    yield from transaction.let_go()


def _after(channel: "Channel", transaction: Transaction, done: Committed) -> None:
    if done.wide:
        channel.connection.stall()
        channel.broker.long_changes.add(_place_in_steps(channel, transaction, done), step=1)
    else:
        _answer(channel, done)


def _place_in_steps(channel: "Channel", transaction: Transaction, done: Committed) -> Iterator[None]:
    """Place messages of a transaction in very many queues, as a channel does with those without one."""
    with answering_late(channel, TxCommit):
        done = yield from transaction.place(done)
        if not channel.closing:
            _answer(channel, done)


def _answer(channel: "Channel", done: Committed) -> None:
    for message in done.unrouted:
        channel.return_unrouted(*message)
    channel.make_room()
    if done.is_partial:  # as in RabbitMQ: the rest is done, and the client must learn that not all is
        raise ChannelFault(ReplyCode.PRECONDITION_FAILED, "partial tx completion")
    channel.connection.reply_when_durable(channel, TxCommitOk(), done.journalled)
