"""The report as a person sees it: one file, opened in a real browser."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holtmq.spark.jobs.report import Bar, Section, render

PAGE = render(
    "Dead letters of <orders>",
    "3 dead letters",
    [
        Section("By hour", bars=[Bar(f"2026-05-01 {hour:02d}:00", hour) for hour in range(24)], upright=True),
        Section("By family", bars=[Bar("order <n> not found & more", 2), Bar("x" * 200, 0)]),
        Section("Nothing", bars=[]),
        Section("Families", head=["Family", "Letters"], rows=[["<script>alert(1)</script>", "2"]]),
    ],
)


def test_everything_a_message_brings_is_text_in_the_page() -> None:
    assert "<script>" not in PAGE
    assert "&lt;script&gt;alert(1)" in PAGE
    assert not re.search(r"(src|href)=|@import|url\(", PAGE)


def test_a_browser_draws_the_charts_without_asking_the_network_for_anything(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine")
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    page.write_text(PAGE)
    common = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    common += [f"--user-data-dir={tmp_path / 'profile'}", "--hide-scrollbars", "--no-first-run"]
    common += [
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-quic",
    ]

    dom = subprocess.run(
        [*common, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=100, check=True
    )
    subprocess.run(
        [*common, f"--screenshot={picture}", "--window-size=900,900", page.as_uri()],
        capture_output=True,
        timeout=100,
        check=True,
    )

    assert dom.stdout.count("<rect") == 26
    assert "Nothing to show." in dom.stdout
    # A blank page compresses to a few kilobytes.
    assert picture.stat().st_size > 10_000
