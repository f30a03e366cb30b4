"""Numbers with their nouns, in what commands print.

Owns: singular and plural. Must not touch: what is counted.
"""


def counted(count: int, plural: str) -> str:
    """``1 queue``, ``2 queues``: the regular plural is given."""
    if count != 1:
        return f"{count} {plural}"
    return f"1 {plural[:-3]}y" if plural.endswith("ies") else f"1 {plural.removesuffix('s')}"
