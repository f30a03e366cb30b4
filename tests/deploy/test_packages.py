"""What users install and start: wheel, sdist, image, compose file, systemd unit, manifests, workflows."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import click
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner
from try_wheel import try_wheel

from holtmq import __version__
from holtmq.cli import main as holt
from holtmq.config import Config
from holtmq.config.catalogue import all_settings
from holtmq.testing import TestBroker

pytestmark = pytest.mark.xdist_group("packages")  # one build for all
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def test_the_wheel_has_all_of_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        inside = set(wheel.namelist())

    tops = {name.partition("/")[0] for name in inside}
    assert tops == {"holtmq", "pyspark_holtmq", f"holtmq-{__version__}.dist-info"}
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for package in ("holtmq", "pyspark_holtmq")
        for path in (ROOT / "src" / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in inside if ".dist-info/" not in name} == sources
    assert any(name.startswith("holtmq/http/dashboard/ui/pages/") for name in inside)


def test_the_sdist_has_what_a_distribution_builds_and_tests_with(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {
        "pyproject.toml",
        "Makefile",
        "LICENSE",
        "CHANGELOG.md",
        "deploy/compose.yaml",
        "tests/conftest.py",
    }
    assert wanted <= inside
    assert not [name for name in inside if "__pycache__" in name or name.startswith((".venv", "dist"))]


def test_the_descriptions_pass_pypis_check(built: tuple[Path, Path]) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_wheel_alone_runs_a_broker(built: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        wheel.extractall(tmp_path)

    where = try_wheel(sys.executable, str(tmp_path))

    assert Path(where).is_relative_to(tmp_path)  # not this clone's own


def instructions(text: str) -> list[tuple[str, str]]:
    """The Dockerfile's instructions, with continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    found = [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]
    assert all(len(row) == 2 for row in found)
    return [(word.upper(), rest) for word, rest in found]


@pytest.fixture(scope="module")
def dockerfile() -> list[tuple[str, str]]:
    return instructions((ROOT / "Dockerfile").read_text())


def test_the_image_is_built_in_stages_and_runs_without_root(dockerfile: list[tuple[str, str]]) -> None:
    words = [word for word, _ in dockerfile]
    known = {
        "FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK",
        "STOPSIGNAL", "ENTRYPOINT", "CMD", "ARG",
    }  # fmt: skip
    assert set(words) <= known
    assert words.count("FROM") == 2
    last_stage = dockerfile[len(words) - 1 - words[::-1].index("FROM") :]
    final = dict(last_stage)
    assert final["USER"] == "10001:10001"
    assert final["STOPSIGNAL"] == "SIGTERM"
    # In brackets: without a shell in between, which would not pass SIGTERM on.
    assert (json.loads(final["ENTRYPOINT"]), json.loads(final["CMD"])) == (["holt"], ["serve"])
    assert json.loads(final["VOLUME"]) == ["/var/lib/holtmq"]
    order = [word for word, _ in last_stage]
    assert order.index("USER") < order.index("VOLUME")  # changes after VOLUME would be lost
    for _, image in [row for row in dockerfile if row[0] == "FROM"]:
        assert re.match(r"python:3\.\d+-slim\b", image), "a base without a version changes by itself"


@pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux", reason="hadolint has no wheel for this"
)
def test_the_image_has_no_fault_that_hadolint_knows() -> None:
    command = [str(Path(sys.executable).parent / "hadolint"), "--no-color", str(ROOT / "Dockerfile")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_ports_of_image_and_compose_file_are_the_brokers(dockerfile: list[tuple[str, str]]) -> None:
    config = Config()
    ports = {config.amqp.port, config.amqp.tls_port, config.http.port, config.http.tls_port}
    exposed = next(rest for word, rest in dockerfile if word == "EXPOSE")
    assert {int(port) for port in exposed.split()} == ports
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    for name in ("broker", "standby"):
        assert {int(port.rpartition(":")[2]) for port in services[name]["ports"]} <= ports


def test_each_holt_command_in_these_files_exists() -> None:
    files = [ROOT / "Dockerfile", *(ROOT / ".github").rglob("*.yml"), *DEPLOY.rglob("*")]
    texts = [path.read_text() for path in files if path.is_file() and path.suffix != ".json"]
    calls = {
        call.strip()
        for text in texts
        for call in re.findall(r"\bholt ((?:[a-z]+ ?)+(?:NAME ?)?(?:--[a-z-]+ ?(?:[a-z]+ ?)?)*)", text)
    }
    assert {"serve", "user list --json", "user add prometheus --tag monitoring --password-stdin"} <= calls
    for call in calls:
        command: click.Command = holt
        context = click.Context(holt)
        for word in call.split():
            options = {name for one in command.params for name in one.opts}
            if word.startswith("--"):
                assert word in options, f"holt {call}"
            elif isinstance(command, click.Group):
                found = command.get_command(context, word)
                assert found is not None, f"holt {call}"
                command = found
        assert not isinstance(command, click.Group) or call in ("cluster",), f"holt {call}"


def test_the_image_copies_only_what_its_context_holds(dockerfile: list[tuple[str, str]]) -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    for word, rest in dockerfile:
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored


def test_the_image_has_extras_that_exist_and_rows_for_spark(dockerfile: list[tuple[str, str]]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (given,) = [rest.partition("=")[2] for word, rest in dockerfile if word == "ARG"]

    assert set(given.split(",")) <= set(extras)
    assert {"arrow", "postgres", "backup"} <= set(given.split(","))


def test_the_settings_of_the_image_exist(dockerfile: list[tuple[str, str]]) -> None:
    known = {setting.env for setting in all_settings()}
    used = {name for word, rest in dockerfile if word == "ENV" for name in re.findall(r"(HOLT_\w+)=", rest)}
    assert used
    assert used <= known


def test_the_images_health_check_sees_a_broker_and_its_absence(dockerfile: list[tuple[str, str]]) -> None:
    rest = next(rest for word, rest in dockerfile if word == "HEALTHCHECK")
    words = json.loads(rest.partition("CMD ")[2])
    assert words[0] == "holt"
    patient = ["120" if word == "4" else word for word in words[1:]]  # this machine may be busy
    command = [sys.executable, "-m", "holtmq", *patient]
    with TestBroker() as broker:
        port = broker.http_url.rpartition(":")[2].strip("/")
        environment = {**os.environ, "HOLT_HTTP_PORT": port}
        alive = subprocess.run(command, env=environment, capture_output=True)
    gone = subprocess.run(command, env=environment, capture_output=True)

    assert alive.returncode == 0, alive.stderr
    assert gone.returncode == 2


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("compose-spec", "deploy/compose.yaml"),
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("dependabot", ".github/dependabot.yml"),
    ],
)
def test_files_fit_their_schemas(schema: str, pattern: str) -> None:
    files = sorted(map(str, ROOT.glob(pattern)))
    assert files
    result = CliRunner().invoke(check_jsonschema, ["--builtin-schema", f"vendor.{schema}", *files])
    assert result.exit_code == 0, result.output


def test_the_compose_file_mounts_what_exists_and_sets_what_is_known() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    known = {setting.env for setting in all_settings()}
    for name, service in compose["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"]
        holt = {key for key in service.get("environment", {}) if key.startswith("HOLT_")}
        assert holt <= known, name
        for other in service.get("depends_on", {}):
            assert other in compose["services"]
        for secret in service.get("secrets", ()):
            assert (secret if isinstance(secret, str) else secret["source"]) in compose["secrets"]
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} would be open to the network"
    targets = {
        target.partition(":")[0]
        for job in yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
        for group in job["static_configs"]
        for target in group["targets"]
    }
    assert targets <= set(compose["services"])


