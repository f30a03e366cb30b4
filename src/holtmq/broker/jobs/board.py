"""The jobs of a node: started, carried out in steps, cancelled, and taken up again after a restart.

Owns: the jobs, the order of steps, and the records of their progress. Must not touch: clocks and sockets; the
flow's timers call the next step, so that other work runs in between.
"""

import re
from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Final

from holtmq.broker.errors import BrokerError, Conflict, NotFound
from holtmq.broker.jobs import job as words
from holtmq.broker.jobs.filters import Filter, parse_filter
from holtmq.broker.jobs.job import Job, Progress, Request, Source, encode_job
from holtmq.broker.jobs.letter_batches import discard_letters, redrive_letters
from holtmq.broker.jobs.letters import partitioned_letter, work_letter
from holtmq.broker.jobs.subjects import letter_subject, levels, work_subject
from holtmq.broker.jobs.transfers import Destination, MayWrite, to_origin, to_target, transfer
from holtmq.broker.message import Message
from holtmq.broker.partitioned.log.dead_letter_store import DeadLetter
from holtmq.broker.partitioned.queue import PartitionedQueue
from holtmq.broker.partitioned.service import PartitionedService
from holtmq.broker.publish.publish_properties import PublishProperties
from holtmq.broker.records.changes import JobDeleted, JobPut, Kind, encode_change
from holtmq.broker.streams.stream_queue import stored_name
from holtmq.broker.work.work_queue import WorkQueue
from holtmq.journal.interface import JournalError

if TYPE_CHECKING:
    from holtmq.broker.broker import Broker

_NUMBER: Final = re.compile("[0-9]{1,18}").fullmatch  # Python refuses to convert more than 4,300 digits
_STEP: Final = 200  # messages of one step: about 3 ms
# Of one step too, in microseconds: sources may be very many, and each batch's record names all of them.
_WORK: Final = 8_000
_PASSED: Final = 4  # a source in which nothing is left
_RECORDED: Final = 30  # a batch
_SOURCES: Final = 10  # how many are encoded in a microsecond
_STEP_BYTES: Final = 1 << 20
_BURST_SECONDS: Final = 0.1  # with a rate: a step takes at most what the rate allows in this time
_KEPT: Final = 100  # ended jobs
_PAUSE_MS: Final = 1


def may_write_all(vhost: str, name: str) -> bool:
    """No limit on where dead letters may go."""
    return True


