"""HoltMQ: a message broker you pip install.

Owns: the version. Must not touch: anything else; importing the package has to stay free.
"""

__version__ = "0.1.0"
