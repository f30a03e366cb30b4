"""HoltMQ: a message broker you pip install.

Owns: the version. Must not touch: anything else; importing the package must cost nothing.
"""

__version__ = "0.1.0"
