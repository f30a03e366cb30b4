"""The colours of the dashboard can be read, in light and in dark."""

import re
from pathlib import Path

import pytest

from holtmq.http.dashboard import pages

STYLE = (Path(pages.__file__).parent / "ui" / "style.css").read_text()
ON = {  # text colours by what is behind them
    "panel": ("ink", "soft", "accent", "bad", "warn", "ok"),
    "bg": ("ink", "soft", "accent", "bad", "warn", "ok"),
    "row": ("ink", "soft", "accent"),
    "bad-bg": ("ink", "soft", "accent"),
    "warn-bg": ("ink", "soft", "accent"),
}


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): #([0-9a-f]{6})", block))


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(scheme: str) -> None:
    light, dark = STYLE.split("@media (prefers-color-scheme: dark)")
    values = colours(light if scheme == "light" else dark.split("* {")[0])

    for behind, texts in ON.items():
        for text in texts:
            bright, dim = sorted((luminance(values[behind]), luminance(values[text])), reverse=True)
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, f"{text} on {behind}"
