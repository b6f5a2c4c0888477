"""What Python gets out of a disk: `bench.py SOCKET DISK SECONDS` prints one line of JSON.

batch_iops: 4 KiB random reads in batches of BATCH, straight into a numpy array. single_*_ns: one 4 KiB read at a time
into the same memory, each timed alone.
"""

from __future__ import annotations

import json
import sys
import time

import fipsee
import numpy as np

BLOCK_BYTES = 4096
BATCH = 8192
"""Reads per call: their 32 MiB do not fit the caches, as a program's data would not."""
WARM_UP_READS = 2000


def batch_iops(disk: fipsee.Disk, seconds: float) -> float:
    memory = disk.array(BATCH * BLOCK_BYTES, np.uint8)
    random = np.random.default_rng(1)
    offsets = random.integers(0, disk.size // BLOCK_BYTES, BATCH, dtype=np.uint64) * np.uint64(BLOCK_BYTES)
    disk.read_batch(offsets, memory, BLOCK_BYTES)
    count, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        disk.read_batch(offsets, memory, BLOCK_BYTES)
        count += BATCH
    return count / elapsed


def single_ns(disk: fipsee.Disk, seconds: float) -> tuple[int, int]:
    memory = disk.alloc(BLOCK_BYTES)
    blocks = np.random.default_rng(2).integers(0, disk.size // BLOCK_BYTES, 4096).tolist()
    for block in blocks[:WARM_UP_READS]:
        disk.readinto(block * BLOCK_BYTES, memory)
    samples: list[int] = []
    now, end = time.perf_counter_ns(), time.perf_counter_ns() + int(seconds * 1e9)
    while now < end:
        for block in blocks:
            before = time.perf_counter_ns()
            disk.readinto(block * BLOCK_BYTES, memory)
            now = time.perf_counter_ns()
            samples.append(now - before)
    return int(np.percentile(samples, 50)), int(np.percentile(samples, 99))


def main() -> None:
    socket, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    with fipsee.open(name, socket=socket) as disk:
        iops = batch_iops(disk, seconds / 2)
        p50, p99 = single_ns(disk, seconds / 2)
    print(json.dumps({"batch_iops": round(iops), "single_p50_ns": p50, "single_p99_ns": p99}))


main()
