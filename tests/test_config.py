"""Configuration: precedence, units, refusals, and the texts made from the list of settings."""

import json
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from holtmq.broker.dialect import Dialect
from holtmq.config import (
    Config,
    ConfigError,
    JwtAlgorithm,
    Loaded,
    SubscriptionDefault,
    SyncMode,
    differences,
    load,
    render,
)
from holtmq.config.catalogue import Setting, all_settings, by_name
from holtmq.config.toml_lines import key_lines

DOCS = Path(__file__).parents[1] / "docs" / "configuration.md"


def write(folder: Path, text: str) -> Path:
    path = folder / "holt.toml"
    path.write_text(text, encoding="utf-8")
    return path


def problems(environ: dict[str, str] | None = None, **layers: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(environ or {}, **layers)  # type: ignore[arg-type]
    return [str(problem) for problem in caught.value.problems]


def test_without_any_layer_every_value_is_its_default() -> None:
    loaded = load({})

    assert loaded.config == Config()
    assert {loaded.origin(setting) for setting in all_settings()} == {"default"}


def test_the_well_known_defaults_are_the_documented_ones() -> None:
    config = Config()

    assert (config.amqp.port, config.http.port) == (5672, 6632)
    assert config.amqp.host == config.http.host == ("127.0.0.1", "::1")
    assert (config.amqp.heartbeat, config.amqp.frame_max, config.amqp.channel_max) == (60, 131072, 2047)
    assert (config.journal.segment_bytes, config.journal.sync) == (64 * 1024 * 1024, SyncMode.ALWAYS)
    assert (config.data.dir, config.data.memory) == (Path("./holt-data"), False)


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "[amqp]\nport = 1\nheartbeat = 2\nchannel_max = 3\n")

    loaded = load({"HOLT_AMQP_PORT": "11", "HOLT_AMQP_HEARTBEAT": "12"}, {"amqp.port": "21"}, file)

    assert (loaded.config.amqp.port, loaded.config.amqp.heartbeat, loaded.config.amqp.channel_max) == (
        21,
        12,
        3,
    )
    names = ("amqp.port", "amqp.heartbeat", "amqp.channel_max")
    assert [loaded.origin(by_name()[name]) for name in names] == [
        "--amqp-port",
        "HOLT_AMQP_HEARTBEAT",
        f"{file}:4",
    ]


@pytest.mark.parametrize("setting", all_settings(), ids=lambda setting: setting.name)
def test_every_default_survives_being_written_out_and_read_back(setting: Setting, tmp_path: Path) -> None:
    shown = setting.about.kind.show(setting.default)
    as_text = (
        ",".join(shown)
        if isinstance(shown, list)
        else str(shown).lower()
        if shown in (True, False)
        else str(shown)
    )

    from_env = load({setting.env: as_text})
    section = f"[{setting.section}]\n" if setting.section else ""
    from_file = load({}, file=write(tmp_path, f"{section}{setting.key} = {json.dumps(shown)}\n"))
    from_flag = load({}, {setting.name: as_text})

    for loaded in (from_env, from_file, from_flag):
        assert loaded.value(setting) == setting.default
        assert type(loaded.value(setting)) is type(setting.default)
        assert loaded.origin(setting) != "default"


