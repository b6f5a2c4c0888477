"""Exceptions: every one is an OSError with errno and the client library's message, and the matching built-in class."""

from __future__ import annotations

import errno as _errno


class Error(OSError):
    """A request or the connection failed; programs read `errno`."""


class DisconnectedError(Error, ConnectionError):
    """The daemon died or closed the connection. Requests without an answer may or may not have been done."""


class NotFoundError(Error, FileNotFoundError):
    """No such daemon or disk."""


class NotAllowedError(Error, PermissionError):
    """The daemon or its socket refuses access."""


class BusyError(Error, BlockingIOError):
    """The disk is in exclusive use, or exclusive use was requested while others use it."""


class TimedOutError(Error, TimeoutError):
    """The daemon does not answer."""


class BatchError(Error):
    """Some requests of a batch failed; all others were done. `errno` is that of the first."""

    failures: list[tuple[int, int]]
    """Index in the batch and errno of every request that failed, by index."""


# As programs name them.
for _class in (Error, DisconnectedError, NotFoundError, NotAllowedError, BusyError, TimedOutError, BatchError):
    _class.__module__ = "fipsee"

_KINDS: dict[int, type[Error]] = {
    _errno.ENOTCONN: DisconnectedError,
    _errno.ECONNREFUSED: DisconnectedError,
    _errno.ENOENT: NotFoundError,
    _errno.EACCES: NotAllowedError,
    _errno.EBUSY: BusyError,
    _errno.ETIMEDOUT: TimedOutError,
}


def error(number: int, text: str) -> Error:
    return _KINDS.get(number, Error)(number, text)


def batch_error(number: int, text: str, failures: list[tuple[int, int]]) -> BatchError:
    made = BatchError(number, text)
    made.failures = failures
    return made
