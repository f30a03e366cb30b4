"""A real broker inside your tests: ``with TestBroker() as broker:``. No Docker, no files, no waiting.

Owns: the public names. They are imported on first use, because pytest loads this package's plugin
in every project that has HoltMQ installed, used or not.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holtmq.testing.broker import BrokerDidNotStart, TestBroker
    from holtmq.testing.clock import VirtualClock
    from holtmq.testing.disk import Keep
    from holtmq.testing.partitioned_views import GroupView, PartitionLeaseView
    from holtmq.testing.views import (
        ConnectionView,
        ConsumerView,
        ExchangeView,
        LeaseView,
        StoredMessage,
    )

__all__ = [
    "BrokerDidNotStart",
    "ConnectionView",
    "ConsumerView",
    "ExchangeView",
    "GroupView",
    "Keep",
    "LeaseView",
    "PartitionLeaseView",
    "StoredMessage",
    "TestBroker",
    "VirtualClock",
]

_HOMES = {
    "BrokerDidNotStart": "broker",
    "GroupView": "partitioned_views",
    "Keep": "disk",
    "PartitionLeaseView": "partitioned_views",
    "TestBroker": "broker",
    "VirtualClock": "clock",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'views')}")
    value: object = getattr(home, name)
    return value