class JobBoard:
    """All jobs of a node. ``partitioned`` is set if the node has partitioned queues."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._flow = broker.flow
        self.partitioned: PartitionedService | None = None
        self.jobs: dict[int, Job] = {}
        self.last_id = 0
        self._filters: dict[int, Filter] = {}
        self._may_write: dict[int, MayWrite] = {}
        self._ending: set[int] = set()
        self._waiting: dict[int, list[Callable[[], None]]] = {}

    def start(self, request: Request, may_write: MayWrite = may_write_all) -> Job:
        """Begin a job and carry out its first step; a short one needs no more."""
        matches = parse_filter(request.filter)
        self._refuse_if_failed()
        self.last_id += 1
        job = Job(self.last_id, request, Progress(started=self._flow.now_ms))
        self._flow.turn()
        job.progress.total = sum(self._size(source) for source in request.sources)
        self.jobs[job.id] = job
        self._enter(job, 0)
        self._run(job, matches, may_write)
        return job

    def resume(self, job: Job, may_write: MayWrite = may_write_all) -> None:
        """Go on with a job that was cancelled, interrupted or failed."""
        if job.is_running or job.progress.state == words.DONE:
            raise Conflict(f"job {job.id} is {job.progress.state}: there is nothing to resume")
        self._refuse_if_failed()
        job.progress.state, job.progress.ended, job.progress.error = words.RUNNING, None, None
        self._run(job, parse_filter(job.request.filter), may_write)

    def cancel(self, job: Job) -> None:
        """Stop after the batch at hand; an ended job is removed from the list."""
        if job.is_running:
            self._end(job, words.CANCELLED)
        else:
            self._forget(job)

    def find(self, number: str) -> Job:
        """The job with this number. Raises NotFound."""
        job = self.jobs.get(int(number)) if _NUMBER(number) else None
        if job is None:
            raise NotFound(f"no job {number}")
        return job

    def when_ended(self, job: Job, tell: Callable[[], None]) -> None:
        """Call once the job has ended; at once if it has."""
        if job.is_running:
            self._waiting.setdefault(job.id, []).append(tell)
        else:
            tell()

    def adopt(self, job: Job) -> None:
        """Restore a job from the journal."""
        self.jobs[job.id] = job
        self.last_id = max(self.last_id, job.id)

    def _run(self, job: Job, matches: Filter, may_write: MayWrite) -> None:
        self._filters[job.id], self._may_write[job.id] = matches, may_write
        if not job.request.dry_run:
            self._record(job)
        self._step(job)

    def _step(self, job: Job) -> None:
        if not job.is_running or job.id in self._ending:
            return
        before, most = job.progress, self._most(job)
        more, work = True, 0
        try:
            while (
                more
                and work < _WORK
                and job.progress.scanned - before.scanned < _STEP
                and job.progress.matched - before.matched < most
            ):
                at = job.progress.source
                more = self._batch(job)
                is_passed = job.progress.source != at
                work += _PASSED if is_passed else _RECORDED + len(job.request.sources) // _SOURCES
        except (BrokerError, JournalError) as error:
            self._end(job, words.FAILED, str(error))
            return
        except BaseException as error:
            self._end(job, words.FAILED, repr(error))
            raise
        if not more or job.left == 0:
            self._end(job, words.DONE)
            return
        rate, taken = job.request.rate, job.progress.matched - before.matched
        pause = _PAUSE_MS if rate is None else max(_PAUSE_MS, round(taken * 1000 / rate))
        due_ms = self._flow.now_ms + pause
        if job.request.dry_run or not taken:
            self._later(due_ms, job)
        else:  # not faster than the disk
            self._flow.journal.on_durable(lambda failed: self._later(due_ms, job))

    def _later(self, due_ms: int, job: Job) -> None:
        self._flow.at(due_ms, lambda: self._step(job))
        self._flow.on_dirty()

    def _batch(self, job: Job) -> bool:
        """One batch of the current source; return whether there may be more."""
        source = self._source(job)
        if source is None:
            return False
        if isinstance(source, WorkQueue):
            found = self._work_batch(job, source)
        else:
            found = self._letter_batch(job, source)
        if not found:
            self._enter(job, job.progress.source + 1)
        return found or job.progress.source < len(job.request.sources)

    def _work_batch(self, job: Job, queue: WorkQueue) -> bool:
        self._flow.turn()  # consumers first, and what they have settled is written
        progress, request = copy(job.progress), job.request
        run = self._following(progress, queue)
        if not run:
            return False
        wanted: list[Message] = []
        most, matches, now_ms = self._most(job), self._filters[job.id], self._flow.now_ms
        for message in run:
            progress.scanned += 1
            progress.after = message.seq, max(progress.after[1], message.position)
            if self._is_meant(job, queue, message) and matches(work_subject(queue, message, now_ms)):
                wanted.append(message)
                if len(wanted) == most:
                    break
        progress.matched += len(wanted)
        if wanted and not request.dry_run:
            self._transfer(job, queue, run, wanted, progress)
        job.progress = progress
        return True

    def _transfer(
        self, job: Job, queue: WorkQueue, run: list[Message], wanted: list[Message], progress: Progress
    ) -> None:
        request, home, before = job.request, self._flow.vhosts[queue.vhost], job.progress

        def destination(message: Message, properties: PublishProperties) -> Destination:
            if request.to is None:
                return to_origin(home, message, self._may_write[job.id])
            return to_target(self._flow, home, request.to, message, properties)

        def beside(stopped_at: Message | None, done: int, unrouted: int) -> bytes:
            progress.done += done
            progress.unrouted += unrouted
            if stopped_at is not None:  # the next step begins with it
                progress.scanned = before.scanned + run.index(stopped_at)
                progress.matched = before.matched + wanted.index(stopped_at)
                progress.after = stopped_at.seq - 1, before.after[1]
            return encode_change(JobPut(job.id, encode_job(Job(job.id, request, progress))))

        removes = request.verb in (words.PURGE, words.DISCARD)
        keep = request.verb == words.COPY
        transfer(self._flow, queue, wanted, None if removes else destination, keep=keep, beside=beside)

    def _letter_batch(self, job: Job, queue: PartitionedQueue) -> bool:
        assert self.partitioned is not None
        progress, request = copy(job.progress), job.request
        wanted: list[DeadLetter] = []
        most = self._most(job)
        numbers = range(progress.after[0] + 1, progress.upto + 1)[:_STEP]
        for number in numbers:
            progress.after = number, 0
            letter = queue.dead_letters.get(number)
            if letter is not None:
                progress.scanned += 1
                if self._is_letter_meant(job, queue, letter):
                    wanted.append(letter)
                    if len(wanted) == most:
                        break
        progress.matched += len(wanted)
        if wanted and not request.dry_run:
            progress.done += len(wanted)
            change = encode_change(JobPut(job.id, encode_job(Job(job.id, request, progress))))
            beside = [(int(Kind.CHANGE), change)]
            if request.verb == words.REDRIVE:
                now = self._flow.now_ms / 1000
                redrive_letters(self.partitioned, queue, wanted, request.to, now, beside)
            else:
                discard_letters(self.partitioned, queue, wanted, beside)
        job.progress = progress
        return bool(numbers)

    def _is_meant(self, job: Job, queue: WorkQueue, message: Message) -> bool:
        chosen = job.request.letters
        if chosen is None:
            return True
        letter = work_letter(queue, message)
        return letter is not None and letter.is_one_of(chosen)

    def _is_letter_meant(self, job: Job, queue: PartitionedQueue, letter: DeadLetter) -> bool:
        assert self.partitioned is not None
        assert self._broker.streams is not None
        chosen, now_ms = job.request.letters, self._flow.now_ms
        shown = partitioned_letter(queue, letter, *self._broker.streams.place_of(queue.name))
        if chosen is not None and not shown.is_one_of(chosen):
            return False
        return not job.request.filter or self._filters[job.id](
            letter_subject(self.partitioned, queue, letter, now_ms)
        )

    def _following(self, progress: Progress, queue: WorkQueue) -> list[Message]:
        """The next messages; moves the place to their priority level."""
        for level, fifo in levels(queue):
            if progress.level is not None and level > progress.level:
                continue
            if level != progress.level:
                progress.level, progress.after = level, (0, 0)
            run = fifo.following(progress.after, _STEP, _STEP_BYTES, self._flow.pager)
            run = [message for message in run if message.seq <= progress.upto]
            if run:
                return run
        return []

    def _most(self, job: Job) -> int:
        rate, left = job.request.rate, job.left
        most = _STEP if rate is None else max(1, int(rate * _BURST_SECONDS))
        return most if left is None else min(most, left)

    def _enter(self, job: Job, number: int) -> None:
        """Go to a source; what arrives in it from now on is not part of the job."""
        progress = job.progress = copy(job.progress)
        progress.source, progress.level, progress.after = number, None, (0, 0)
        source = self._source(job)
        progress.upto = (
            source.dead_letters.next_number - 1 if isinstance(source, PartitionedQueue) else self._flow.seq
        )

    def _source(self, job: Job) -> WorkQueue | PartitionedQueue | None:
        """The current source; those that were deleted are passed over."""
        sources, progress = job.request.sources, job.progress
        while progress.source < len(sources):
            found = self._look_up(sources[progress.source])
            if found is not None:
                return found
            progress.source += 1
        return None

    def _look_up(self, source: Source) -> WorkQueue | PartitionedQueue | None:
        if source.partitioned:
            name = stored_name(source.vhost, source.queue)
            return None if self.partitioned is None else self.partitioned.store.queues.get(name)
        vhost = self._flow.vhosts.get(source.vhost)
        found = None if vhost is None else vhost.queues.get(source.queue)
        return found if isinstance(found, WorkQueue) else None

    def _size(self, source: Source) -> int:
        found = self._look_up(source)
        if isinstance(found, PartitionedQueue):
            return len(found.dead_letters)
        return 0 if found is None else len(found)

    def _end(self, job: Job, state: str, error: str | None = None) -> None:
        """The job ends when what it has done is durable."""
        self._ending.add(job.id)
        self._flow.journal.on_durable(lambda failed: self._ended(job, state, error))

    def _ended(self, job: Job, state: str, error: str | None) -> None:
        self._ending.discard(job.id)
        self._filters.pop(job.id, None)
        self._may_write.pop(job.id, None)
        failed = self._flow.journal.failed
        progress = job.progress
        progress.state, progress.error = (state, error) if failed is None else (words.FAILED, str(failed))
        progress.ended = self._flow.now_ms
        if failed is None and not job.request.dry_run:
            self._record(job)
        ended = [other for other in self.jobs.values() if not other.is_running]
        for old in ended[:-_KEPT]:
            self._forget(old)
        for tell in self._waiting.pop(job.id, ()):
            tell()

    def _record(self, job: Job) -> None:
        self._flow.journal.append(Kind.CHANGE, encode_change(JobPut(job.id, encode_job(job))))

    def _forget(self, job: Job) -> None:
        del self.jobs[job.id]
        if self._flow.journal.failed is None and not job.request.dry_run:
            self._flow.journal.append(Kind.CHANGE, encode_change(JobDeleted(job.id)))

    def _refuse_if_failed(self) -> None:
        if self._flow.journal.failed is not None:
            raise self._flow.journal.failed
