"""The reply codes of AMQP 0-9-1.

Owns: the numbers and the names RabbitMQ prints with them (``NOT_FOUND - no queue ...``).
Must not touch: which error gets which code (``errors.py``).
"""

from __future__ import annotations

from enum import IntEnum


class ReplyCode(IntEnum):
    """Why a method was refused or a channel or connection closed."""

    REPLY_SUCCESS = 200
    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    NO_CONSUMERS = 313
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541
