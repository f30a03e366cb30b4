"""The format page says what the code writes."""

from __future__ import annotations

from pathlib import Path

from holtmq.broker.records.changes import Kind
from holtmq.broker.records.layouts import LAYOUTS, markdown

PAGE = Path(__file__).parents[2] / "docs" / "journal-format.md"


def test_every_kind_has_a_name_a_version_and_a_layout() -> None:
    assert set(LAYOUTS) == set(Kind)


def test_the_page_lists_them_as_they_are() -> None:
    # Make it so with: .venv/bin/python scripts/docs.py
    assert markdown() in PAGE.read_text(encoding="utf-8")
