"""Durable storage: append, sync, read, recover, compact. It knows records, not queues."""

from .file_journal import FileJournal
from .interface import (
    FIRST_FREE_KIND,
    DurableCallback,
    Journal,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalLocked,
    JournalStats,
    JournalTooNew,
    Recovery,
    TornTail,
)
from .memory import MemoryJournal
from .opening import open_journal
from .options import JournalOptions

__all__ = [
    "FIRST_FREE_KIND",
    "DurableCallback",
    "FileJournal",
    "Journal",
    "JournalCorrupt",
    "JournalError",
    "JournalFailed",
    "JournalLocked",
    "JournalOptions",
    "JournalStats",
    "JournalTooNew",
    "MemoryJournal",
    "Recovery",
    "TornTail",
    "open_journal",
]
