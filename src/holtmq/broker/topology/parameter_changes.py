"""Parameters of components and of the node: each change with its journal record.

Owns: these. Must not touch: what a component does with its parameters.
"""

from collections.abc import Callable

from holtmq.broker.errors import NotFound
from holtmq.broker.records.change_log import ChangeLog
from holtmq.broker.records.changes import (
    GlobalParameterDeleted,
    GlobalParameterPut,
    ParameterDeleted,
    ParameterPut,
)
from holtmq.broker.topology.long_changes import LongChanges
from holtmq.broker.topology.parameters import Parameter, Parameters
from holtmq.broker.topology.vhosts import VHosts


class ParameterChanges:
    """The parameters of a broker."""

    def __init__(self, log: ChangeLog, vhosts: VHosts, long_changes: LongChanges) -> None:
        self._log = log
        self._vhosts = vhosts
        self._free = long_changes.free
        self.store = Parameters()
        self.on_changed: Callable[[], None] = _nothing  # called when parameters of vhosts have changed

    def forget_vhost(self, name: str) -> None:
        """Drop the parameters of a vhost that is being deleted; its record says so."""
        self._free(self.store.forget_vhost(name))
        self.on_changed()

    def put(self, parameter: Parameter) -> None:
        """Add or replace a parameter of a component."""
        self._vhosts.find(parameter.vhost)
        self._log.refuse_if_failed()
        self.store.put(parameter)
        self._log.record(ParameterPut(parameter.vhost, parameter.component, parameter.name, parameter.value))
        self.on_changed()

    def delete(self, vhost: str, component: str, name: str) -> None:
        """Delete a parameter."""
        self._log.refuse_if_failed()
        if not self.store.remove(vhost, component, name):
            raise NotFound(f"no parameter '{name}' of component '{component}' in vhost '{vhost}'")
        self._log.record(ParameterDeleted(vhost, component, name))
        self.on_changed()

    def put_global(self, name: str, value: bytes) -> None:
        """Add or replace a parameter of the node."""
        self._log.refuse_if_failed()
        self.store.put_global(name, value)
        self._log.record(GlobalParameterPut(name, value))

    def delete_global(self, name: str) -> None:
        """Delete a parameter of the node."""
        self._log.refuse_if_failed()
        if not self.store.remove_global(name):
            raise NotFound(f"no global parameter '{name}'")
        self._log.record(GlobalParameterDeleted(name))


def _nothing() -> None:
    return None
