"""Every link of the documentation leads somewhere: files and headings, without a network."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [*DOCS.rglob("*.md"), ROOT / "bench/README.md"]
    + [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
)
FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)|^\[[^\]]+\]:\s+(\S+)", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"`[^`\n]*`", "`code`", FENCED.sub("", page.read_text(encoding="utf-8")))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        count = found[slug] = found.get(slug, -1) + 1
        names.add(slug if not count else f"{slug}-{count}")
    return frozenset(names)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for match in LINK.finditer(prose(page)):
        target = match[1] or match[2]
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{target}: there is no {path}"
        if page.is_relative_to(DOCS):
            assert place.is_relative_to(DOCS), f"{target} is not part of the site: name its address"
        if anchor:
            assert anchor in anchors(place), f"{target}: {place.name} has no such heading"


def test_the_check_finds_links_and_headings() -> None:
    found = [match[1] for match in LINK.finditer(prose(ROOT / "README.md"))]
    assert "docs/architecture.md" in found
    assert "health-checks" in anchors(DOCS / "management-api.md")


def navigated(entry: object) -> list[str]:
    if isinstance(entry, dict):
        return [page for part in entry.values() for page in navigated(part)]
    if isinstance(entry, list):
        return [page for part in entry for page in navigated(part)]
    return [str(entry)]


def test_the_navigation_of_the_site_leads_somewhere() -> None:
    plain = re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text())
    pages = navigated(yaml.safe_load(plain)["nav"])
    assert len(pages) == len(set(pages)) > 20
    assert [page for page in pages if not (DOCS / page).exists()] == []  # `make docs` finds omitted ones
