"""What a queue's figures say is what happened to its messages, also in ways that are not an ack."""

from core_support import Bench

from holtmq.broker.figures.queue_figures import Totals


def figures(bench: Bench, name: str = "q") -> Totals:
    bench.turn()
    queue = bench.queue(name)
    return queue.figures.totals(queue)


def test_messages_count_as_published_wherever_they_went(bench: Bench) -> None:
    bench.declare("q", arguments={"x-max-length": 6, "x-message-ttl": 1_000})
    session = bench.session()
    taker = session.consume("q", prefetch=3)

    bench.fill("q", *[b"%d" % n for n in range(12)])  # 3 out, 6 wait, 3 dropped
    bench.turn()
    numbers = taker.numbers()
    session.ack(numbers[0])
    session.reject(numbers[1])
    bench.turn()

    assert figures(bench) == Totals(published=12, delivered=5, acked=1)
    assert bench.queue("q").figures.dropped == 4

    session.close()
    bench.advance(2_000)

    assert figures(bench).published == 12
    assert len(bench.queue("q")) == 0


def test_what_comes_back_counts_as_delivered_twice_and_published_once(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a", b"b")
    session = bench.session()

    taker = session.consume("q")
    bench.turn()
    session.release(*taker.numbers())
    bench.turn()

    assert figures(bench) == Totals(published=2, delivered=4, acked=0)
    assert bench.queue("q").figures.returned == 2


def test_a_restart_does_not_count_what_it_recovers(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a", b"b", b"c")
    bench.sync()

    bench.restart()
    bench.fill("q", b"d")

    assert len(bench.queue("q")) == 4
    assert figures(bench) == Totals(published=1, delivered=0, acked=0)


def test_a_purge_takes_nothing_from_what_was_published(bench: Bench) -> None:
    bench.declare("q")
    bench.fill("q", b"a", b"b")

    bench.broker.purge_queue(bench.vhost, "q")

    assert figures(bench).published == 2
    assert bench.queue("q").figures.purged == 2


def test_a_holder_knows_since_when_it_holds_its_oldest_message(bench: Bench) -> None:
    bench.declare("q")
    session = bench.session()
    taker = session.consume("q")
    began = bench.broker.flow.now_ms
    for at in range(4):
        taker.note_delivery(bench.broker.flow.now_ms, session.ledger.last + 1)
        bench.fill("q", b"%d" % at)
        bench.turn()
        bench.advance(5_000)

    held = taker.numbers()
    assert taker.held_since_ms() == began

    session.ack(held[0], held[1])

    assert taker.held_since_ms() == began + 10_000

    session.ack(held[2], held[3])

    assert taker.held_since_ms() is None
