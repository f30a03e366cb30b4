"""Runtime parameters: named JSON values by component, in a vhost or for the whole node.

Owns: the values. Must not touch: what they mean. Parameters of components that this node does not have
(RabbitMQ plugins) are kept here too, listed and exported unchanged.
"""

from typing import Final

import msgspec

from holtmq.ordered_table import OrderedTable

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
        self._of_vhosts: OrderedTable[tuple[str, str, str], Parameter] = OrderedTable(_key_of)
        self._of_the_node: OrderedTable[tuple[str], tuple[str, bytes]] = OrderedTable(_name_of)

    def put(self, parameter: Parameter) -> None:
        """Add or replace a parameter."""
        self._of_vhosts.put(parameter)

    def remove(self, vhost: str, component: str, name: str) -> bool:
        """Delete a parameter; False when there was none."""
        return self._of_vhosts.remove((vhost, component, name))

    def get(self, vhost: str, component: str, name: str) -> Parameter | None:
        """The parameter, or None."""
        return self._of_vhosts.get((vhost, component, name))

    def all(self, *, component: str | None = None, vhost: str | None = None) -> list[Parameter]:
        """Parameters in a fixed order, optionally only of one component or vhost."""
        if vhost is None:
            found = self._of_vhosts.under()
            return found if component is None else [one for one in found if one.component == component]
        return self._of_vhosts.under(vhost) if component is None else self._of_vhosts.under(vhost, component)

    def forget_vhost(self, vhost: str) -> list[Parameter]:
        """Delete the parameters of a deleted vhost; return them."""
        return self._of_vhosts.remove_under(vhost)

    def put_global(self, name: str, value: bytes) -> None:
        """Add or replace a parameter of the node."""
        self._of_the_node.put((name, value))

    def remove_global(self, name: str) -> bool:
        """Delete a parameter of the node; False when there was none."""
        return self._of_the_node.remove((name,))

    def global_value(self, name: str) -> bytes | None:
        """The JSON value, or None."""
        found = self._of_the_node.get((name,))
        return None if found is None else found[1]

    def globals(self) -> list[tuple[str, bytes]]:
        """Names and values, sorted by name."""
        return self._of_the_node.under()


def _key_of(parameter: Parameter) -> tuple[str, str, str]:
    return parameter.vhost, parameter.component, parameter.name


def _name_of(parameter: tuple[str, bytes]) -> tuple[str]:
    return (parameter[0],)
