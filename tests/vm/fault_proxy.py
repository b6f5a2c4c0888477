#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""fault_proxy.py LISTEN BACK_END: passes everything on between a hypervisor and a vhost-user-blk back end, and injects a fault
for each line on its standard input. Each line is answered by one: "done", or what went wrong.

detach    the log of writes is switched on and off again, as at a migration: the daemon wants the disk back on virtqueues
fault KIND  a message that no daemon sends is written into a completion ring of the guest, some slots ahead of the daemon. The guest
          reads it when it comes to that slot, unless the daemon was faster with its own message: then it is written again, until
          the ring does not move, or the guest has let go of its device: the memory is used otherwise then
"""

import array
import mmap
import os
import socket
import struct
import sys
import threading
import time

HEADER = struct.Struct("<III")
VERSION, REPLY, NEED_REPLY = 1, 4, 8
SET_FEATURES, SET_MEM_TABLE, SET_LOG_BASE, SET_PROTOCOL_FEATURES, ADD_MEM_REG = 2, 5, 6, 16, 37
# What a hypervisor says when a device is reset, and when its driver begins anew.
SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE, GET_VRING_BASE = 8, 9, 10, 11
LOG_ALL = 1 << 26
LOG_SHMFD, REPLY_ACK = 1 << 1, 1 << 3
PAGE_BYTES = 4096

# docs/protocol.md, sections 9.1, 3.2 and 5.
ATTACH = struct.pack("<4sHH", b"FiUP", 1, 2)
UPGRADE_REQUEST_BYTES = ENTRY_BYTES = SLOT_BYTES = 64
STAMP_AT = 60
# More slots ahead than the load has requests under way.
AHEAD = 20
KINDS = {
    "tag": [struct.pack("<BBHHH", 1, 0, 0, 255, 0)],
    "far-tag": [struct.pack("<BBHHH", 1, 0, 0, 5000, 0)],
    "count": [struct.pack("<BBHHH", 15, 0, 0, 255, 0)],
    "none": [struct.pack("<BBHHH", 0, 0, 0, 255, 0)],
    "kind": [struct.pack("<BBHHH", 1, 7, 0, 0, 0)],
    "reserved": [struct.pack("<BBHHH", 1, 0, 1, 0, 0)],
    "status": [struct.pack("<BBHHH", 1, 0, 0, 0, 99)],
    "size": [struct.pack("<BBHIQ", 1, 1, 0, 0, 0)],
    "twice": [struct.pack("<BBHIQ", 1, 1, 0, 0, 1 << 30)] * 2,
}


class Region:
    """Some of the guest's memory."""

    def __init__(self, guest, length, offset, descriptor):
        self.guest, self.length, self.offset, self.descriptor = guest, length, offset, descriptor

    def read(self, address, count):
        return os.pread(self.descriptor, count, self.offset + address - self.guest)


