"""The examples of the guide and of the client's page run as they stand and print what the pages say."""

import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import pytest

from holtmq.testing import TestBroker

DOCS = Path(__file__).parents[2] / "docs"
URL = "http://127.0.0.1:6632"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    language: str
    code: str
    line: int
    expected: str = ""
    is_json: bool = False  # then spaces and lines do not count


def examples(page: str) -> list[Example]:
    text = (DOCS / page).read_text(encoding="utf-8")
    found: list[Example] = []
    for match in BLOCK.finditer(text):
        language, body = match.groups()
        if language in ("text", "json"):
            found[-1] = found[-1]._replace(expected=body, is_json=language == "json")
        else:
            found.append(Example(language, body, text.count("\n", 0, match.start()) + 2))
    return found


def prints(example: Example, printed: str) -> bool:
    """Whether it is what the page says; an ellipsis stands for anything."""
    expected = example.expected
    if example.is_json:
        expected, printed = "".join(expected.split()), "".join(printed.split())
    pattern = ".*".join(re.escape(piece) for piece in expected.strip().split("…"))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def run_shell(code: str, folder: Path) -> str:
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code.replace("/tmp/", f"{folder}/")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("page", ["partitioned-queues.md", "client.md"])
def test_every_example_prints_what_the_page_says(page: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    names: dict[str, object] = {"__name__": "guide"}
    with TestBroker(clock="real") as broker:
        for example in examples(page):
            code = example.code.replace(URL, broker.http_url)
            printed = StringIO()
            if example.language == "python":
                with redirect_stdout(printed):
                    exec(compile(code, f"{page}:{example.line}", "exec"), names)
            elif example.language == "sh":
                printed.write(run_shell(code, tmp_path))
            else:
                raise AssertionError(f"{page}:{example.line}: no runner for {example.language}")

            where = f"{page}:{example.line} printed\n{printed.getvalue()}"
            assert prints(example, printed.getvalue()), where


def test_the_guide_speaks_python_and_curl() -> None:
    languages = [example.language for example in examples("partitioned-queues.md")]

    assert languages.count("python") >= 10
    assert languages.count("sh") >= 6


def test_the_client_runs_without_the_broker_and_its_dependencies() -> None:
    forbidden = ("uvloop", "re2", "holtmq.broker", "holtmq.http", "holtmq.journal", "httpx", "click")
    code = f"import sys, holtmq.client\nprint([name for name in {forbidden!r} if name in sys.modules])"

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"
