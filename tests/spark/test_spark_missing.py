"""A machine without Spark, or without pyarrow: every command says what to install."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, sys
for name in sys.argv[2].split(","):
    sys.modules[name] = None  # an import of it fails as if it were not installed
from click.testing import CliRunner
from holtmq.cli import main
answers = {}
for words in json.loads(sys.argv[1]):
    said = CliRunner().invoke(main, ["pipeline", *words])
    unexpected = said.exception is not None and not isinstance(said.exception, SystemExit)
    answers[words[0]] = [said.exit_code, repr(said.exception) if unexpected else said.output]
print(json.dumps(answers))
"""
PIPELINE = """
[sources.orders]
queue = "orders"
[sinks.out]
from = "orders"
queue = "out"
"""


@pytest.mark.parametrize("missing", ["pyspark,py4j", "pyspark,py4j,pyarrow,pyarrow.fs,pyarrow.compute"])
def test_every_command_says_what_is_missing(tmp_path: Path, missing: str) -> None:
    file = tmp_path / "p.toml"
    file.write_text(PIPELINE)
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[jobs.a]\nkind = "run"\nfile = "p.toml"\nevery = "1s"\n')
    queue, lake = ["--queue", "orders"], ["--lake", str(tmp_path / "lake")]
    away = ["--url", "http://127.0.0.1:9"]
    commands = [
        ["doctor", "--spark", *away],
        ["redrive", *queue, *away],
        ["replay", *queue, "--to", "x", *away],
        ["dead-letters", *queue, *away],
        ["archive", *queue, *lake, *away],
        ["table", *queue, *lake, *away],
        ["rollup", *queue, *lake, *away],
        ["run", str(file), *away],
        ["serve", str(jobs), "--health", "127.0.0.1:0", *away],
    ]

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands), missing], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert answers.keys() == {words[0] for words in commands}
    for command, (code, said) in answers.items():
        assert code == 1, (command, said)
        assert "pip install 'holtmq[spark]'" in said, (command, said)
    if "pyarrow" in missing:
        assert "pip install 'holtmq[arrow]'" in answers["archive"][1]
        assert "Broker: not tried" in answers["doctor"][1]
