"""A disk in an asyncio event loop: any number of awaits share one queue."""

from __future__ import annotations

import asyncio
from collections import deque
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Deque, NamedTuple, Optional, Union, cast

from ._errors import Error
from ._fipsee import Disk, DoorbellCounts, EventQueue, Memory

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    from ._fipsee import Claim, Data, Wait

_WITH_DATA = ("read", "readinto", "write")
_NEVER = 1 << 62
_LOOKS_BEFORE_SLEEP = {"adaptive": 8, "sleep": 0}
"""Rounds of the event loop without a completion before the queue asks to be woken: a wake-up costs more than a few. The other
ways never sleep."""


async def open(
    name: str,
    *,
    socket: Union[str, PathLike[str], None] = None,
    depth: int = 64,
    read_only: bool = False,
    exclusive: bool = False,
    claim: Claim = "none",
    wait: Wait = "adaptive",
) -> AsyncDisk:
    """Attach to the disk `name`; the options are those of `fipsee.open`. Use it with `async with`."""

    def attach() -> Disk:
        return Disk(name, socket=socket, depth=depth, read_only=read_only, exclusive=exclusive, claim=claim, wait=wait)

    loop = asyncio.get_running_loop()
    return AsyncDisk(await loop.run_in_executor(None, attach), loop, _LOOKS_BEFORE_SLEEP.get(wait, _NEVER))


class _Request(NamedTuple):
    future: asyncio.Future[Any]
    operation: str
    offset: int
    buffer: Optional[Data]
    length: int
    flag: bool


class AsyncDisk:
    """A disk whose calls are awaited in the event loop that opened it.

    Offsets and lengths are in bytes and multiples of `block_size`. A call that is cancelled may still be carried out;
    its buffer stays alive until then and must not be used for anything else before.
    """

    def __init__(self, disk: Disk, loop: asyncio.AbstractEventLoop, looks_before_sleep: int) -> None:
        self._disk = disk
        self._loop = loop
        self._queue: EventQueue = disk._event_queue()
        self._backlog: Deque[_Request] = deque()
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._looks_before_sleep = looks_before_sleep
        self._empty_looks = 0
        self._turn: Optional[asyncio.Handle] = None
        self._lost: Optional[Error] = None
        self._is_closing = False
        self._is_idle = asyncio.Event()
        self._descriptor = self._queue.fileno()
        loop.add_reader(self._descriptor, self._run)
        self._schedule()

    @property
    def name(self) -> str:
        """The name of the export."""
        return self._disk.name

    @property
    def size(self) -> int:
        """Size in bytes, the newest known."""
        return self._disk.size

    @property
    def block_size(self) -> int:
        """Logical block size in bytes: the unit of offsets and lengths."""
        return self._disk.block_size

    @property
    def read_only(self) -> bool:
        """Are writes refused?"""
        return self._disk.read_only

    @property
    def capabilities(self) -> list[str]:
        """The capabilities of the disk: some of write, flush, fua, discard, write_zeroes."""
        return self._disk.capabilities

    @property
    def doorbell_counts(self) -> DoorbellCounts:
        """How often program and daemon woke each other."""
        return self._queue.doorbell_counts

    @property
    def closed(self) -> bool:
        return self._is_closing

    def alloc(self, nbytes: int) -> Memory:
        """New memory shared with the daemon: data moves between it and the disk without a copy."""
        return self._disk.alloc(nbytes)

    def array(
        self, shape: Union[int, tuple[int, ...]], dtype: numpy.typing.DTypeLike
    ) -> numpy.ndarray[Any, numpy.dtype[Any]]:
        """A numpy array in memory of its own from `alloc`."""
        return self._disk.array(shape, dtype)

    async def read(self, offset: int, length: int) -> bytes:
        """Read `length` bytes at `offset`."""
        data: bytes = await self._begin("read", offset, None, length, False)
        return data

    async def readinto(self, offset: int, buffer: Data) -> int:
        """Fill `buffer` with data from `offset`; returns how many bytes. Without a copy if it is memory of `alloc`."""
        return await self._transfer("readinto", offset, buffer, False)

    async def write(self, offset: int, buffer: Data, fua: bool = False) -> int:
        """Write `buffer` at `offset`; returns how many bytes. Durable after the next flush, or, with `fua`, on return."""
        return await self._transfer("write", offset, buffer, fua)

    async def flush(self) -> None:
        """Make every completed write durable."""
        await self._begin("flush", 0, None, 0, False)

    async def discard(self, offset: int, length: int) -> None:
        """Discard a range: its contents are no longer needed."""
        await self._begin("discard", offset, None, length, False)

    async def write_zeroes(self, offset: int, length: int, unmap: bool = False) -> None:
        """Make a range read as zeroes; `unmap`: its blocks may be deallocated."""
        await self._begin("write_zeroes", offset, None, length, unmap)

    async def close(self) -> None:
        """Wait until every request is answered, and release the disk. Memory and its arrays stay valid."""
        self._is_closing = True
        while self._lost is None and (self._in_flight or self._backlog):
            self._is_idle.clear()
            await self._is_idle.wait()
        if self._turn is not None:
            self._turn.cancel()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            self._descriptor = -1
        self._queue.close()
        await self._loop.run_in_executor(None, self._disk.close)

    async def __aenter__(self) -> AsyncDisk:
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    async def _transfer(self, operation: str, offset: int, buffer: Data, flag: bool) -> int:
        length = memoryview(cast(Any, buffer)).nbytes
        await self._begin(operation, offset, buffer, length, flag)
        return length

    def _begin(
        self, operation: str, offset: int, buffer: Optional[Data], length: int, flag: bool
    ) -> asyncio.Future[Any]:
        if self._is_closing:
            raise ValueError("the disk is closed; open it again")
        if self._lost is not None:
            raise _copy(self._lost)
        future = self._loop.create_future()
        if length == 0 and operation in _WITH_DATA:
            future.set_result(b"")
        else:
            self._backlog.append(_Request(future, operation, offset, buffer, length, flag))
            self._schedule()
        return future

    def _schedule(self) -> None:
        if self._turn is None:
            # Requests of one round of the event loop go out in one burst.
            self._turn = self._loop.call_soon(self._run)

    def _run(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        try:
            done = self._queue.reap()
            self._finish(done)
            self._stage()
            self._empty_looks = 0 if done else self._empty_looks + 1
            if self._in_flight and self._empty_looks < self._looks_before_sleep:
                self._queue.submit()
                self._schedule()
            elif self._queue.arm():
                self._schedule()
        except Error as error:
            self._fail(error)
        if not self._in_flight and not self._backlog:
            self._is_idle.set()

    def _finish(self, done: list[tuple[Any, Optional[BaseException], Any]]) -> None:
        for future, error, value in done:
            self._in_flight.discard(future)
            if future.done():
                continue  # Cancelled; its data is dropped.
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

    def _stage(self) -> None:
        while self._backlog:
            request = self._backlog[0]
            if not request.future.done():
                try:
                    if not self._queue.stage(*request):
                        return
                    self._in_flight.add(request.future)
                except Exception as error:
                    request.future.set_exception(error)
            self._backlog.popleft()

    def _fail(self, error: Error) -> None:
        self._lost = error
        self._loop.remove_reader(self._descriptor)
        self._descriptor = -1
        lost = [*self._in_flight, *(request.future for request in self._backlog)]
        self._in_flight.clear()
        self._backlog.clear()
        for future in lost:
            if not future.done():
                future.set_exception(_copy(error))


def _copy(error: Error) -> Error:
    # Each has a traceback of its own.
    return type(error)(error.errno, error.strerror)
