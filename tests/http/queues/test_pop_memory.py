"""What pops remember of their paths stays within bounds."""

from holtmq.http.queues import pop as module
from holtmq.http.queues.pop import PopApi


def remembering() -> PopApi:
    api = PopApi.__new__(PopApi)
    api._remembered = {}
    api._remembered_bytes = 0
    return api


def test_paths_are_remembered_up_to_so_many_bytes() -> None:
    api = remembering()

    for number in range(20_000):
        api._remember((b"/api/v1/pop/queue/%d" % number, b"batch=10"), None)  # type: ignore[arg-type]

    assert len(api._remembered) < module._REMEMBERED_BYTES // module._PARAMETERS_BYTES
    held = sum(len(path) + len(query) for path, query in api._remembered)
    assert held < module._REMEMBERED_BYTES


def test_a_long_path_is_not_remembered() -> None:
    api = remembering()

    api._remember((b"/api/v1/pop/queue/q", b"x" * 60_000), None)  # type: ignore[arg-type]

    assert api._remembered == {}
