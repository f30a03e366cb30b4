"""What counting costs, in processor instructions: ``python -m bench.figures_cost``.

Imports nothing here: the process whose instructions are counted should start quickly.
"""
