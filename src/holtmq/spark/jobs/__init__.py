"""The jobs behind ``holt pipeline``: each a PySpark program that can also be called from Python."""
