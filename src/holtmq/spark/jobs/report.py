"""A report as one HTML file: no scripts, fonts or other downloads; charts are SVG.

Owns: the layout. Must not touch: figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

_WIDTH: Final = 860
_STYLE: Final = """
:root { color-scheme: light dark;
        --ink: #1c2430; --soft: #5d6b7e; --line: #d9dfe7; --bar: #2f6f9f; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf2; --soft: #9aa8ba; --line: #333d4b; --bar: #6cb2e2; --page: #14181e; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p.lead { color: var(--soft); margin: .2rem 0 1rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
svg rect { fill: var(--bar); } svg line { stroke: var(--line); }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th, td { text-align: left; vertical-align: top; padding: .35rem .5rem; border-bottom: 1px solid var(--line); }
td { overflow-wrap: break-word; max-width: 24rem; }
td.many { font-family: ui-monospace, monospace; font-size: 12px; white-space: pre-wrap; }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Section:
    """A chart or a table under a title."""

    title: str
    bars: Sequence[Bar] = ()
    upright: bool = False
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = field(default=())


def render(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page."""
    body = "".join(_section(section) for section in sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f'<body><h1>{escape(title)}</h1><p class="lead">{escape(lead)}</p>{body}</body></html>\n'
    )


def _section(section: Section) -> str:
    if section.head:
        content = _table(section.head, section.rows)
    elif not section.bars:
        content = "<p>Nothing to show.</p>"
    else:
        content = _columns(section.bars) if section.upright else _lines(section.bars)
    return f"<section><h2>{escape(section.title)}</h2>{content}</section>"


def _lines(bars: Sequence[Bar]) -> str:
    """Horizontal bars: room for long names."""
    most = max(bar.value for bar in bars) or 1
    step, label = 26, 380
    parts = []
    for place, bar in enumerate(bars):
        y = place * step
        width = (_WIDTH - label - 70) * bar.value / most
        name = bar.name if len(bar.name) <= 58 else bar.name[:57] + "…"
        parts.append(
            f'<text x="{label - 8}" y="{y + 17}" text-anchor="end">{escape(name)}'
            f"<title>{escape(bar.name)}</title></text>"
            f'<rect x="{label}" y="{y + 5}" width="{max(width, 1):.1f}" height="16" rx="2"/>'
            f'<text x="{label + width + 6:.1f}" y="{y + 17}">{bar.value:,.0f}</text>'
        )
    return _svg(len(bars) * step, parts)


def _columns(bars: Sequence[Bar]) -> str:
    """Vertical bars: time goes to the right."""
    most = max(bar.value for bar in bars) or 1
    height, step = 160, (_WIDTH - 20) / len(bars)
    every, wide = max(1, len(bars) // 8), min(step * 0.8, 60)
    parts = [f'<line x1="0" y1="{height}" x2="{_WIDTH}" y2="{height}"/>']
    for place, bar in enumerate(bars):
        x, tall = 10 + place * step, (height - 24) * bar.value / most
        parts.append(
            f'<rect x="{x:.1f}" y="{height - tall:.1f}" width="{wide:.1f}" height="{tall:.1f}">'
            f"<title>{escape(bar.name)}: {bar.value:,.0f}</title></rect>"
        )
        if place % every == 0:
            parts.append(f'<text x="{x:.1f}" y="{height + 18}">{escape(bar.name)}</text>')
            parts.append(f'<text x="{x:.1f}" y="{height - tall - 5:.1f}">{bar.value:,.0f}</text>')
    return _svg(height + 26, parts)


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"


def _cell(text: str) -> str:
    kind = ' class="many"' if "\n" in text else ""
    return f"<td{kind}>{escape(text)}</td>"
