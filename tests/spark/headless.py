"""A real browser without a window, kept off the network."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Browser:
    """Chromium with a profile of its own; ``find`` skips the test where there is none."""

    command: list[str]
    folder: Path

    @classmethod
    def find(cls, folder: Path) -> "Browser":
        found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        if found is None:
            pytest.skip("no Chromium on this machine")
        command = [found, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        command += [f"--user-data-dir={folder / 'profile'}", "--hide-scrollbars", "--no-first-run"]
        command += [
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-quic",
        ]
        return cls(command, folder)

    def dom(self, page: Path) -> str:
        """The page after its scripts and styles had their say."""
        command = [*self.command, "--dump-dom", page.as_uri()]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout

    def picture(self, page: Path) -> Path:
        """What a person sees of it."""
        where = self.folder / "page.png"
        command = [*self.command, f"--screenshot={where}", "--window-size=900,900", page.as_uri()]
        subprocess.run(command, capture_output=True, timeout=300, check=True)
        return where
