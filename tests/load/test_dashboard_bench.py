"""The measurement of the dashboard runs: a broken one would go unnoticed until its figures are needed."""

from bench.dashboard import main
from click.testing import CliRunner


def test_every_page_can_be_measured() -> None:
    sizes = ("--queues", "20", "--connections", "2", "--messages", "40", "--partitions", "4")

    result = CliRunner().invoke(main, [*sizes, "--pause", "0"])

    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    for page in ("overview", "connections", "journal", "scrape, per object"):
        assert page in result.output
