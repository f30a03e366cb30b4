"""Renews a lease while a handler works under it.

Owns: one timer per popped batch. Must not touch: what is handled under the lease.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from holtmq.client.api import Api
from holtmq.client.errors import ClientError, is_passing

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def kept_alive(
    api: Api, lease_id: str, every: float | None, seconds: float | None, on_lost: Callable[[], None]
) -> AsyncIterator[None]:
    """Renew while the block runs; call ``on_lost`` once when the broker reports the lease as expired."""
    if every is None or not lease_id:
        yield
        return
    keeper = asyncio.create_task(_keep(api, lease_id, every, seconds, on_lost), name="holt-renewals")
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)


async def _keep(
    api: Api, lease_id: str, every: float, seconds: float | None, on_lost: Callable[[], None]
) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        # From the last due time, not from now: a slow response must not stretch the interval.
        due = max(due + every, loop.time())
        await asyncio.sleep(due - loop.time())
        try:
            renewal = await api.extend(lease_id, seconds)
        except ClientError as error:
            log.warning("a lease could not be renewed", extra={"lease": lease_id, "reason": str(error)})
            if not is_passing(error):
                return
            continue
        if not renewal.success:
            on_lost()
            return