class FaultProxy:
    def __init__(self, front, back):
        self.front, self.back = front, back
        self.sending = threading.Lock()
        self.features = 0
        self.regions = []
        # Requests of ours: the front end must not see their replies.
        self.swallow = []
        self.swallowed = threading.Condition()
        # How often the guest has let go of its rings; they are written to with this held.
        self.generation = 0
        self.writing = threading.Lock()

    # ---- Passing on

    def run(self):
        threading.Thread(target=self.pass_replies, daemon=True).start()
        threading.Thread(target=self.pass_requests, daemon=True).start()

    def pass_requests(self):
        while message := receive(self.front):
            header, body, descriptors = message
            body = self.look_at(header[0], body, descriptors)
            with self.sending:
                send(self.back, header, body, descriptors)
            close(descriptors)
        # A back end that waits for the end of the connection sees it.
        self.back.shutdown(socket.SHUT_RDWR)

    def pass_replies(self):
        while message := receive(self.back):
            header, body, descriptors = message
            with self.swallowed:
                is_ours = header[0] in self.swallow
                if is_ours:
                    self.swallow.remove(header[0])
                    self.swallowed.notify_all()
            if not is_ours:
                send(self.front, header, body, descriptors)
            close(descriptors)
        self.front.shutdown(socket.SHUT_RDWR)

    def look_at(self, request, body, descriptors):
        """What we must know; and the log of writes, which not every hypervisor asks for."""
        if request in (SET_VRING_NUM, SET_VRING_ADDR, SET_VRING_BASE, GET_VRING_BASE):
            # Before it is passed on: the guest waits for the answer, and then gives the memory away.
            with self.writing:
                self.generation += 1
        elif request == SET_FEATURES:
            (self.features,) = struct.unpack("<Q", body)
        elif request == SET_PROTOCOL_FEATURES:
            (features,) = struct.unpack("<Q", body)
            return struct.pack("<Q", features | LOG_SHMFD | REPLY_ACK)
        elif request == SET_MEM_TABLE:
            close([region.descriptor for region in self.regions])
            fields = [struct.unpack_from("<QQQQ", body, 8 + 32 * index) for index in range(len(descriptors))]
            self.regions = [
                Region(guest, length, offset, os.dup(descriptor))
                for (guest, length, _, offset), descriptor in zip(fields, descriptors)
            ]
        elif request == ADD_MEM_REG:
            guest, length, _, offset = struct.unpack_from("<QQQQ", body, 8)
            self.regions.append(Region(guest, length, offset, os.dup(descriptors[0])))
        return body

    def ask(self, request, body, descriptors=()):
        """A request of our own, until it is answered."""
        with self.swallowed:
            self.swallow.append(request)
            waiting = self.swallow.count(request)
            with self.sending:
                send(self.back, (request, VERSION | NEED_REPLY, len(body)), body, descriptors)
            answered = self.swallowed.wait_for(lambda: self.swallow.count(request) < waiting, timeout=60)
        if not answered:
            raise OSError(f"the back end does not answer request {request}")

    # ---- Faults

    def detach(self):
        end = max(region.guest + region.length for region in self.regions)
        pages = end // PAGE_BYTES + 1
        length = -(-pages // (8 * PAGE_BYTES)) * PAGE_BYTES
        log = os.memfd_create("log")
        os.ftruncate(log, length)
        self.ask(SET_LOG_BASE, struct.pack("<QQ", length, 0), [log])
        self.ask(SET_FEATURES, struct.pack("<Q", self.features | LOG_ALL))
        self.ask(SET_FEATURES, struct.pack("<Q", self.features))
        os.close(log)

    def inject(self, kind):
        generation, ring = self.generation, self.live_ring()
        while self.generation == generation:
            messages = KINDS[kind]
            position = ring.position()
            if not position or position[0] + AHEAD + len(messages) > ring.slots:
                # Not across the end, for then it would look like no ring.
                time.sleep(0.001)
                continue
            index, stamp = position
            with self.writing:
                if self.generation != generation:
                    return
                for number, message in enumerate(messages):
                    ring.write(index + AHEAD + number, message, stamp)
            # What is under way when the guest reads the fault is still completed. Looks are counted, not time.
            still, last = 0, position
            while still < 50:
                time.sleep(0.01)
                now = ring.position()
                still, last = (still + 1, last) if now == last else (0, now)
                if now and (now[1], now[0]) > (stamp, index + AHEAD + 4 * AHEAD):
                    break
            else:
                return

    def live_ring(self):
        """A completion ring that the daemon writes to now: of those that were ever attached, what looks like one, and moves."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            rings = [ring for ring in self.rings() if ring.position()]
            before = [ring.position() for ring in rings]
            time.sleep(0.02)
            for ring, position in zip(rings, before):
                if position and ring.position() and ring.position() != position:
                    return ring
        raise OSError("no completion ring of the guest moves")

    def rings(self):
        for region, address in self.upgrade_requests():
            count = struct.unpack("<H", region.read(address + 24, 2))[0]
            for number in range(count if count <= 64 else 0):
                entry = region.read(address + UPGRADE_REQUEST_BYTES + number * ENTRY_BYTES, ENTRY_BYTES)
                # 3.2: the offsets of requests, completions and cold words, then slots of both, depth.
                _, completions, _, _, slots, _ = struct.unpack_from("<QQQIII", entry)
                inside = region.guest <= completions < region.guest + region.length - slots * SLOT_BYTES
                if inside and 2 <= slots <= 65536 and slots & (slots - 1) == 0 and completions % SLOT_BYTES == 0:
                    yield Ring(region, completions, slots)

    def upgrade_requests(self):
        """Where in the guest's memory an upgrade request for rings is, or was."""
        for region in self.regions:
            end, at = region.offset + region.length, region.offset
            while at < end:
                try:
                    at = os.lseek(region.descriptor, at, os.SEEK_DATA)
                    hole = min(os.lseek(region.descriptor, at, os.SEEK_HOLE), end)
                except OSError:
                    break
                while at < hole:
                    piece = os.pread(region.descriptor, min(1 << 22, hole - at), at)
                    found = piece.find(ATTACH)
                    while found >= 0:
                        if found % 8 == 0:
                            yield region, region.guest + at + found - region.offset
                        found = piece.find(ATTACH, found + 1)
                    at += len(piece)


class Ring:
    """A completion ring in the guest's memory."""

    def __init__(self, region, address, slots):
        self.region, self.address, self.slots = region, address, slots

    def position(self):
        """Which slot the daemon writes next, and the lap; none if this is no ring."""
        data = self.region.read(self.address, self.slots * SLOT_BYTES)
        stamps = struct.unpack(f"<{self.slots * SLOT_BYTES // 4}I", data)[STAMP_AT // 4 :: SLOT_BYTES // 4]
        lap = stamps[0]
        index = next((index for index, stamp in enumerate(stamps) if stamp != lap), self.slots)
        # A fault that the guest has not yet reached is ahead of the rest.
        rest = [stamp for stamp in stamps[index:] if stamp != lap]
        if not lap or any(stamp != lap - 1 for stamp in rest):
            return None
        return (0, lap + 1) if index == self.slots else (index, lap)

    def write(self, index, message, stamp):
        """As a daemon would: the stamp last, in one store."""
        start = self.region.offset + self.address - self.region.guest
        base = start // mmap.PAGESIZE * mmap.PAGESIZE
        with mmap.mmap(self.region.descriptor, start - base + self.slots * SLOT_BYTES, offset=base) as memory:
            at = start - base + index * SLOT_BYTES
            memory[at : at + STAMP_AT] = message.ljust(STAMP_AT, b"\0")
            with memoryview(memory) as view, view.cast("I") as words:
                words[(at + STAMP_AT) // 4] = stamp


def receive(stream):
    """A message as its header, its body and its descriptors; none at the end."""
    head, descriptors = b"", []
    while len(head) < HEADER.size:
        try:
            piece, ancillary, _, _ = stream.recvmsg(HEADER.size - len(head), socket.CMSG_SPACE(16 * 4), socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            return None
        if not piece:
            return None
        head += piece
        for _, _, data in ancillary:
            numbers = array.array("i")
            numbers.frombytes(data[: len(data) - len(data) % 4])
            descriptors.extend(numbers)
    header = HEADER.unpack(head)
    body = b""
    while len(body) < header[2]:
        piece = stream.recv(header[2] - len(body))
        if not piece:
            return None
        body += piece
    return header, body, descriptors


def send(stream, header, body, descriptors):
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    data = HEADER.pack(header[0], header[1], len(body)) + body
    try:
        sent = stream.sendmsg([data], rights)
        stream.sendall(data[sent:])
    except (BrokenPipeError, ConnectionResetError):
        # Its other direction learns of that as well.
        pass


def close(descriptors):
    for descriptor in descriptors:
        os.close(descriptor)


def handle(fault_proxy, line):
    word, _, argument = line.partition(" ")
    if word == "detach":
        fault_proxy.detach()
    elif word == "fault" and argument in KINDS:
        fault_proxy.inject(argument)
    else:
        raise OSError(f"unknown command '{line}'")


def main(listen, back_end):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(listen)
    listener.listen(1)
    front, _ = listener.accept()
    back = socket.socket(socket.AF_UNIX)
    back.connect(back_end)
    fault_proxy = FaultProxy(front, back)
    fault_proxy.run()
    for line in sys.stdin:
        try:
            handle(fault_proxy, line.strip())
            print("done", flush=True)
        except (OSError, struct.error, ValueError) as error:
            print(error or repr(error), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
