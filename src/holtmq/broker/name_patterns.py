"""Regular expressions over names, from anybody who may read: only those that are sure to end soon.

Owns: which are. Must not touch: what the names are of. Python tries every way in which an expression could
match and does nothing else meanwhile: with ``(a+)+b`` each letter of a name doubles them. So the ways are
counted first.
"""

import re
from typing import Final

from holtmq.broker.errors import Conflict

WAYS_MAX: Final = 2_000_000  # some ten milliseconds for one name
_LONGEST: Final = 1_000
_COUNTED: Final = re.compile(r"\{(\d*)(,?)(\d*)\}")
_REFUSED: Final = "is not taken here: match names by it on your side"


def compile_for(pattern: str, longest: int) -> re.Pattern[str]:
    """For names of up to so many characters; raises Conflict for no expression, and for one too costly."""
    if len(pattern) > _LONGEST:
        raise Conflict(f"a pattern has at most {_LONGEST} characters")
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise Conflict(f"not a regular expression: {error}") from None
    if _ways(pattern, max(longest, 1)) > WAYS_MAX:
        raise Conflict(f"a pattern with so many choices {_REFUSED}")
    return compiled


def _ways(pattern: str, longest: int) -> int:
    """At most so many ways to match: those of every choice, multiplied. That is right as long as nothing that
    is repeated holds a choice itself; so groups may be left out, and not repeated."""
    ways, at = 1, 0
    after_group = False
    while at < len(pattern) and ways <= WAYS_MAX:
        if pattern[at] in "*+?{":
            more, most, at = _repeated(pattern, at, longest)
            if after_group and most > 1:
                raise Conflict(f"a pattern that repeats a group {_REFUSED}")
            ways *= more
            after_group = False
            continue
        after_group = pattern[at] == ")"
        if pattern[at] == "\\":
            if pattern[at + 1 : at + 2].isdigit():
                raise Conflict(f"a pattern that refers to its groups {_REFUSED}")
            at += 2
        elif pattern[at] == "[":
            at = _behind_class(pattern, at)
        elif pattern.startswith("(?", at) and not pattern.startswith("(?:", at):
            raise Conflict(f"a pattern with (? {_REFUSED}")
        else:
            ways *= 2 if pattern[at] == "|" else 1
            at += 3 if pattern.startswith("(?:", at) else 1
    return ways


def _repeated(pattern: str, at: int, longest: int) -> tuple[int, int, int]:
    """In how many ways something may be repeated, how often at most; and what comes behind that."""
    counted = _COUNTED.match(pattern, at)
    if pattern[at] == "{" and (counted is None or counted[0] == "{}"):
        return 1, 1, at + 1  # a brace like any other character
    if counted is None:
        least, most, end = 0, 1 if pattern[at] == "?" else longest, at + 1
    else:
        least, end = int(counted[1] or 0), counted.end()
        most = int(counted[3]) if counted[3] else longest if counted[2] else least
    if pattern[end : end + 1] in ("?", "+"):
        end += 1  # lazy has the same ways, possessive has fewer
    return max(min(most, longest) - least, 0) + 1, most, end


def _behind_class(pattern: str, at: int) -> int:
    """A class of characters ends at the first bracket that is not its first member."""
    at += 2 if pattern[at + 1] == "^" else 1
    first = at
    while pattern[at] != "]" or at == first:
        at += 2 if pattern[at] == "\\" else 1
    return at + 1
