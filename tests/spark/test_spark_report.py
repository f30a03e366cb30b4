"""The report as a person sees it: one file, opened in a real browser."""

import re
from pathlib import Path

from headless import Browser

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
    browser = Browser.find(tmp_path)
    page = tmp_path / "report.html"
    page.write_text(PAGE)

    dom = browser.dom(page)

    assert dom.count("<rect") == 26
    assert "Nothing to show." in dom
    # A blank page compresses to a few kilobytes.
    assert browser.picture(page).stat().st_size > 10_000
