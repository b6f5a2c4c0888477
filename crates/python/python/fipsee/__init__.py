"""Disks and ports of a Fip-see daemon over shared memory: blocking calls, batches, numpy arrays without copies, asyncio.

    import fipsee

    with fipsee.open("a") as disk:
        disk.write(0, b"x" * 4096)
        disk.flush()
        assert disk.read(0, 4096) == b"x" * 4096

Threads may share a `Disk`; `queues=N` lets N of them work at once. After `os.fork` (multiprocessing's "fork") the child
opens disks of its own: those of its parent raise ValueError there. Everything closed raises ValueError.

    with fipsee.Port("lan/a") as port:
        port.send(frame)
        answer = port.receive(timeout=1)
"""

from __future__ import annotations

import os as _os

from . import aio, aio_port
from ._errors import (
    BatchError,
    BusyError,
    DisconnectedError,
    Error,
    NotAllowedError,
    NotFoundError,
    TimedOutError,
)
from ._fipsee import (
    Disk,
    DoorbellCounts,
    Frame,
    ListedDisk,
    ListedPort,
    Memory,
    Offload,
    Port,
    TransmitBuffer,
    _forked,
    list_disks,
    list_ports,
)
from ._fipsee import __version__ as __version__
from .aio import AsyncDisk
from .aio import open as aopen
from .aio_port import AsyncPort
from .aio_port import open_port as aopen_port

__all__ = [
    "AsyncDisk",
    "AsyncPort",
    "BatchError",
    "BusyError",
    "DisconnectedError",
    "Disk",
    "DoorbellCounts",
    "Error",
    "Frame",
    "ListedDisk",
    "ListedPort",
    "Memory",
    "NotAllowedError",
    "NotFoundError",
    "Offload",
    "Port",
    "TimedOutError",
    "TransmitBuffer",
    "aio",
    "aio_port",
    "aopen",
    "aopen_port",
    "list_disks",
    "list_ports",
    "open",
]

open = Disk
_os.register_at_fork(after_in_child=_forked)
