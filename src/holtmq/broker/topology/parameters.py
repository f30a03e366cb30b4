"""Runtime parameters: named JSON values by component, in a vhost or for the whole node.

Owns: the values. Must not touch: what they mean. A component that this node does not have (a plugin of
RabbitMQ) keeps its parameters here, listed and exported as they came.
"""

from typing import Final

import msgspec

CLUSTER_NAME: Final = "cluster_name"


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a vhost."""

    vhost: str
    component: str
    name: str
    value: bytes  # JSON, as it came


class Parameters:
    """All of them."""

    def __init__(self) -> None:
        self._of_vhosts: dict[tuple[str, str, str], Parameter] = {}
        self._of_the_node: dict[str, bytes] = {}

    def put(self, parameter: Parameter) -> None:
        """Add or replace."""
        self._of_vhosts[parameter.vhost, parameter.component, parameter.name] = parameter

    def remove(self, vhost: str, component: str, name: str) -> bool:
        """False when there was none."""
        return self._of_vhosts.pop((vhost, component, name), None) is not None

    def get(self, vhost: str, component: str, name: str) -> Parameter | None:
        """The parameter of this name."""
        return self._of_vhosts.get((vhost, component, name))

    def all(self, *, component: str | None = None, vhost: str | None = None) -> list[Parameter]:
        """In a fixed order, of one component or in one vhost if so asked."""
        return [
            parameter
            for (where, kind, _), parameter in sorted(self._of_vhosts.items())
            if component in (None, kind) and vhost in (None, where)
        ]

    def forget_vhost(self, vhost: str) -> None:
        """The vhost is gone."""
        for key in [key for key in self._of_vhosts if key[0] == vhost]:
            del self._of_vhosts[key]

    def put_global(self, name: str, value: bytes) -> None:
        """Add or replace one of the whole node."""
        self._of_the_node[name] = value

    def remove_global(self, name: str) -> bool:
        """False when there was none."""
        return self._of_the_node.pop(name, None) is not None

    def global_value(self, name: str) -> bytes | None:
        """JSON; None when there is no such parameter."""
        return self._of_the_node.get(name)

    def globals(self) -> list[tuple[str, bytes]]:
        """Name and value of each, by name."""
        return sorted(self._of_the_node.items())