@pytest.mark.parametrize(
    ("variable", "text", "setting", "value"),
    [
        ("HOLT_JOURNAL_SEGMENT_BYTES", "64MiB", "journal.segment_bytes", 64 * 1024**2),
        ("HOLT_JOURNAL_SEGMENT_BYTES", "1.5 GB", "journal.segment_bytes", 1_500_000_000),
        ("HOLT_JOURNAL_SEGMENT_BYTES", "1_000_000", "journal.segment_bytes", 1_000_000),
        ("HOLT_AMQP_HEARTBEAT", "2m", "amqp.heartbeat", 120),
        ("HOLT_AMQP_HANDSHAKE_TIMEOUT", "1500ms", "amqp.handshake_timeout", 1.5),
        ("HOLT_QUEUE_RETENTION_INTERVAL_MS", "2s", "queue.retention_interval_ms", 2000),
        ("HOLT_QUEUE_RETENTION_INTERVAL_MS", "2000", "queue.retention_interval_ms", 2000),
        ("HOLT_AMQP_HOST", "0.0.0.0, ::", "amqp.host", ("0.0.0.0", "::")),
        ("HOLT_DATA_MEMORY", "Yes", "data.memory", True),
        ("HOLT_DATA_DIR", "/var/lib/holt", "data.dir", Path("/var/lib/holt")),
        ("HOLT_LIMITS_MEMORY_HIGH_WATERMARK", "40%", "limits.memory_high_watermark", 0.4),
        ("HOLT_LIMITS_MEMORY_HIGH_WATERMARK", "2GiB", "limits.memory_high_watermark", 2 * 1024**3),
        ("HOLT_MAX_PRIORITY", "255", "amqp.max_priority", 255),
        ("JWT_ALGORITHM", "eddsa", "auth.jwt_algorithm", JwtAlgorithm.EDDSA),
        ("RETENTION_INTERVAL", "2000", "queue.retention_interval_ms", 2000),
        ("EVICTION_INTERVAL", "2000", "queue.eviction_interval_ms", 2000),
        ("DEFAULT_SUBSCRIPTION_MODE", "new-only", "queue.default_subscription_mode", SubscriptionDefault.NEW),
        ("DEFAULT_SUBSCRIPTION_MODE", "", "queue.default_subscription_mode", SubscriptionDefault.ALL),
        ("QUEEN_ENCRYPTION_KEY", "ab" * 32, "queue.encryption_key", "ab" * 32),
        ("HOLT_AMQP_PORT", "0", "amqp.port", 0),
    ],
)
def test_units_spellings_and_other_products_names_are_understood(
    variable: str, text: str, setting: str, value: object
) -> None:
    loaded = load({variable: text})

    assert loaded.value(by_name()[setting]) == value
    assert loaded.origin(by_name()[setting]) == variable


def test_our_own_variable_wins_over_an_alias() -> None:
    assert load({"HOLT_AMQP_MAX_PRIORITY": "7", "HOLT_MAX_PRIORITY": "9"}).config.amqp.max_priority == 7


def test_all_problems_are_reported_at_once_each_with_its_place_and_the_nearest_name(tmp_path: Path) -> None:
    file = write(tmp_path, '[amqp]\nprot = 1\n\n[htpp]\nport = 2\n\n[journal]\nsync = "sometimes"\n')

    found = problems(
        {"HOLT_AMPQ_PORT": "1", "HOLT_HTTP_PORT": "99999"}, flags={"amqp.heartbeat": "soon"}, file=file
    )

    assert found == [
        f"{file}:2: unknown setting amqp.prot; did you mean amqp.port?",
        f"{file}:4: unknown section [htpp]; did you mean http?",
        f"{file}:8: 'sometimes' is not usable for journal.sync: expected always or never",
        "HOLT_HTTP_PORT: '99999' is not usable for http.port: the most is 65535",
        "HOLT_AMPQ_PORT: unknown setting; did you mean HOLT_AMQP_PORT?",
        "--amqp-heartbeat: 'soon' is not usable for amqp.heartbeat: "
        "expected seconds such as 10, or a duration such as 500ms or 2m",
    ]


