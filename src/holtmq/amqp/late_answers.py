"""What a method asked for and the broker does after a wait.

Owns: that an error has the same effect as without the wait, and that the connection goes on afterwards.
Must not touch: what is done.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holtmq.amqp.codes import ReplyCode
from holtmq.amqp.errors import AmqpError, ConnectionFault, channel_error
from holtmq.amqp.methods import Method
from holtmq.broker.errors import BrokerError
from holtmq.journal.interface import JournalFailed

if TYPE_CHECKING:
    from holtmq.amqp.channel import Channel


@contextmanager
def answering_late(channel: "Channel", method: type[Method]) -> Iterator[None]:
    """Close the channel or the connection if there is an error; then process frames again.

    The caller has stalled the connection.
    """
    connection = channel.connection
    is_given_up = False
    try:
        yield
    except GeneratorExit:
        is_given_up = True  # the broker has ended, and nothing may be done any more
        raise
    except JournalFailed as error:
        connection.fail(ConnectionFault(ReplyCode.INTERNAL_ERROR, str(error)))
    except (BrokerError, AmqpError) as error:
        fault = error if isinstance(error, AmqpError) else channel_error(error)
        connection.fail_channel(channel, fault, method.class_id << 16 | method.method_id)
    finally:
        if not is_given_up:
            connection.unstall()
