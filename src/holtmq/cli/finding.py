"""Finds the local broker: by the address that it left in its data folder, or by its settings.

Owns: the order in which they count. Must not touch: connections.
"""

import os
from pathlib import Path
from typing import Final

from holtmq import address_file
from holtmq.config import Config, ConfigError, load

_DEFAULT_PORT: Final = 6632
_NAMED_BY: Final = ("http.port", "http.tls_port", "http.host")


def local_url(folder: Path | None = None) -> str:
    """The address of the broker on this machine, for a verb without --url.

    First counts the address in a named folder; then a port or host that the settings name; then the address
    in the settings' data folder; then the default.
    """
    try:
        loaded = load(os.environ, {}, None)
    except ConfigError:  # `holt serve` and `holt config` report it; the verb may be about another broker
        return (None if folder is None else address_file.read(folder)) or configured_url(Config())
    config = loaded.config
    if folder is not None:
        found = address_file.read(folder)
    elif config.http.port and any(name in loaded.origins for name in _NAMED_BY):
        found = None
    else:
        found = address_file.read(config.data.dir)
    return found or configured_url(config)


def configured_url(config: Config) -> str:
    """The address that a broker with these settings listens on."""
    http = config.http
    host = http.host[0] if http.host else ""
    if not http.plain and http.tls_cert is not None:
        return address_file.url_of("https", host, http.tls_port)
    return address_file.url_of("http", host, http.port or _DEFAULT_PORT)
