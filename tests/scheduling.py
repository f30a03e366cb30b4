"""Which tests run together on one worker, and which of them start first.

Owns: the units that pytest-xdist hands out. Must not touch: how a test runs. The process that hands them out
has not collected the tests: it reads the marks in the source of their modules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController


class ByModule(LoadGroupScheduling):  # type: ignore[misc]
    """A module is one unit: its fixtures are made once, not once on each worker.

    Modules marked ``xdist_group("name")`` are one unit together, and each test of a module marked ``slow`` or
    ``crash`` is one by itself. Groups start first, then those long tests: at the end of a run there are only
    short units left, and no worker waits long for another.
    """

    _is_ordered = False

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(self.config.rootpath, nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not self._is_ordered:
            self._is_ordered = True
            for unit in in_order(self.workqueue):
                self.workqueue.move_to_end(unit)
        super()._assign_work_unit(node)


def scheduler(config: pytest.Config, log: object) -> ByModule:
    return ByModule(config, log)


def unit_of(root: Path, nodeid: str) -> str:
    """The unit of one test: a group, a module, or the test itself."""
    module = nodeid.partition("::")[0]
    group, is_long = marks_of(root / module)
    return group or (nodeid if is_long else module)


def in_order(units: Mapping[str, Mapping[str, bool]]) -> list[str]:
    """Groups, then tests by themselves, then modules; of each kind first those with the most tests."""

    def rank(unit: str) -> tuple[int, int]:
        kind = 1 if "::" in unit else 2 if unit.endswith(".py") else 0
        return kind, -len(units[unit])

    return sorted(units, key=rank)


@cache
def marks_of(module: Path) -> tuple[str, bool]:
    """The group that a module names, or "", and whether it is marked as a long one."""
    text = module.read_text() if module.is_file() else ""
    found = re.search(r'mark\.xdist_group\("([^"]+)"\)', text)
    return (found[1] if found else ""), bool(re.search(r"mark\.(slow|crash|model)\b", text))
