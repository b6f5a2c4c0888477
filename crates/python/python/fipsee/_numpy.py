"""Arrays in memory shared with the daemon. Only these functions need numpy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    import numpy
    import numpy.typing

    from ._fipsee import Disk


def array(
    disk: Disk, shape: Union[int, tuple[int, ...]], dtype: numpy.typing.DTypeLike
) -> numpy.ndarray[Any, numpy.dtype[Any]]:
    import numpy

    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise TypeError("a disk holds bytes, no Python objects: use a numeric dtype")
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    count = math.prod(lengths)
    memory = memoryview(disk.alloc(count * kind.itemsize))
    return numpy.frombuffer(memory, dtype=kind, count=count).reshape(lengths)
