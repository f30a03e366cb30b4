"""All vhosts of a broker, by name.

Owns: finding one. Must not touch: what is in a vhost.
"""

from holtmq.broker.errors import NotFound
from holtmq.broker.topology.vhost import VHost


class VHosts(dict[str, VHost]):
    """The vhosts by name."""

    def find(self, name: str) -> VHost:
        """The vhost of this name; raises NotFound."""
        found = self.get(name)
        if found is None:
            raise NotFound(f"vhost {name} not found")
        return found
