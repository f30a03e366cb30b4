"""Seeded random histories of the real broker and journal: clients, time, crashes and disk faults.

Owns: the public names. One seed is one history, down to the byte:
``PYTHONPATH=tests python -m simulation --seed N`` shows it again.
"""

from simulation.promises import BrokenPromise, BrokenRule
from simulation.schedule import STEPS, History, Simulation, simulate

__all__ = ["STEPS", "BrokenPromise", "BrokenRule", "History", "Simulation", "simulate"]
