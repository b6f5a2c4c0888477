"""A port in an asyncio event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional, Union

from ._errors import BusyError, Error
from ._fipsee import DoorbellCounts, Frame, Offload, Port

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._fipsee import Data, Wait


async def open_port(
    name: str,
    *,
    socket: Union[str, PathLike[str], None] = None,
    depth: int = 256,
    buffer_size: Optional[int] = None,
    wait: Wait = "adaptive",
    offloads: int = 0,
    least_mtu: Optional[int] = None,
) -> AsyncPort:
    """Attach to the port `name`; the options are those of `fipsee.Port`. Use it with `async with`."""

    def attach() -> Port:
        return Port(
            name,
            socket=socket,
            depth=depth,
            buffer_size=buffer_size,
            wait=wait,
            offloads=offloads,
            least_mtu=least_mtu,
        )

    loop = asyncio.get_running_loop()
    return AsyncPort(await loop.run_in_executor(None, attach), loop)


class AsyncPort:
    """A port whose frames are awaited in the event loop that opened it."""

    def __init__(self, port: Port, loop: asyncio.AbstractEventLoop) -> None:
        self._port = port
        self._loop = loop
        self._change: Optional[asyncio.Future[None]] = None
        """Done when a frame may be there, or room for one."""
        self._lost: Optional[Error] = None
        self._descriptor = port.fileno()
        loop.add_reader(self._descriptor, self._run)

    @property
    def name(self) -> str:
        """Network and port, such as "lan/a"."""
        return self._port.name

    @property
    def mac(self) -> str:
        """The port's address, as in "02:00:00:00:00:0a"."""
        return self._port.mac

    @property
    def address(self) -> bytes:
        """The port's address, as in a frame."""
        return self._port.address

    @property
    def mtu(self) -> int:
        return self._port.mtu

    @property
    def max_frame_size(self) -> int:
        """Longest frame: MTU, Ethernet header and a VLAN tag."""
        return self._port.max_frame_size

    @property
    def offloads(self) -> int:
        """What frames may leave to be done: of `fipsee.Offload.CHECKSUM` and so on, those in force."""
        return self._port.offloads

    @property
    def up(self) -> bool:
        """Does it send and get frames? As of the last look for a frame, of which there is one whenever something came."""
        return self._port.up

    @property
    def changes(self) -> int:
        """How often the daemon has reported a change, of `up`, `mtu` or `mac`; as `up`."""
        return self._port.changes

    @property
    def counters(self) -> dict[str, Any]:
        """As of `fipsee.Port`."""
        return self._port.counters

    @property
    def doorbell_counts(self) -> DoorbellCounts:
        """As of `fipsee.Port`."""
        return self._port.doorbell_counts

    @property
    def closed(self) -> bool:
        return self._port.closed

    async def receive(self) -> bytes:
        """The next frame. A frame that came is given to one of those that await it."""
        while True:
            frame = self._port.receive(timeout=0)
            if frame is not None:
                return frame
            await self._wait()

    async def receive_offloaded(self) -> tuple[bytes, Offload]:
        """The next frame with what it leaves to be done."""
        while True:
            frame = self._port.receive_offloaded(timeout=0)
            if frame is not None:
                return frame
            await self._wait()

    async def receive_batch(self, most: int = 64) -> list[bytes]:
        """At least one frame, and those that are there with it."""
        while True:
            frames = self._port.receive_batch(most)
            if frames:
                return frames
            await self._wait()

    async def take(self) -> Frame:
        """The next frame where the daemon put it, without a copy, until it is released; BusyError as of `fipsee.Port.take`."""
        while True:
            frame = self._port.take(timeout=0)
            if frame is not None:
                return frame
            await self._wait()

    async def send(self, frame: Data, offload: Optional[Offload] = None) -> None:
        """Send a frame, after a buffer became free; `offload`: what it leaves to be done."""
        await self._when_free(lambda: self._port.send(frame, offload))

    async def join(self, group: Union[str, Buffer]) -> None:
        """As `fipsee.Port.join`, after a buffer became free."""
        await self._when_free(lambda: self._port.join(group))

    async def leave(self, group: Union[str, Buffer]) -> None:
        """As `fipsee.Port.leave`, after a buffer became free."""
        await self._when_free(lambda: self._port.leave(group))

    async def all_groups(self, all: bool = True) -> None:
        """As `fipsee.Port.all_groups`, after a buffer became free."""
        await self._when_free(lambda: self._port.all_groups(all))

    async def close(self) -> None:
        """Send what was submitted and release the port."""
        self._unwatch()
        if self._change is not None and not self._change.done():
            self._change.set_exception(ValueError("the port is closed; open it again"))
            self._change.exception()  # Perhaps no task awaits it.
        await self._loop.run_in_executor(None, self._port.close)

    async def __aenter__(self) -> AsyncPort:
        return self

    async def __aexit__(
        self, kind: Optional[type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()

    async def _when_free(self, call: Callable[[], None]) -> None:
        while True:
            try:
                return call()
            except BusyError:
                await self._wait()

    async def _wait(self) -> None:
        if self._lost is not None:
            # Each has a traceback of its own.
            raise type(self._lost)(self._lost.errno, self._lost.strerror)
        # Also if another task waits already: it may wait for frames alone, this one for a buffer to send.
        if self._port.arm():
            return await asyncio.sleep(0)
        if self._change is None:
            self._change = self._loop.create_future()
        # One that is cancelled must not take it from the others.
        await asyncio.shield(self._change)

    def _run(self) -> None:
        change, self._change = self._change, None
        try:
            self._port.woken()
        except Error as error:
            self._lost = error
            self._unwatch()
        if change is not None and not change.done():
            change.set_result(None)

    def _unwatch(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            self._descriptor = -1
