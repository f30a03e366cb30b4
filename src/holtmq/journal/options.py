"""What can be set of a journal in a folder."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JournalOptions:
    segment_bytes: int = 64 << 20
    compact_below: float = 0.25  # a segment with a smaller live share is rewritten
    read_handles: int = 32
    sync: bool = True  # False: a power cut may lose confirmed records, a crash of the process does not
    # How long records without a waiting caller may stay in memory, to be written with a commit that has one.
    # Otherwise each acknowledgment would cost a sync of its own.
    idle_seconds: float = 0.02
    idle_bytes: int = 256 << 10
