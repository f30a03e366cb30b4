"""The same AMQP methods for two brokers: seeded random sequences, and a comparison of every reply.

Owns: the public names. ``PYTHONPATH=tests python -m differential`` plays sequences on Debian's RabbitMQ and
on HoltMQ with RabbitMQ's profile; ``recorded-*.json`` have its replies for every test run.
"""

from differential.player import Player, Seen
from differential.steps import Step, sequence

__all__ = ["Player", "Seen", "Step", "sequence"]
