"""Every verb under every fault of its surroundings: one plain sentence on standard error, and its status."""

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from certificates import Certificates
from holtmq.cli import broker_api, main
from holtmq.config import Config, Http, Limits
from holtmq.testing import TestBroker

WHOAMI = b'{"name": "guest", "tags": ["administrator"], "password_hash": ""}'

# Each verb with arguments that would do something. A new verb must be added to one of these tables.
ASKING: dict[str, tuple[str, ...]] = {
    "stuck": (),
    "top": ("--once",),
    "user add": ("ann", "--password-stdin"),
    "user delete": ("ann",),
    "user list": (),
    "user passwd": ("ann", "--password-stdin"),
    "user tags": ("ann", "monitoring"),
    "vhost add": ("v",),
    "vhost delete": ("v",),
    "vhost list": (),
    "permission clear": ("ann",),
    "permission list": (),
    "permission set": ("ann", ".*", ".*", ".*"),
    "policy clear": ("p",),
    "policy list": (),
    "policy set": ("p", ".*", '{"max-length": 1}'),
    "queue copy": ("q", "--to-queue", "r"),
    "queue delete": ("q",),
    "queue list": (),
    "queue move": ("q", "--to-queue", "r"),
    "queue pause": ("q",),
    "queue peek": ("q",),
    "queue purge": ("q",),
    "queue resume": ("q",),
    "delayed cancel": ("1",),
    "delayed deliver": ("1",),
    "delayed list": (),
    "dead-letters discard": ("--all",),
    "dead-letters export": (),
    "dead-letters list": (),
    "dead-letters redrive": ("--all",),
    "job cancel": ("1",),
    "job list": (),
    "job resume": ("1",),
    "job show": ("1",),
    "exchange route-test": ("amq.topic", "a.b"),
    "connection close": ("c",),
    "connection list": (),
    "consumer cancel": ("t",),
    "consumer list": (),
    "migrate": (
        "amqp://127.0.0.1:9",
        "--definitions",
        "{folder}/definitions.json",
        "--patience",
        "0",
        "--yes",
    ),
    "shovel delete": ("s",),
    "shovel list": (),
    "shovel restart": ("s",),
    "shovel set": ("s", "{}"),
    "backup": ("{folder}/backups",),
    "pipeline list": (),
}
# They reach no broker over its HTTP API, or only through Spark, whose tests are elsewhere.
OTHERS = {
    *(
        "serve",
        "config",
        "health",
        "version",
        "restore",
        "verify",
        "cluster forget",
        "cluster promote",
        "cluster status",
    ),
    *("journal check", "journal damaged", "journal dump", "journal repair", "journal scrub"),
    *("bench amqp", "bench http", "bench list"),
    *("pipeline archive", "pipeline dead-letters", "pipeline doctor", "pipeline init", "pipeline redrive"),
    *("pipeline replay", "pipeline rollup", "pipeline run", "pipeline serve", "pipeline table"),
}
# They change something and read nothing of the answer to it.
NOT_READING = {
    *("user add", "user delete", "user passwd", "vhost add", "vhost delete", "permission set"),
    *("policy clear", "policy set", "queue delete", "queue purge", "queue resume", "delayed cancel"),
    *(
        "connection close",
        "shovel delete",
        "shovel restart",
        "shovel set",
        "dead-letters export",
    ),
    *("permission clear",),
}


@dataclass
class Ended:
    status: int
    out: str
    err: str


def run(verb: str, arguments: tuple[str, ...], *more: str) -> Ended:
    """Run a verb in this process, with streams of its own."""
    ended = CliRunner().invoke(main, [*verb.split(), *arguments, *more], input="secret\n")
    return Ended(ended.exit_code, ended.stdout, ended.stderr)


def all_verbs(group: click.Group = main, path: tuple[str, ...] = ()) -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from all_verbs(command, (*path, name))
        else:
            yield " ".join((*path, name))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "definitions.json").write_text("{}")
    return tmp_path


def arguments_of(verb: str, folder: Path) -> tuple[str, ...]:
    return tuple(one.replace("{folder}", str(folder)) for one in ASKING[verb])


