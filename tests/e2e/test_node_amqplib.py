"""node's amqplib. The scenarios are in node/amqplib_test.js; `make test` installs the library."""

import shutil
import subprocess
from pathlib import Path

import pytest
from e2e_support import DEADLINE

from holtmq.testing import TestBroker

FOLDER = Path(__file__).parent / "node"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(
        not (FOLDER / "node_modules" / "amqplib").is_dir(), reason="scripts/setup-system.sh installs amqplib"
    ),
]


@pytest.mark.parametrize("scenario", ["workQueue", "routing", "rpc", "deadLetters", "errors", "largeBodies"])
def test_amqplib(broker: TestBroker, scenario: str) -> None:
    done = subprocess.run(
        ["node", str(FOLDER / "amqplib_test.js"), scenario, broker.amqp_url],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )

    assert done.returncode == 0, done.stderr
