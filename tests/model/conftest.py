"""Makes the models, and what the tests of the work-queue core share, importable."""

import sys
from pathlib import Path

HERE = Path(__file__).parent

sys.path[:0] = [str(HERE), str(HERE.parent / "broker")]