def http(status: str, body: bytes, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@contextmanager
def answering(answer: Callable[[bytes], bytes | None]) -> Iterator[int]:
    """A server that reads a request and sends this; None: nothing, and the connection stays open."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    open_ones: list[socket.socket] = []

    def talk(client: socket.socket) -> None:
        with client.makefile("rb") as lines:
            while request := lines.readline():
                length = 0
                while (line := lines.readline()) not in (b"\r\n", b""):
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                lines.read(length)
                said = answer(request)
                if said is None:
                    return
                client.sendall(said)
                _, _, body = said.partition(b"\r\n\r\n")
                if f"Content-Length: {len(body)}\r\n".encode() not in said:  # no answer, or a part of one
                    client.shutdown(socket.SHUT_RDWR)
                    return

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            open_ones.append(client)
            threading.Thread(target=talk, args=(client,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for one in open_ones:
            one.close()


HTML = http("200 OK", b"<html>Welcome to nginx!</html>", "text/html")
FAULTS: dict[str, tuple[bytes | None, str]] = {
    "another server": (HTML, "did not answer like a HoltMQ broker"),
    "other JSON": (http("200 OK", b'{"hello": ["world"]}'), "did not answer like a HoltMQ broker"),
    "bad gateway": (http("502 Bad Gateway", b"<html/>", "text/html"), "answered with status 502"),
    "broken": (http("500 Oops", b'{"error": "the journal failed"}'), "status 500: the journal failed"),
    "no HTTP": (b"AMQP\x00\x00\x09\x01", "does not speak HTTP"),
    "nothing": (b"", "closed the connection without an answer"),
    "cut short": (http("200 OK", b"x" * 99)[:-9], "closed the connection in the middle of an answer"),
    "silence": (None, "did not answer within 0.3 s"),
}


def test_every_verb_is_in_a_table() -> None:
    assert sorted(all_verbs()) == sorted([*ASKING, *OTHERS])


@pytest.mark.parametrize("login", ["fails at once", "succeeds"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_server_is_one_sentence(
    fault: str, login: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_api, "_TIMEOUT", 0.3 if fault == "silence" else 20.0)
    said, words = FAULTS[fault]

    def answer(request: bytes) -> bytes | None:
        return http("200 OK", WHOAMI) if login == "succeeds" and b"/whoami " in request else said

    with answering(answer) as port:
        for verb in ASKING if fault != "silence" else ("stuck", "user add", "backup", "pipeline list"):
            ended = run(verb, arguments_of(verb, folder), "--url", f"http://127.0.0.1:{port}")
            if login == "succeeds" and verb in NOT_READING and fault in ("another server", "other JSON"):
                assert ended.status in (0, 1), verb
                continue
            assert words in ended.err, (verb, ended)
            assert_plain(ended, verb)


def assert_plain(ended: Ended, verb: str) -> None:
    assert ended.out == "" or verb == "dead-letters export", verb
    assert ended.err.startswith("Error: "), (verb, ended.err)
    assert ended.err.count("\n") == 1, (verb, ended.err)
    assert "Traceback" not in ended.err
    # 1 is an answer of this verb: something is stuck.
    assert ended.status == (2 if verb == "stuck" else 1), verb


def test_no_broker_a_wrong_login_and_a_wrong_authority_are_one_sentence(folder: Path) -> None:
    for name in ("own", "other"):
        (folder / name).mkdir()
    own, other = Certificates(folder / "own"), Certificates(folder / "other")
    certificate, key = own.issue("server")
    config = Config(
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        http=Http(tls_cert=certificate, tls_key=key, tls_port=0),
    )
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    with TestBroker(config=config) as broker:
        secure = f"https://127.0.0.1:{broker.call(lambda node: node.http_tls_port)}"
        plain = broker.http_url.replace("http:", "https:")
        cases = [
            (("--url", nobody), "no broker answers at"),
            (("--url", secure, "--tls-ca", str(other.authority)), "its certificate is not trusted"),
            (("--url", plain, "--tls-ca", str(own.authority)), "not with TLS"),
        ]
        for verb in ASKING:
            arguments = arguments_of(verb, folder)
            for options, words in cases:
                ended = run(verb, arguments, *options)
                assert words in ended.err, (verb, ended)
                assert_plain(ended, verb)
        refused = run("user list", (), "--url", broker.http_url, "--password", "wrong")
        assert "refused the login of user 'guest'" in refused.err
        assert_plain(refused, "user list")
    assert not (folder / "backups" / "manifests").exists()


def test_output_that_cannot_be_written_is_one_sentence(folder: Path) -> None:
    """Of every list and of verbs that need no broker."""
    lists = [(verb, arguments_of(verb, folder)) for verb in ASKING if verb.endswith("list")]
    lists += [("stuck", ()), ("top", ()), ("config", ()), ("version", ()), ("bench list", ())]
    with TestBroker() as broker:
        for verb, arguments in lists:
            url = ("--url", broker.http_url) if verb in ASKING else ()
            for as_json in ([], ["--json"]) if verb not in ("version",) else ([],):
                with open("/dev/full", "w") as full:
                    err = io.StringIO()
                    with redirect_stdout(full), redirect_stderr(err), pytest.raises(SystemExit) as end:
                        main([*verb.split(), *arguments, *url, *as_json], prog_name="holt")
                assert end.value.code == 2, verb
                assert err.getvalue() == "Error: the output cannot be written: No space left on device\n", (
                    verb
                )
        ended = run("dead-letters export", ("-o", f"{folder}/missing/file"), "--url", broker.http_url)
        assert (ended.status, "No such file or directory" in ended.err) == (1, True), ended


def test_a_reader_that_has_enough_ends_the_verb_without_a_word() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for command in (["config"], ["top", "--help"], ["bench", "list"]):
        ended = subprocess.run(
            [sys.executable, "-m", "holtmq", *command], stdout=writing, stderr=subprocess.PIPE, check=False
        )
        assert (ended.returncode, ended.stderr) == (1, b"")
    os.close(writing)


def test_an_interrupt_is_one_word_and_the_shells_status() -> None:
    asked = threading.Event()

    def answer(_: bytes) -> None:
        asked.set()

    with answering(answer) as port:
        process = subprocess.Popen(
            [sys.executable, "-m", "holtmq", "stuck", "--url", f"http://127.0.0.1:{port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A shell starts background jobs with the signal ignored, and their children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        assert asked.wait(60)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"Interrupted.\n")


@pytest.mark.parametrize(
    ("protocol", "workload", "queues"),
    [("amqp", "unique-ids", "/api/queues"), ("http", "push-1", "/api/v1/resources/queues")],
)
def test_a_load_tool_that_is_terminated_deletes_its_queues(protocol: str, workload: str, queues: str) -> None:
    with TestBroker() as broker:
        url = broker.amqp_url if protocol == "amqp" else broker.http_url
        command = ["bench", protocol, "--url", url, "--workload", workload, "--seconds", "600"]
        process = subprocess.Popen([sys.executable, "-m", "holtmq", *command], stderr=subprocess.DEVNULL)

        def is_at_work() -> bool:
            with urllib.request.urlopen(broker.http_url + queues) as answer:
                return b"holt-load" in answer.read()

        try:
            until = time.monotonic() + 60
            while not is_at_work():
                assert process.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            process.terminate()
            assert process.wait(60) == 128 + signal.SIGTERM
            assert not is_at_work()
        finally:
            process.kill()
            process.wait()


def test_an_input_that_ends_at_a_prompt_is_named(folder: Path) -> None:
    with TestBroker() as broker:
        done = subprocess.run(
            [sys.executable, "-m", "holtmq", "user", "add", "ann", "--url", broker.http_url],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.endswith("Error: standard input ended where an answer was expected\n")


def test_a_folder_without_a_journal_is_named_and_left_alone(tmp_path: Path) -> None:
    for verb in ("check", "damaged", "dump", "repair", "scrub"):
        ended = run(f"journal {verb}", (str(tmp_path),))
        assert (ended.status, ended.err) == (
            1,
            f"Error: there is no journal in {tmp_path}: name the data folder of a broker\n",
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "http://127.0.0.1:port", "http://[::1", "http://127.0.0.1:0"]
)
@pytest.mark.parametrize("verb", ["stuck", "health"])
def test_an_address_that_cannot_be_one_is_named(verb: str, url: str) -> None:
    result = CliRunner().invoke(main, [verb, "--url", url])
    assert result.exit_code == 2
    assert f"'{url}' is not an address such as http://127.0.0.1:6632" in result.output


@pytest.mark.parametrize(
    "line",
    [
        "queue purge q --rate nan",
        "queue move q --to-queue r --rate inf",
        "top --every nan",
        "health --timeout nan",
        "queue peek q --count -1",
        "queue peek q --count 1000",
        "queue peek q --skip -1",
    ],
)
def test_a_number_that_cannot_be_meant_is_refused_before_the_broker_is_asked(line: str) -> None:
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code == 2
    assert "Invalid value for '--" in result.output
