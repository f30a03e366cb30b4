"""First contacts: finding the local broker, certificates, and errors that say what to do."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import httpx
import pytest
from click.testing import CliRunner, Result

from certificates import Certificates
from holtmq.cli import main
from holtmq.cli.finding import local_url
from holtmq.config import Config, Http, Limits
from holtmq.journal import JournalError
from holtmq.journal.disk import OsDisk, folder_trouble
from holtmq.testing import TestBroker


@pytest.fixture
def broker() -> Iterator[TestBroker]:
    with TestBroker() as one:
        yield one


def holt(*arguments: object, stdin: str | None = None, **env: str) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], env=env, input=stdin)


def test_the_port_of_the_environment_is_enough(broker: TestBroker) -> None:
    assert holt("queue", "list", "--json", HOLT_HTTP_PORT=str(broker.http_port)).output == "[]\n"


def test_a_configuration_file_is_enough(
    broker: TestBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "holt.toml").write_text(f"[http]\nport = {broker.http_port}\n")
    assert holt("queue", "list", "--json").output == "[]\n"


def test_the_data_folder_is_enough_while_its_broker_runs(tmp_path: Path) -> None:
    """Of a process that chose its port itself."""
    data = tmp_path / "data"
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOLT_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "holtmq", "serve", "--data-dir", str(data)],
        env={**env, "HOLT_AMQP_PORT": "0", "HOLT_HTTP_PORT": "0", "HOLT_LOG_FORMAT": "json"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        assert process.stdout is not None
        port = next(json.loads(line)["http_port"] for line in process.stdout if b'"http_port"' in line)
        assert holt("queue", "list", "--json", HOLT_DATA_DIR=str(data)).output == "[]\n"
        assert local_url(data) == f"http://127.0.0.1:{port}"
        assert "guest" in holt("user", "list", "--data-dir", data).output
    finally:
        process.terminate()
        process.communicate()
    assert not (data / "address").exists()


def test_a_port_that_is_named_counts_more_than_an_unnamed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "address").write_text("http://127.0.0.1:1111\n")
    monkeypatch.setenv("HOLT_DATA_DIR", str(tmp_path))
    assert local_url() == "http://127.0.0.1:1111"
    monkeypatch.setenv("HOLT_HTTP_PORT", "2222")
    assert local_url() == "http://127.0.0.1:2222"
    assert local_url(tmp_path) == "http://127.0.0.1:1111"
    monkeypatch.setenv("HOLT_HTTP_PORT", "nonsense")
    assert local_url() == "http://127.0.0.1:6632"


def test_a_certificate_is_verified_and_its_trouble_is_named(tmp_path: Path) -> None:
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
    own, other = Certificates(tmp_path / "own"), Certificates(tmp_path / "other")
    certificate, key = own.issue("server")
    config = Config(
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        http=Http(tls_cert=certificate, tls_key=key, tls_port=0),
    )
    with TestBroker(config=config) as broker:
        port = broker.call(lambda node: node.http_tls_port)
        url = f"https://127.0.0.1:{port}"
        assert holt("queue", "list", "--json", "--url", url, "--tls-ca", own.authority).output == "[]\n"
        for wrong in (["--tls-ca", other.authority], []):
            result = holt("queue", "list", "--url", url, *wrong)
            assert result.exit_code == 1
            assert "its certificate is not trusted" in result.output
            assert "no broker answers" not in result.output
        plain = holt("queue", "list", "--url", f"https://127.0.0.1:{broker.http_port}")
        assert "not with TLS" in plain.output
        named = holt("queue", "list", "--url", f"https://localhost:{port}", "--tls-ca", own.authority)
        assert "its certificate is for another name: Hostname mismatch" in named.output


def test_an_expired_certificate_is_called_expired(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificate, key = certificates.issue("server", days=-0.5)
    config = Config(
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        http=Http(tls_cert=certificate, tls_key=key, tls_port=0),
    )
    with TestBroker(config=config) as broker:
        url = f"https://127.0.0.1:{broker.call(lambda node: node.http_tls_port)}"
        refused = holt("stuck", "--url", url, "--tls-ca", certificates.authority)
        assert "its certificate has expired" in refused.output
        assert "--tls-ca names" not in refused.output
        assert holt("health", "--url", url).exit_code == 0


def test_a_tag_that_does_not_exist_is_refused_with_those_that_do(broker: TestBroker) -> None:
    env = {"HOLT_ADMIN_URL": broker.http_url}
    result = holt("user", "add", "ops", "--tag", "admn", "--password-stdin", stdin="pw\n", **env)
    assert result.exit_code == 1
    assert "there is no tag 'admn'. Did you mean administrator?" in result.output
    assert "monitoring, policymaker" in result.output
    assert "there is no tag 'x'" in holt("user", "tags", "guest", "x", **env).output
    assert [row["name"] for row in json.loads(holt("user", "list", "--json", **env).output)] == ["guest"]


def test_an_import_keeps_an_unknown_tag_and_says_so(broker: TestBroker) -> None:
    users = [{"name": "ops", "password_hash": "", "hashing_algorithm": "", "tags": ["admn"]}]
    answer = httpx.post(f"{broker.http_url}/api/definitions?report=true", json={"users": users})
    assert answer.status_code == 200, answer.text
    (row,) = answer.json()["without_meaning"]
    assert (row["what"], row["name"], row["key"]) == ("user", "ops", "admn")
    assert "monitoring" in row["reason"]
    assert httpx.get(f"{broker.http_url}/api/users/ops").json()["tags"] == ["admn"]


def test_a_data_folder_that_is_a_file_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot be used: it, or a part of its path, is a file"):
        OsDisk(tmp_path / "file")
    with pytest.raises(JournalError, match="is a file: name a folder"):
        OsDisk(tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "may not write there: give the folder to that user"),
        (errno.EROFS, "mounted read-only"),
        (errno.ENOSPC, "no space left"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_folder_errors_are_sentences(number: int, words: str) -> None:
    text = folder_trouble(Path("/data"), OSError(number, os.strerror(number)))
    assert text.startswith("the data folder /data cannot be used: ")
    assert words in text
    assert "Errno" not in text


_WITHOUT_SPARK = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "pyarrow", "pandas"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, Absent())
from holtmq.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("verb", [("doctor",), ("redrive", "--queue", "q")])
def test_pipeline_verbs_without_spark_end_in_a_sentence(verb: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", _WITHOUT_SPARK, "pipeline", *verb, "--url", "http://127.0.0.1:9"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 1
    assert "pip install 'holtmq[spark]'" in said
    assert "Traceback" not in said


def _verbs(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _verbs(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_list_prints_json_and_every_verb_with_an_address_takes_an_authority() -> None:
    seen = 0
    for path, command in _verbs(main):
        options = {option for parameter in command.params for option in parameter.opts}
        if path[-1] == "list":
            seen += 1
            assert "--json" in options, path
        if "--url" in options and path[0] not in ("bench", "verify") and path != ("pipeline", "init"):
            assert "--tls-ca" in options, path
    assert seen >= 9


def test_a_shell_completes_verbs() -> None:
    asked = {"_HOLT_COMPLETE": "bash_complete", "COMP_WORDS": "holt queue pa", "COMP_CWORD": "2"}
    command = [sys.executable, "-c", "from holtmq.cli import main; main(prog_name='holt')"]
    answer = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=True)
    assert answer.stdout == "plain,pause\n"


def test_health_is_told_without_a_login_also_behind_a_certificate_of_another_name(tmp_path: Path) -> None:
    certificate, key = Certificates(tmp_path).issue("server")
    config = Config(
        limits=Limits(memory_high_watermark=1.0, disk_free_min_bytes=0),
        http=Http(tls_cert=certificate, tls_key=key, tls_port=0),
    )
    with TestBroker(config=config) as broker:
        port = broker.call(lambda node: node.http_tls_port)
        for url in (broker.http_url, f"https://localhost:{port}", f"https://127.0.0.1:{port}"):
            found = holt("health", "--url", url)
            assert (found.exit_code, found.output) == (0, "healthy\n"), url
        assert holt("health", "--ready", HOLT_HTTP_PORT=str(broker.http_port)).output == "ready\n"
        broker.disk.fail_next_write()
        httpx.post(f"{broker.http_url}/api/v1/push", json={"items": [{"queue": "q", "payload": 1}]})
        failed = holt("health", "--url", broker.http_url)
        assert failed.exit_code == 1
        assert failed.output.startswith("unhealthy: ")
        nothing = holt("health", "--url", f"http://127.0.0.1:{broker.amqp_port}")
        assert nothing.exit_code == 2
