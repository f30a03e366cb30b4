"""The generated pages say what the code says. Make it so with: .venv/bin/python scripts/docs.py"""

from pathlib import Path

import pytest
import reference

import docs
from holtmq.broker.topology.queue_arguments import RULES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", [name for name in docs.PAGES if name.startswith("reference/")])
def test_a_generated_page_is_up_to_date(name: str) -> None:
    assert docs.PAGES[name]() in (DOCS / name).read_text(encoding="utf-8"), "run scripts/docs.py"


def test_every_queue_argument_is_explained() -> None:
    assert set(reference.MEANINGS) == set(RULES)
