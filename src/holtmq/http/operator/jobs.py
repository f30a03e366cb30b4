"""Jobs over HTTP: list, watch, cancel, resume.

Owns: the wire form of a job, and waiting for its end. Must not touch: what jobs do.
"""

import asyncio
from typing import Final

import msgspec

from holtmq.auth.permissions import Action
from holtmq.broker.jobs.job import Job, Request, Target
from holtmq.http.engine.endpoints import LOOK, READ, Call, Endpoint, Reply
from holtmq.http.engine.errors import Refusal

_WAIT_DEFAULT: Final = 1
_WAIT_MOST: Final = 30


async def started(call: Call, request: Request) -> Reply:
    """Start a job and answer with it, after its end if that comes soon."""
    context, identity = call.context, call.identity
    wait = call.query.number("wait", _WAIT_DEFAULT, 0, _WAIT_MOST)
    if not request.dry_run and request.to is not None:
        context.check_alarm()
    context.broker.flow.now_ms = int(call.now * 1000)

    def may_write(vhost: str, name: str) -> bool:
        return identity.may_in(vhost, Action.WRITE, name)

    job = context.broker.jobs.start(request, may_write)
    context.wake()
    await call.durable()  # what the answer says survives a crash
    await _ended(call, job, wait)
    return Reply(202, job_out(job))


async def _ended(call: Call, job: Job, seconds: int) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def told() -> None:
        if not done.done():  # the wait may be over
            done.set_result(None)

    call.broker.jobs.when_ended(job, told)
    try:
        async with asyncio.timeout(seconds):
            await done
    except TimeoutError:
        pass


def job_out(job: Job) -> dict[str, object]:
    """A job as JSON."""
    request, progress = job.request, job.progress
    one = request.sources[0] if len(request.sources) == 1 else None
    return {
        "id": str(job.id),
        "verb": request.verb,
        "vhost": None if one is None else one.vhost,
        "queue": None if one is None else one.queue,
        "queues": [{"vhost": source.vhost, "queue": source.queue} for source in request.sources],
        "to": None if request.to is None else msgspec.to_builtins(request.to),
        "filter": request.filter,
        "count": request.count,
        "rate": request.rate,
        "dry_run": request.dry_run,
        "by": request.by,
        "state": progress.state,
        "total": progress.total,
        "scanned": progress.scanned,
        "matched": progress.matched,
        "done": progress.done,
        "unrouted": progress.unrouted,
        "started": progress.started,
        "ended": progress.ended,
        "error": progress.error,
    }


def _sees(call: Call, job: Job) -> bool:
    return all(call.identity.may_in(one.vhost, Action.READ, one.queue) for one in job.request.sources)


def _job(call: Call) -> Job:
    job = call.broker.jobs.find(call.path["id"])
    for source in job.request.sources:
        call.identity.require_in(source.vhost, Action.READ, source.queue)
    call.broker.flow.now_ms = int(call.now * 1000)
    return job


async def list_jobs(call: Call) -> object:
    jobs = sorted(call.broker.jobs.jobs.values(), key=lambda job: job.id, reverse=True)
    return {"jobs": [job_out(job) for job in jobs if _sees(call, job)]}


async def show_job(call: Call) -> object:
    job, wait = _job(call), call.query.number("wait", 0, 0, _WAIT_MOST)
    if wait:
        await _ended(call, job, wait)
    return job_out(job)


async def cancel_job(call: Call) -> object:
    job = _job(call)
    running = job.is_running
    call.broker.jobs.cancel(job)
    call.context.wake()
    if running:
        await _ended(call, job, _WAIT_MOST)
    await call.durable()
    return job_out(job)


async def resume_job(call: Call) -> object:
    job, identity = _job(call), call.identity
    to = job.request.to
    if to is not None:
        require_target(call, job.request.sources[0].vhost, to)
    if job.is_running:
        raise Refusal(409, f"job {job.id} is running")
    jobs = call.broker.jobs
    jobs.resume(job, lambda vhost, name: identity.may_in(vhost, Action.WRITE, name))
    call.context.wake()
    await call.durable()
    await _ended(call, job, call.query.number("wait", _WAIT_DEFAULT, 0, _WAIT_MOST))
    return Reply(202, job_out(job))


def require_target(call: Call, home: str, to: Target) -> None:
    """Raise unless the target exists and the caller may write to it."""
    where, queue, exchange = home if to.vhost is None else to.vhost, to.queue, to.exchange
    known = call.broker.vhost(where)
    if (queue is None) == (exchange is None):
        raise Refusal(400, 'to: name a "queue" or an "exchange", and not both')
    if queue is not None:
        known.queue(queue)
        call.identity.require_in(where, Action.WRITE, queue)
    elif exchange is not None:
        if known.exchange(exchange).internal:
            raise Refusal(400, f"exchange '{exchange}' is internal: nothing can be published to it")
        call.identity.require_in(where, Action.WRITE, exchange or "amq.default")
        if to.routing_key is not None:
            call.require_topics(known, exchange, (to.routing_key,), write=True)
        elif call.restricts_topics(known, exchange):
            raise Refusal(
                403, f"on exchange '{exchange}' you may use some routing keys only: name a routing_key"
            )


_JOB: Final = "/api/v1/operator/jobs/{id}"
ENDPOINTS: Final = (
    Endpoint("GET", "/api/v1/operator/jobs", LOOK, "operator", "Jobs, newest first", list_jobs),
    Endpoint("GET", _JOB, LOOK, "operator", "One job", show_job, query=("wait",), statuses=(200, 404)),
    Endpoint("DELETE", _JOB, READ, "operator", "Cancel a job", cancel_job, statuses=(200, 404)),
    Endpoint(
        "POST",
        f"{_JOB}/resume",
        READ,
        "operator",
        "Go on with a job that stopped",
        resume_job,
        query=("wait",),
        statuses=(202, 404, 409),
    ),
)
