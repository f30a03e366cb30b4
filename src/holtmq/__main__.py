"""``python -m holtmq``: the same as the ``holt`` command."""

from holtmq.cli import main

if __name__ == "__main__":
    main()
