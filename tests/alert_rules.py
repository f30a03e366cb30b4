"""The alert rules of ``deploy/``, evaluated on one scrape: the comparisons of a gauge with a number."""

from pathlib import Path
from typing import Any

import promql_parser as promql
import yaml
from prometheus_client.parser import text_string_to_metric_families

ALERTS = Path(__file__).parents[1] / "deploy/prometheus/alerts.yml"


def firing(scrape: str) -> set[tuple[str, ...]]:
    """The rules that are true, each with the values of its labels; rules over time are left out."""
    samples: dict[str, list[tuple[tuple[str, ...], float]]] = {}
    for family in text_string_to_metric_families(scrape):
        for sample in family.samples:
            row = tuple(sample.labels.values()), sample.value
            samples.setdefault(sample.name, []).append(row)
    found: set[tuple[str, ...]] = set()
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            tree = promql.parse(rule["expr"])
            if isinstance(tree, promql.BinaryExpr) and isinstance(tree.lhs, promql.VectorSelector):
                limit = _number(tree.rhs)
                if limit is None:
                    continue
                for labels, value in samples.get(str(tree.lhs.name), ()):
                    if _holds(str(tree.op), value, limit):
                        found.add((rule["alert"], *labels))
    return found


def _number(tree: Any) -> float | None:
    if isinstance(tree, promql.NumberLiteral):
        return float(tree.val)
    if isinstance(tree, promql.BinaryExpr) and str(tree.op) == "*":
        left, right = _number(tree.lhs), _number(tree.rhs)
        return None if left is None or right is None else left * right
    return None


def _holds(operator: str, value: float, limit: float) -> bool:
    return {">": value > limit, "<": value < limit, "==": value == limit}[operator]
