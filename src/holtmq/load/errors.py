"""What the load tool reports to its user.

Owns: the error. Must not touch: anything.
"""


class LoadError(Exception):
    """The broker refused, closed or sent an unexpected reply; or the round cannot be measured."""
