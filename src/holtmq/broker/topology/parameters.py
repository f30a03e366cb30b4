"""Runtime parameters: named JSON values by component, in a vhost or for the whole node.

Owns: the values. Must not touch: what they mean. Parameters of components that this node does not have
(RabbitMQ plugins) are kept here too, listed and exported unchanged.
"""

from typing import Final

import msgspec

CLUSTER_NAME: Final = "cluster_name"
THRESHOLDS: Final = "attention_thresholds"  # from when on something needs attention


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a vhost."""

    vhost: str
    component: str
    name: str
    value: bytes  # JSON, as received


class Parameters:
    """All runtime parameters."""

    def __init__(self) -> None:
        self._of_vhosts: dict[tuple[str, str, str], Parameter] = {}
        self._of_the_node: dict[str, bytes] = {}

    def put(self, parameter: Parameter) -> None:
        """Add or replace a parameter."""
        self._of_vhosts[parameter.vhost, parameter.component, parameter.name] = parameter

    def remove(self, vhost: str, component: str, name: str) -> bool:
        """Delete a parameter; False when there was none."""
        return self._of_vhosts.pop((vhost, component, name), None) is not None

    def get(self, vhost: str, component: str, name: str) -> Parameter | None:
        """The parameter, or None."""
        return self._of_vhosts.get((vhost, component, name))

    def all(self, *, component: str | None = None, vhost: str | None = None) -> list[Parameter]:
        """Parameters in a fixed order, optionally only of one component or vhost."""
        return [
            parameter
            for (where, kind, _), parameter in sorted(self._of_vhosts.items())
            if component in (None, kind) and vhost in (None, where)
        ]

    def forget_vhost(self, vhost: str) -> None:
        """Delete the parameters of a deleted vhost."""
        for key in [key for key in self._of_vhosts if key[0] == vhost]:
            del self._of_vhosts[key]

    def put_global(self, name: str, value: bytes) -> None:
        """Add or replace a parameter of the node."""
        self._of_the_node[name] = value

    def remove_global(self, name: str) -> bool:
        """Delete a parameter of the node; False when there was none."""
        return self._of_the_node.pop(name, None) is not None

    def global_value(self, name: str) -> bytes | None:
        """The JSON value, or None."""
        return self._of_the_node.get(name)

    def globals(self) -> list[tuple[str, bytes]]:
        """Names and values, sorted by name."""
        return sorted(self._of_the_node.items())
