"""``python -m bench.dashboard``."""

from bench.dashboard import main

main()
