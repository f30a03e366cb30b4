"""The broker without its figures: an import hook that leaves the statements that count out of its modules.

Owns: which statements these are. Must not touch: files. What decides about messages stays, also where a page
shows it: times of arrival (expiry needs them), lengths, leases.
"""

from __future__ import annotations

import ast
import marshal
import re
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

_PACKAGES: Final = re.compile(r"holtmq\.(amqp|broker|journal|http\.(engine|queues))\.")
# A statement is left out if the first line of its source is matched.
RULES: Final = {
    "counts of the node": r"(\w+\.)*_?counts\.\w+ [+-]= |counts = |if (dropped|redelivered):",
    "counts of a channel": r"(\w+\.)*_?messages\.\w+ (\+= |= )|(self|channel)\.received \+= ",
    "counts of a queue": r"(\w+\.)*figures\.\w+ [+-]= ",
    "counts of a socket": r"self\.(received_bytes|reads|sent_bytes|writes) \+= ",
    "counts of an exchange": r"flow\.count\(|exchange\.published \+= |flow\.used_exchanges\.add\(",
    "which queues were used": r"self\.used\.update\(",
    "counts of partitioned queues": r"(\w+\.)*counters\.(of\(|\w+ \+= |acked\()"
    r"|counters = self\.counters\.of|self\._counters_of_queues\.of\(",
    "ages of leases": r"if .*\.note_due_ms:",
    "other holders": r"(\w+\.)*other_holders\.(add|remove)\(",
    "counts of the journal": r"self\._stats\.\w+ \+= ",
}
_RULES: Final = {name: re.compile(rule) for name, rule in RULES.items()}


class _Stripper(ast.NodeTransformer):
    def __init__(self, source: str, stripped: Counter[str]) -> None:
        self._lines = source.splitlines()
        self._stripped = stripped

    def visit(self, node: ast.AST) -> ast.AST | None:
        if isinstance(node, ast.expr):
            return node
        if isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.If):
            first = self._lines[node.lineno - 1].lstrip()
            for name, rule in _RULES.items():
                if rule.match(first):
                    self._stripped[name] += 1
                    return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return node


class _StrippingLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, stripped: Counter[str], kept: Path) -> None:
        super().__init__(name, path)
        self._stripped = stripped
        self._kept = kept / name

    def get_code(self, fullname: str) -> CodeType:
        """Compile from the source, past the bytecode that is kept of the whole module; once, because under
        valgrind that takes a minute."""
        code: CodeType
        if self._kept.exists():
            code, found = marshal.loads(self._kept.read_bytes())
        else:
            path = self.get_filename(fullname)
            source = self.get_data(path).decode()
            counted: Counter[str] = Counter()
            tree = _Stripper(source, counted).visit(ast.parse(source))
            assert isinstance(tree, ast.Module)
            code, found = compile(tree, path, "exec", dont_inherit=True), dict(counted)
            self._kept.write_bytes(marshal.dumps((code, found)))
        self._stripped.update(found)
        return code


class StrippingFinder(MetaPathFinder):
    """Finds the broker's modules and strips them; ``install`` before they are imported. ``kept``: a folder
    for what was compiled, of one version of the source."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept
        self.stripped: Counter[str] = Counter()  # statements by rule

    def install(self) -> None:
        """Use it for all imports from now on."""
        loaded = [name for name in sys.modules if _PACKAGES.match(name)]
        if loaded:
            raise RuntimeError(f"these modules were imported with their figures: {', '.join(loaded)}")
        sys.meta_path.insert(0, self)

    def check(self) -> None:
        """Raise if a rule has found nothing: the code it was written for has changed."""
        unused = RULES.keys() - self.stripped.keys()
        if unused:
            raise SystemExit(f"no statement was left out for: {', '.join(sorted(unused))}; see {__file__}")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module of this name, if it is one that counts."""
        if not _PACKAGES.match(fullname):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not isinstance(spec.loader, Loader):
            return None
        if spec.submodule_search_locations is None and spec.origin.endswith(".py"):
            spec.loader = _StrippingLoader(fullname, spec.origin, self.stripped, self._kept)
        return spec