def test_the_unit_is_accepted_by_systemd_and_hardened(tmp_path: Path) -> None:
    unit = (DEPLOY / "systemd/holtmq.service").read_text()
    for name in re.findall(r"^Environment=(HOLT_\w+)=", unit, re.MULTILINE):
        assert name in {setting.env for setting in all_settings()}
    for line in (
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "StateDirectory=holtmq",
        "Restart=on-failure",
    ):
        assert line in unit
    if shutil.which("systemd-analyze"):
        here = tmp_path / "holtmq.service"
        here.write_text(unit.replace("/opt/holtmq/bin/holt", sys.executable))
        result = subprocess.run(["systemd-analyze", "verify", str(here)], capture_output=True, text=True)
        ours = [line for line in result.stderr.splitlines() if "holtmq" in line]
        assert ours == []


def manifests(folder: str) -> list[dict[str, Any]]:
    names = yaml.safe_load((KUBERNETES / folder / "kustomization.yaml").read_text())["resources"]
    texts = [(KUBERNETES / folder / name).read_text() for name in names if name.endswith(".yaml")]
    return [part for text in texts for part in yaml.safe_load_all(text)]


def test_the_manifests_fit_together() -> None:
    objects = manifests("node")
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for one in objects:
        assert one["apiVersion"]
        by_kind.setdefault(one["kind"], []).append(one)
    (stateful,), (budget,) = by_kind["StatefulSet"], by_kind["PodDisruptionBudget"]
    pod = stateful["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert stateful["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (container,) = pod["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for service in by_kind["Service"]:
        assert service["spec"]["selector"].items() <= labels.items()
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)
    assert stateful["spec"]["serviceName"] in {one["metadata"]["name"] for one in by_kind["Service"]}
    headless = next(one for one in by_kind["Service"] if one["spec"].get("clusterIP") == "None")
    assert headless["metadata"]["name"] == stateful["spec"]["serviceName"]
    paths = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert paths == {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}
    claims = {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
    claims |= {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == claims
    assert pod["spec"]["securityContext"]["runAsNonRoot"]
    kustomization = yaml.safe_load((KUBERNETES / "node/kustomization.yaml").read_text())
    assert kustomization["images"] == [{"name": container["image"], "newTag": __version__}]


def test_the_failover_patch_meets_the_manifest_that_it_changes() -> None:
    kustomization = yaml.safe_load((KUBERNETES / "failover/kustomization.yaml").read_text())
    assert kustomization["resources"] == ["../node"]
    (entry,) = kustomization["patches"]
    patch = yaml.safe_load((KUBERNETES / "failover" / entry["path"]).read_text())
    base = next(one for one in manifests("node") if one["kind"] == patch["kind"])
    assert patch["metadata"]["name"] == base["metadata"]["name"]
    (patched,), (container,) = (one["spec"]["template"]["spec"]["containers"] for one in (patch, base))
    assert patched["name"] == container["name"]
    known = {setting.env for setting in all_settings()}
    assert {variable["name"] for variable in patched["env"]} <= known


def test_the_manifests_fit_kubernetes_schemas() -> None:
    for one in manifests("node"):
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


def test_the_tests_of_a_workflow_have_all_that_they_need_from_the_system() -> None:
    steps = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["steps"]
    commands = [step.get("run", "") for step in steps]
    # A list of packages here would be forgotten when a test needs one more.
    setup = commands.index("sudo scripts/setup-system.sh")
    assert setup < next(place for place, command in enumerate(commands) if "make test" in command)


def test_workflows_call_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for call in re.findall(r"\bmake ([a-z -]+)", path.read_text()):
            for target in call.split():
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{path.name}: make {target}"


def test_an_extra_that_brings_pyarrow_brings_numpy() -> None:
    """The broker serves rows with both, and pyarrow alone does not install numpy."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

    with_arrow = [wanted for wanted in extras.values() if any("pyarrow" in one for one in wanted)]

    assert with_arrow
    assert all(any(one.startswith("numpy") for one in wanted) for wanted in with_arrow)


def test_a_release_has_its_section_in_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{__version__}]" in changelog
