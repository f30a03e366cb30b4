"""The examples in docs/testing.md run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_page_has_examples_for_every_client() -> None:
    code = "\n".join(EXAMPLES)

    for module in ("pika", "aio_pika", "celery", "queen", "unittest"):
        assert re.search(rf"^(import|from) {module}\b", code, re.MULTILINE), module


def test_every_example_passes(tmp_path: Path) -> None:
    for number, example in enumerate(EXAMPLES):
        (tmp_path / f"test_example_{number}.py").write_text(example, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n", encoding="utf-8"
    )

    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )

    assert result.returncode == 0, result.stdout
    assert "skipped" not in result.stdout
