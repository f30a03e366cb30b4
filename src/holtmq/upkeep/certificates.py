"""Certificates that end soon are logged: at start, after a reload, and once a day.

Owns: when it is logged. Must not touch: the rule (``http/dashboard/attention.py``), the files.
"""

import logging
from collections.abc import Callable
from typing import Final

from holtmq.http.dashboard.attention import of_certificates
from holtmq.http.dashboard.thresholds import Thresholds
from holtmq.http.engine.context import ServedCertificate

log = logging.getLogger(__name__)

_EVERY_SECONDS: Final = 86_400


class CertificateEnds:
    """Reports the certificates of one node."""

    def __init__(
        self,
        served: Callable[[], list[ServedCertificate]],
        thresholds: Callable[[], Thresholds],
        clock: Callable[[], float],
    ) -> None:
        self._served = served
        self._thresholds = thresholds
        self._clock = clock
        self._next = clock()

    def report_if_due(self) -> None:
        """Log what ends soon, if the last time was a day ago."""
        if self._clock() >= self._next:
            self.report()

    def report(self) -> None:
        """Log what ends soon: a line for each certificate."""
        now = self._clock()
        self._next = now + _EVERY_SECONDS
        for one in of_certificates(self._served(), self._thresholds(), now):
            level = logging.ERROR if one.severity == "bad" else logging.WARNING
            log.log(level, "certificate needs renewal", extra={"listener": one.name, "reason": one.text})
