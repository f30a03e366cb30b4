"""Checks when a node starts: insecure settings, patterns that match nothing, extras not installed.

Owns: the warnings, and the data folder's mode. Must not touch: what the node does about warnings (it starts).
"""

import logging
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holtmq.auth.permissions import Action
from holtmq.auth.users import DEFAULT_USER
from holtmq.broker.broker import Broker
from holtmq.config import Config
from holtmq.http.engine.authentication import NO_USER
from holtmq.journal.disk import OsDisk
from holtmq.name_patterns import is_usable

if TYPE_CHECKING:
    from holtmq.tracing.start import Tracing

log = logging.getLogger(__name__)

_OWN_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_LEAST_SECRET: Final = 32  # bytes of a key for HS256, by RFC 7518


def warn(config: Config, broker: Broker) -> None:
    """Log a warning for each insecure setting and each pattern that cannot be used."""
    _warn_of_open_access(config, broker)
    _warn_of_patterns(broker)


def _warn_of_open_access(config: Config, broker: Broker) -> None:
    hosts = {*config.amqp.host, *config.http.host} - _OWN_HOSTS
    if hosts and not broker.users.has_own_users:
        log.warning(
            "listening beyond this machine, but only guest exists, which works from loopback alone",
            extra={"hosts": ",".join(sorted(hosts))},
        )
    anonymous = config.http.anonymous
    if anonymous not in ("", NO_USER, DEFAULT_USER):
        log.warning("requests without credentials are let in", extra={"user": anonymous})
    size = len(config.auth.jwt_secret.encode())
    if config.auth.jwt_enabled and 0 < size < _LEAST_SECRET:
        log.warning("auth.jwt_secret is short: HS256 wants 32 bytes at least", extra={"bytes": size})


def _warn_of_patterns(broker: Broker) -> None:
    """A pattern stored by an older version may not be usable any more; it then matches nothing."""
    stored = [
        (f"policy '{policy.name}' in vhost '{vhost}'", policy.pattern.pattern)
        for book in (broker.policies, broker.operator_policies)
        for vhost in broker.vhosts
        for policy in book.in_vhost(vhost)
    ]
    stored += [
        (f"{action.value} permission of '{grant.user}' in vhost '{grant.vhost}'", pattern)
        for grant in broker.users.grants()
        for action in Action
        if (pattern := grant.permissions.pattern(action))
    ]
    stored += [
        (
            f"topic permission of '{topic.user}' for exchange '{topic.exchange}' in vhost '{topic.vhost}'",
            topic.expanded(pattern),
        )
        for topic in broker.topic_permissions.all()
        for pattern in (topic.write, topic.read)
    ]
    for where, pattern in stored:
        if not is_usable(pattern):
            log.warning("pattern matches nothing", extra={"where": where, "pattern": pattern})


def make_private(folder: Path) -> None:
    """Create the folder, and close it to other users: reading the files in it takes no password."""
    OsDisk(folder)  # creates it, or says in plain words why that is not possible
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        try:
            folder.chmod(0o700)
        except OSError as error:
            log.warning(
                "others may read the data folder", extra={"folder": str(folder), "reason": str(error)}
            )
        else:
            log.info("data folder closed to others", extra={"folder": str(folder), "was": f"{mode:04o}"})


class CannotStart(Exception):
    """A setting asks for something that this installation does not have; the text says what."""


def start_tracing() -> "Tracing":
    """OpenTelemetry, which is optional."""
    try:
        from holtmq.tracing.start import CannotTrace, Tracing
    except ModuleNotFoundError as error:
        raise CannotStart(f"tracing.enabled: {error}; pip install 'holtmq[otel]'") from None
    try:
        return Tracing()
    except CannotTrace as error:
        raise CannotStart(f"tracing.enabled: {error}") from None
