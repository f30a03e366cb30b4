"""``python -m bench.figures_cost``."""

from bench.figures_cost.command import main

main()
