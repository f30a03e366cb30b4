"""Users, vhosts and permissions in the folder of a broker that is not running.

Owns: opening the journal, replaying it, writing the change, closing. Must not touch: the records; the broker
writes the same ones as when it runs.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from holtmq.auth.passwords import hash_password
from holtmq.auth.permissions import Permissions
from holtmq.auth.users import User
from holtmq.broker.broker import Broker
from holtmq.broker.errors import BrokerError, NotFound
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.records.recovery import recover
from holtmq.cli.registry import PermissionRow, UserRow, VhostRow
from holtmq.first_start import put_defaults
from holtmq.journal import FileJournal, JournalError, JournalLocked, open_journal
from holtmq.journal.segment import SUFFIX
from holtmq.name_patterns import BadPattern


@contextmanager
def open_folder(folder: Path) -> "Iterator[FolderRegistry]":
    """Lock the folder for the length of the block; every error becomes a click message."""
    found = {entry.name for entry in folder.iterdir()}
    if found and not any(name.endswith(SUFFIX) for name in found):
        raise click.ClickException(f"{folder} is not a data folder: there are files in it, but no journal")
    try:
        journal, recovery = open_journal(folder)
        try:
            broker = Broker(journal)
            # Deleting a vhost also deletes its streams, which are stored as partitioned queues.
            partitioned = PartitionedService(journal)
            broker.attach(partitioned)
            broker.flow.now_ms = int(time.time() * 1000)
            recover(broker, recovery, partitioned.store)
            if not broker.vhosts:  # a new folder: do what the broker's first start does
                put_defaults(broker)
            yield FolderRegistry(broker, journal)
        finally:
            journal.close()
        if journal.failed is not None:
            raise journal.failed
    except JournalLocked as locked:
        raise click.ClickException(f"{locked}; reach that broker with --url, or stop it first") from None
    except (BrokerError, BadPattern) as refused:
        raise click.ClickException(str(refused)) from None
    except (JournalError, OSError) as error:
        raise click.ClickException(f"{error} (`holt journal check {folder}` says more)") from None


class FolderRegistry:
    """Implements ``Registry``."""

    def __init__(self, broker: Broker, journal: FileJournal) -> None:
        self._broker = broker
        self._journal = journal

    def users(self) -> list[UserRow]:
        """All users."""
        users = self._broker.users.users()
        return [UserRow(user.name, list(user.tags), user.password_hash) for user in users]

    def put_user(self, user: UserRow, password: str | None) -> None:
        """Add or replace; without a password the row's hash is kept."""
        password_hash = user.password_hash if password is None else hash_password(password)
        self._broker.access.put_user(User(user.name, password_hash, tuple(user.tags)))
        self._sync()

    def delete_user(self, name: str) -> None:
        """Remove a user."""
        self._broker.access.delete_user(name)
        self._sync()

    def vhosts(self) -> list[VhostRow]:
        """All vhosts."""
        vhosts = self._broker.vhosts
        return [
            VhostRow(name, sum(len(queue) for queue in vhosts[name].queues.values()))
            for name in sorted(vhosts)
        ]

    def put_vhost(self, name: str) -> None:
        """Add a vhost."""
        self._broker.put_vhost(name)
        self._sync()

    def delete_vhost(self, name: str) -> None:
        """Remove a vhost and everything in it."""
        self._broker.delete_vhost(name)
        self._sync()

    def permissions(self) -> list[PermissionRow]:
        """All permissions."""
        return [
            PermissionRow(
                grant.user,
                grant.vhost,
                grant.permissions.configure,
                grant.permissions.write,
                grant.permissions.read,
            )
            for grant in self._broker.users.grants()
        ]

    def set_permissions(self, row: PermissionRow) -> None:
        """Grant or replace permissions."""
        self._broker.access.set_permissions(
            row.user, row.vhost, Permissions(row.configure, row.write, row.read)
        )
        self._sync()

    def clear_permissions(self, user: str, vhost: str) -> None:
        """Remove permissions."""
        if not self._broker.users.grants(user=user, vhost=vhost):
            raise NotFound(f"user '{user}' has no permissions in vhost '{vhost}'")
        self._broker.access.clear_permissions(user, vhost)
        self._sync()

    def _sync(self) -> None:
        self._journal.flush()
        if self._journal.failed is not None:
            raise self._journal.failed
