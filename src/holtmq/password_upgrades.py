"""Rehashes a password when its user logs in, if the stored hash is imported or has outdated parameters.

Owns: the running argon2 tasks. Must not touch: logins, which do not wait for it. It is at the node's level
because only the node knows both logins and the broker.
"""

import asyncio
import logging

import msgspec

from holtmq.auth import passwords
from holtmq.auth.passwords import VerifiedCredentials
from holtmq.broker.broker import Broker

log = logging.getLogger(__name__)


class PasswordUpgrades:
    """Rehashes correct passwords whose hash is outdated."""

    def __init__(self, broker: Broker, verified: VerifiedCredentials) -> None:
        self._broker = broker
        self._verified = verified
        self._running: dict[str, asyncio.Task[None]] = {}
        verified.on_outdated = self._outdated

    def _outdated(self, name: str, password: str, password_hash: str) -> None:
        if name not in self._running:
            task = asyncio.get_running_loop().create_task(
                self._upgrade(name, password, password_hash), name=f"password-upgrade-{name}"
            )
            self._running[name] = task
            task.add_done_callback(lambda _: self._running.pop(name, None))

    async def _upgrade(self, name: str, password: str, outdated: str) -> None:
        fresh = await asyncio.to_thread(passwords.hash_password, password)
        user = self._broker.users.user(name)
        if user is None or user.password_hash != outdated or self._broker.journal.failed is not None:
            return  # the user was changed meanwhile, or the journal failed; the next login tries again
        self._broker.access.put_user(msgspec.structs.replace(user, password_hash=fresh))
        self._verified.remember(name, password, fresh)
        log.info("password hashed anew", extra={"user": name})

    async def stop(self) -> None:
        """Cancel the running tasks."""
        for task in list(self._running.values()):
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
