"""Makes a sync method from an async one: the same name, parameters and result, without the ``await``.

Owns: ``blocking``, the only place where the sync API waits. Must not touch: what the methods do. The two APIs
cannot diverge, and a type checker sees the parameters of the async method on the sync one.
"""

import functools
from collections.abc import Callable, Coroutine
from typing import Concatenate, Generic, ParamSpec, TypeVar

from holtmq.client.loop_thread import LoopThread

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")


class Face(Generic[A]):
    """A sync object that wraps an async one."""

    _thread: LoopThread

    @property
    def twin(self) -> A:
        """The async object that does the work, on the client's event loop."""
        raise NotImplementedError


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[object, object, T]],
) -> Callable[Concatenate[Face[A], P], T]:
    """Wrap a method of the async object: run it on the loop and wait for its result."""

    def call(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self.twin, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call
