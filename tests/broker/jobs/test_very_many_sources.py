"""A job over very many queues: a step is short whatever their number, and the job comes to its end."""

from core_support import Bench

from holtmq.broker.jobs import job as words
from holtmq.broker.jobs.job import Job, Request, Source
from holtmq.broker.jobs.letter_walk import sources
from holtmq.broker.jobs.letters import dead_letter_queues
from holtmq.broker.partitioned.steps import finish

COUNT = 5_000


def started(bench: Bench, count: int) -> Job:
    for number in range(count):
        bench.declare(f"q-{number}")
    asked = Request(verb=words.PURGE, sources=tuple(Source(bench.vhost.name, f"q-{n}") for n in range(count)))
    return bench.broker.jobs.start(asked)


def test_a_step_passes_some_of_very_many_empty_queues_and_the_job_ends() -> None:
    bench = Bench()

    job = started(bench, COUNT)

    assert 0 < job.progress.source < COUNT
    for _ in range(COUNT):
        if not job.is_running:
            break
        bench.flow.now_ms += 1
        bench.flow.tick()
        bench.flow.turn()
        bench.journal.flush()
    assert job.progress.state == words.DONE
    assert job.progress.source == COUNT


def test_dead_letter_queues_are_found_behind_a_long_chain_of_exchanges() -> None:
    bench = Bench()
    bench.declare("live", {"x-dead-letter-exchange": "link-0"})
    bench.declare("dead")
    exchanges = bench.broker.exchanges
    for number in range(3_000):
        exchanges.declare(bench.vhost, f"link-{number}", "fanout")
        if number:
            exchanges.bind(bench.vhost, f"link-{number - 1}", f"link-{number}", "", to_exchange=True)
    exchanges.bind(bench.vhost, "link-2999", "dead", "")

    found = [queue.name for queue in dead_letter_queues(bench.vhost) if queue is not None]

    assert found == ["dead"]


def test_a_job_over_all_dead_letters_names_queues_that_have_some() -> None:
    bench = Bench()
    for name in ("empty", "full"):
        bench.declare(f"dead-{name}")
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"dead-{name}"}
        bench.declare(f"live-{name}", arguments)
    bench.publish("dead-full", b"x")

    def names(lies_in: str | None = None) -> list[str]:
        return [source.queue for source in finish(sources(bench.broker, lies_in=lies_in))]

    assert names() == ["dead-full"]
    assert names("dead-empty") == ["dead-empty"]