@pytest.mark.parametrize(
    ("setting", "text", "reason"),
    [
        ("amqp.port", "-1", "the least is 0"),
        ("amqp.port", "1.5", "expected a whole number"),
        ("amqp.max_priority", "256", "the most is 255"),
        ("amqp.max_priority", "0", "the least is 1"),
        ("amqp.frame_max", "1KiB", "the least is 4096"),
        ("amqp.max_message_bytes", "1GiB", "the most is 536870912"),  # no record of the journal could hold it
        ("journal.segment_bytes", "64 MiBs", "unknown unit 'MiBs'"),
        ("journal.segment_bytes", "many", "expected a size"),
        ("amqp.handshake_timeout", "3 weeks", "unknown unit 'weeks'"),
        ("amqp.heartbeat", "1500ms", "expected whole seconds"),
        ("data.memory", "perhaps", "expected true or false"),
        ("data.dir", "", "expected a path"),
        ("log.level", "loud", "expected debug, info, warning or error"),
        ("limits.memory_high_watermark", "x%", "expected a percentage"),
        ("limits.memory_high_watermark", "150%", "expected a percentage from 0% to 100%"),
        ("limits.memory_high_watermark", "nan%", "expected a percentage from 0% to 100%"),
        ("limits.memory_high_watermark", "1.5", "a fraction is at most 1, and a size at least 1MiB"),
    ],
)
def test_a_bad_value_is_refused_with_what_would_be_right(setting: str, text: str, reason: str) -> None:
    assert reason in problems(flags={setting: text})[0]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('port = "x"', "expected a whole number"),
        ("port = true", "expected a whole number"),
        ("port = 5.5", "expected a whole number"),
        ("product = 3", "expected a text, got a number"),
        ("host = [1]", "expected a list of texts"),
        ("cancel_requeue = 1", "expected true or false"),
    ],
)
def test_a_toml_value_of_the_wrong_type_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    file = write(tmp_path, f"[amqp]\n{line}\n")

    (problem,) = problems(file=file)

    assert problem.startswith(f"{file}:2: ")
    assert reason in problem


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"HOLT_AMQP_TLS_CERT": "c.pem"}, "amqp.tls_cert is set without amqp.tls_key"),
        ({"HOLT_AMQP_TLS_KEY": "k.pem"}, "amqp.tls_key is set without amqp.tls_cert"),
        ({"HOLT_AMQP_TLS_VERIFY": "required"}, "needs amqp.tls_ca"),
        ({"HOLT_HTTP_TLS_CERT": "c.pem"}, "http.tls_cert is set without http.tls_key"),
        ({"HOLT_HTTP_PORT": "5672"}, "http.port and amqp.port are the same"),
        ({"HOLT_HTTP_HOST": ""}, "names no address"),
        ({"JWT_ENABLED": "true"}, "HS256 tokens need auth.jwt_secret"),
        ({"JWT_ENABLED": "true", "JWT_ALGORITHM": "RS256", "JWT_SECRET": "x"}, "RS256 tokens need"),
        ({"JWT_SECRET": "changeme", "JWT_ENABLED": "true"}, "auth.jwt_secret has fewer than 16 bytes"),
        ({"HOLT_HTTP_PLAIN": "false"}, "http.plain is off without http.tls_cert"),
        ({"HOLT_AMQP_PLAIN": "false"}, "amqp.plain is off without amqp.tls_cert"),
        ({"HOLT_HTTP_CORS_ORIGINS": "*"}, "an origin is"),
        ({"HOLT_HTTP_CORS_ORIGINS": "https://a.example/path"}, "an origin is"),
        ({"JWT_ENABLED": "true", "JWT_ALGORITHM": "auto"}, "tokens need"),
        (
            {"JWT_JWKS_URL": "file:///x", "JWT_ENABLED": "true", "JWT_ALGORITHM": "auto"},
            "must begin with https",
        ),
        ({"QUEEN_ENCRYPTION_KEY": "abc"}, "must be 64 hexadecimal digits"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(environ: dict[str, str], reason: str) -> None:
    (problem,) = problems(environ)

    assert reason in problem
    assert problem.startswith(next(iter(environ)))


def test_both_ports_may_be_left_to_the_system() -> None:
    assert load({"HOLT_AMQP_PORT": "0", "HOLT_HTTP_PORT": "0"}).config.http.port == 0


def test_a_secret_is_never_shown(tmp_path: Path) -> None:
    loaded = load({"JWT_SECRET": "hunter2hunter2", "QUEEN_ENCRYPTION_KEY": "ab" * 32})

    shown = repr(loaded) + render.effective_json(loaded) + str(render.effective_rows(loaded))

    assert "hunter2" not in shown
    assert "abab" not in shown
    assert loaded.config.auth.jwt_secret == "hunter2hunter2"
    assert "xyzzy" not in problems({"QUEEN_ENCRYPTION_KEY": "xyzzy"})[0]


def test_what_kubernetes_announces_for_a_service_called_holt_is_no_setting() -> None:
    links = {
        "HOLT_SERVICE_HOST": "10.0.0.1",
        "HOLT_SERVICE_PORT_AMQP": "5672",
        "HOLT_PORT": "tcp://10.0.0.1:5672",
        "HOLT_PORT_5672_TCP_ADDR": "10.0.0.1",
    }

    assert load(links).config == Config()
    assert "enableServiceLinks" in problems({"HOLT_HTTP_PORT": "tcp://10.0.0.1:6632"})[0]


def test_the_file_is_found_by_argument_then_variable_then_in_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, port in (("given", 1), ("named", 2), ("holt", 3)):
        (tmp_path / f"{name}.toml").write_text(f"[amqp]\nport = {port}\n")
    monkeypatch.chdir(tmp_path)
    named = {"HOLT_CONFIG": "named.toml"}

    assert load(named, file=Path("given.toml")).config.amqp.port == 1
    assert load(named).config.amqp.port == 2
    assert load({}).config.amqp.port == 3


def test_a_file_that_cannot_be_read_or_parsed_is_one_problem(tmp_path: Path) -> None:
    assert "cannot be read" in problems(file=tmp_path / "absent.toml")[0]
    assert "is not valid TOML" in problems(file=write(tmp_path, "[amqp\nport"))[0]
    (tmp_path / "latin.toml").write_bytes(b"x = '\xff'")
    assert "is not valid TOML" in problems(file=tmp_path / "latin.toml")[0]
    assert "amqp is a section" in problems(file=write(tmp_path, "amqp = 3"))[0]


def test_the_line_of_a_setting_is_found_in_every_way_to_write_it() -> None:
    text = 'log.level = "info"\n\n[ amqp ] # here\n"port" = 1\n# comment = 2\n  host = []\n[http]\nport=3\n'

    assert key_lines(text) == {
        "log.level": 1,
        "amqp": 3,
        "amqp.port": 4,
        "amqp.host": 6,
        "http": 7,
        "http.port": 8,
    }


def test_the_memory_threshold_is_a_fraction_or_a_size() -> None:
    def threshold(text: str) -> int:
        return load({"HOLT_LIMITS_MEMORY_HIGH_WATERMARK": text}).config.limits.memory_bytes(1000)

    assert (threshold("0.5"), threshold("2MiB")) == (500, 2 * 1024**2)


def test_the_file_of_defaults_is_valid_and_changes_nothing_even_when_uncommented(tmp_path: Path) -> None:
    text = render.defaults_toml()
    uncommented = "\n".join(
        line[1:] if line.startswith("#") and line[1:2] != " " else line for line in text.split("\n")
    )

    assert all(entries == {} for entries in tomllib.loads(text).values())
    loaded = load({}, file=write(tmp_path, uncommented))
    assert loaded.config == Config()
    assert set(loaded.origins) == {setting.name for setting in all_settings()}


def test_json_holds_every_setting_with_value_and_origin() -> None:
    document = json.loads(render.effective_json(load({"HOLT_AMQP_PORT": "1"})))

    assert document["amqp.port"] == {"value": 1, "origin": "HOLT_AMQP_PORT"}
    assert set(document) == {setting.name for setting in all_settings()}


def test_the_documentation_lists_every_setting_as_it_is() -> None:
    # Make it so with: .venv/bin/python scripts/docs.py
    assert render.markdown() in DOCS.read_text(encoding="utf-8")


@pytest.mark.parametrize("place", ["file", "environment", "flag"])
def test_the_profile_sets_every_difference_and_explicit_settings_win(place: str, tmp_path: Path) -> None:
    file = write(tmp_path, 'profile = "rabbitmq"\n') if place == "file" else None
    environment = {"HOLT_AMQP_CHANNEL_FLOW": "true"}
    if place == "environment":
        environment["HOLT_PROFILE"] = "RabbitMQ"
    flags: dict[str, object] = {"amqp.max_priority": "20"}
    if place == "flag":
        flags["profile"] = "rabbitmq"

    loaded = load(environment, flags, file)

    explicit = {"amqp.channel_flow": True, "amqp.max_priority": 20}
    for name, value in {**differences.rabbitmq_settings(), **explicit}.items():
        setting = by_name()[name]
        assert loaded.value(setting) == value, name
        assert (loaded.origin(setting) == "profile rabbitmq") == (name not in explicit)
    others = {setting.name for setting in all_settings()} - set(differences.rabbitmq_settings()) - {"profile"}
    assert all(loaded.origin(by_name()[name]) == "default" for name in others)


def test_every_difference_has_a_setting_or_a_reason_and_every_compatibility_setting_a_row() -> None:
    rows = differences.DIFFERENCES
    assert all(bool(row.setting) != bool(row.stays) for row in rows)
    in_section = {setting.name for setting in all_settings() if setting.section == "compatibility"}
    assert in_section <= {row.setting for row in rows}
    assert {row.setting for row in rows if row.setting} <= set(by_name())
    for row in rows:
        assert not row.setting or by_name()[row.setting].default != row.value, row.what
    assert {field.name for field in fields(Dialect)} == {name.split(".")[1] for name in in_section}


def test_the_table_of_differences_is_the_list_in_the_code() -> None:
    # Make it so with: .venv/bin/python scripts/docs.py
    assert differences.markdown() in (DOCS.parent / "amqp.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('profile = "kafka"', "'kafka' is not usable for profile: expected holt or rabbitmq"),
        ('profil = "rabbitmq"', "unknown setting profil; did you mean profile?"),
    ],
)
def test_a_wrong_profile_is_refused_with_its_place(text: str, problem: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"{text}\n")

    with pytest.raises(ConfigError) as raised:
        load({}, file=file)

    assert [str(one) for one in raised.value.problems] == [f"{file}:1: {problem}"]


def test_the_configuration_cannot_be_changed_after_loading() -> None:
    loaded: Loaded = load({})

    with pytest.raises(AttributeError):
        loaded.config.amqp.port = 1  # type: ignore[misc]
