"""The holt command: its verbs, options made from the settings, and refused configurations."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from holtmq import __version__
from holtmq.cli import main
from holtmq.cli.serve import welcome
from holtmq.config import Amqp, Config, Data, Http
from holtmq.config.catalogue import all_settings


def holt(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, arguments, env=env)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Config]:
    """Stands in for the node: remembers the configuration and ends with status 7."""
    seen: list[Config] = []
    process = types.ModuleType("holtmq.process")

    def serve(config: Config) -> int:
        seen.append(config)
        return 7

    process.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holtmq.process", process)
    monkeypatch.setattr("holtmq.logs.configure", lambda log: None)
    monkeypatch.chdir(tmp_path)
    return seen


def test_version_names_the_product_and_its_parts() -> None:
    assert holt("--version").output == f"holt, version {__version__}\n"
    assert holt("version").output.startswith(f"HoltMQ {__version__}\n")


def test_help_lists_every_verb_with_one_line_about_it() -> None:
    lines = holt("--help").output.split("Commands:\n")[1].split("\n\n")[0].splitlines()

    described = [words[0] for line in lines if len(words := line.split(maxsplit=1)) == 2]
    assert described == main.list_commands(click.Context(main))
    assert len(described) == len(lines)  # no text is wrapped
    assert {"serve", "config", "journal", "version"} <= set(described)


def test_every_listed_verb_can_be_loaded() -> None:
    context = click.Context(main)

    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name


def test_a_shell_completes_verbs_and_what_follows_them() -> None:
    def completed(words: str, at: int) -> list[str]:
        env = {"_HOLT_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(at)}
        lines = CliRunner().invoke(main, prog_name="holt", env=env).output.split()
        return [line.removeprefix("plain,") for line in lines]

    assert completed("holt s", 1) == ["serve", "stuck", "shovel"]
    assert "move" in completed("holt queue m", 2)
    assert "--help" in completed("holt --", 1)


def test_an_unknown_verb_is_refused() -> None:
    result = holt("sevre")

    assert result.exit_code == 2
    assert "No such command" in result.output


@pytest.mark.parametrize("verb", ["serve", "config"])
def test_help_lists_an_option_for_every_setting_with_its_default(verb: str) -> None:
    text = " ".join(CliRunner().invoke(main, [verb, "--help"], terminal_width=400).output.split())

    for setting in all_settings():
        assert f" {setting.flag} " in text
        assert setting.about.help in text
        assert not setting.default_text or f"[default: {setting.default_text}]" in text


def test_serve_hands_the_parsed_configuration_to_the_node_and_ends_with_its_status(
    served: list[Config],
) -> None:
    result = holt(
        "serve", "--amqp-port", "0", "--data-memory", "--no-amqp-cancel-requeue", env={"HOLT_HTTP_PORT": "0"}
    )

    assert result.exit_code == 7
    (config,) = served
    assert (config.amqp.port, config.http.port, config.data.memory) == (0, 0, True)
    assert config.amqp.cancel_requeue is False


def test_serve_starts_nothing_on_a_bad_configuration_and_names_every_problem(served: list[Config]) -> None:
    result = holt("serve", "--amqp-port", "x", env={"HOLT_NOPE": "1"})

    assert result.exit_code == 2
    assert served == []
    assert "--amqp-port: 'x' is not usable" in result.output
    assert "HOLT_NOPE: unknown setting" in result.output
    assert "2 problems in the configuration" in result.output


def test_a_misspelt_option_comes_with_the_right_one() -> None:
    assert "--amqp-port" in holt("serve", "--amqp-prot", "1").output


def test_config_shows_value_and_origin_and_reads_the_given_file(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[http]\nport = 8080\n")

    result = holt("config", "--config", str(file), env={"JWT_SECRET": "hunter2"})

    rows = {line.split()[0]: line for line in result.output.splitlines()}
    assert rows["http.port"].split() == ["http.port", "8080", f"{file}:2"]
    assert rows["amqp.port"].split() == ["amqp.port", "5672", "default"]
    assert "hunter2" not in result.output
    assert '"***"' in rows["auth.jwt_secret"]


def test_config_speaks_json_and_writes_a_file_of_defaults(tmp_path: Path) -> None:
    assert json.loads(holt("config", "--json").output)["amqp.port"]["value"] == 5672

    file = tmp_path / "holt.toml"
    file.write_text(holt("config", "--defaults").output)
    assert holt("config", "--config", str(file)).exit_code == 0


def test_the_welcome_names_addresses_that_can_be_copied() -> None:
    text = welcome(Config(amqp=Amqp(host=("::1",)), http=Http(port=0), data=Data(memory=True)))

    assert "amqp://guest:guest@[::1]:5672/" in text
    assert "http://" not in text
    assert "memory only" in text


def test_the_welcome_names_every_listener() -> None:
    tls: dict[str, Any] = {"tls_cert": Path("c.pem"), "tls_key": Path("k.pem")}
    both = welcome(Config(amqp=Amqp(**tls), http=Http(**tls)))
    secure = welcome(Config(amqp=Amqp(**tls, plain=False), http=Http(**tls, plain=False)))

    for start, port in (("amqps://guest:guest@", 5671), ("https://", 6633)):
        assert f"{start}127.0.0.1:{port}/" in both
        assert f"{start}[::1]:{port}/" in both
        assert f"{start}127.0.0.1:{port}/" in secure
    for start in ("amqp://", "http://"):
        assert start in both
        assert start not in secure
    assert "https://127.0.0.1:6633/health" in secure


def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has imported after these statements."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    return set(done.stderr.split())


def test_the_command_does_not_import_the_broker_before_it_has_to() -> None:
    loaded = {name.split(".")[0] for name in modules_after("import holtmq.cli.serve")}

    assert not loaded & {"uvloop", "httptools", "re2", "asyncio", "cryptography", "argon2", "jwt", "rich"}


def test_help_and_completion_import_no_verb() -> None:
    asked = (
        "from holtmq.cli import main",
        "main(['--help'], standalone_mode=False)",
        "main.shell_complete(main.make_context('holt', [], resilient_parsing=True), '')",
    )

    ours = {name for name in modules_after("\n".join(asked)) if name.startswith("holtmq")}

    assert ours == {"holtmq", "holtmq.cli", "holtmq.cli.endings"}


def test_a_broker_without_tls_tokens_and_encryption_does_not_import_what_they_need() -> None:
    loaded = modules_after("import holtmq.process, holtmq.node")

    assert not loaded & {"cryptography", "cryptography.x509", "jwt", "email.policy"}
