"""The table of routes and rights, as documentation.

Owns: how it looks. Must not touch: the rights; it is made of the route tables' own rows.
"""

from holtmq.auth.rights import role_of
from holtmq.http.management.api import ROWS
from holtmq.http.routes import ENDPOINTS


def markdown() -> str:
    """Both tables, in the order of their paths."""
    queues = [(row.path, row.method, row.right) for row in ENDPOINTS]
    management = [(row.path, row.method, row.right) for row in ROWS]
    parts: list[str] = []
    for title, rows in (("Partitioned queues, operation, dashboard", queues), ("Management", management)):
        parts += [
            f"### {title}",
            "",
            "| route | a user needs | a token without a user needs |",
            "|---|---|---|",
        ]
        parts += [
            f"| {method} `{path}` | {right} | {role_of(right)} |"
            for path, method, right in sorted(rows, key=lambda row: (row[0], row[1]))
        ]
        parts.append("")
    return "\n".join(parts)
