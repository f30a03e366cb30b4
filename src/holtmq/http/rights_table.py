"""The table of routes and rights, as documentation.

Owns: its layout. Must not touch: the rights; the rows come from the route tables.
"""

from holtmq.auth.rights import role_of
from holtmq.http.management.api import ENDPOINTS as MANAGEMENT
from holtmq.http.routes import ENDPOINTS


def markdown() -> str:
    """Both route tables as Markdown, sorted by path."""
    queues = [(row.path, row.method, row.right) for row in ENDPOINTS]
    management = [(row.path, row.method, row.right) for row in MANAGEMENT]
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
