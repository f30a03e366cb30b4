"""``make demo`` as a user runs it: to its end, with the tables it prints and the report it writes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from headless import Browser

ROOT = Path(__file__).parents[2]

# One run of the demo for all.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("demo")]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder a small demo worked in, and what it printed."""
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, str(ROOT / "scripts" / "demo.py"), "--orders", "300", "--folder", str(folder)]
    command += ["--master", "local[2]"]
    environment = {**os.environ, "COLUMNS": "150", "NO_COLOR": "1", "TERM": "dumb", "PYTHONUTF8": "1"}
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=480, env=environment, cwd=folder
    )
    logs = "".join(path.read_text()[-3000:] for path in folder.glob("*.log"))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return folder, done.stdout


def table(printed: str, title: str) -> list[list[str]]:
    """The cells of the rows below a title."""
    lines = printed[printed.index(title) :].splitlines()
    end = next(place for place, line in enumerate(lines) if line.startswith("└"))
    rows = [line.strip("│").split("│") for line in lines[:end] if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]


def test_the_demo_counts_every_order_and_every_failure(demo: tuple[Path, str]) -> None:
    folder, printed = demo
    summary = json.loads((folder / "summary.json").read_text())

    assert "300 messages are in the lake, 100 newer ones in the queue alone." in printed
    kinds = table(printed, "Orders by kind")
    assert sum(int(row[1].replace(",", "")) for row in kinds) == 400
    assert sum(int(row[2].replace(",", "")) for row in kinds) == 150
    groups = {row[0]: row for row in table(printed, "Consumer groups")}
    delivered, acked, failed, dead = (int(cell.replace(",", "")) for cell in groups["billing"][1:5])
    assert (delivered, acked + dead, failed) == (300, 300, 0)
    assert set(groups) == {"billing", "shipping"}
    families = table(printed, "dead letters, by family of errors")
    assert sum(int(row[2]) for row in families) == summary["letters"] == dead + int(groups["shipping"][4])
    assert summary["letters"] > 0


def test_a_browser_shows_the_report_the_demo_wrote(demo: tuple[Path, str], tmp_path: Path) -> None:
    folder, printed = demo
    page = folder / "dead-letters.html"
    assert f"file://{page}" in printed.replace("\n", "")
    browser = Browser.find(tmp_path)

    dom = browser.dom(page)

    letters = json.loads((folder / "summary.json").read_text())["letters"]
    assert f"{letters} dead letters" in dom
    assert dom.count("<rect") > 1
    for row in table(printed, "dead letters, by family of errors"):
        assert row[0].split("<")[0].strip() in dom
    # A blank page compresses to a few kilobytes.
    assert browser.picture(page).stat().st_size > 10_000
