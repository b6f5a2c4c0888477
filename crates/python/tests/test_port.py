"""Frames between ports."""

import asyncio
import errno
import json
import os
import socket
import threading

import fipsee
import pytest
from conftest import eventually, frame

LENGTHS = (14, 56, 57, 64, 1514, 9014)


def test_frames_of_every_length_arrive_as_bytes_and_in_buffers(ports):
    a, b = ports
    assert (a.name, a.mac, a.address, a.mtu, a.max_frame_size, a.vlan) == (
        "lan/a", "02:00:00:00:00:0a", b"\x02\0\0\0\0\x0a", 9000, 9018, None,
    )  # fmt: skip
    for seed, length in enumerate(LENGTHS * 60):
        sent = frame(b, a, length, seed)
        a.send(bytearray(sent) if seed % 2 else sent)
        assert b.receive(timeout=60) == sent
    buffer = bytearray(100)
    a.send(frame(b, a, 64))
    assert b.receive_into(buffer, timeout=60) == 64 and buffer == frame(b, a, 64) + bytes(36)
    a.send(frame(b, a, 200))
    assert b.receive_into(memoryview(buffer)[50:], timeout=60) == 200 and buffer[50:] == frame(b, a, 50)
    assert b.receive(timeout=0) is None and b.receive(timeout=0.01) is None and b.receive_into(buffer, timeout=0) is None
    assert a.wait_sent(timeout=60)
    assert a.counters == {"sent_back": len(LENGTHS) * 60 + 2, "refused": 0, "refusal": None, "lost": 0, "unsent": 0}


def test_batches_go_in_bursts(ports):
    a, b = ports
    sent = [frame(b, a, 100, seed) for seed in range(50)]
    assert a.send_batch(iter(sent)) == 50
    assert a.wait_sent()
    received = b.receive_batch(most=20, timeout=60)
    assert len(received) == 20
    received += b.receive_batch(most=100)
    assert received == sent and b.receive_batch() == []
    # What went before an error is sent.
    with pytest.raises(TypeError):
        a.send_batch([sent[0], "text", sent[1]])
    assert b.receive(timeout=60) == sent[0]


def test_refused_frames_are_counted_with_the_reason(ports):
    a, b = ports
    a.send(frame(b, b, 60))
    assert a.wait_sent(timeout=60)
    assert a.counters["refused"] == 1 and "any_source" in a.counters["refusal"]
    for length in (13, 9019):
        with pytest.raises(fipsee.Error, match=f"a frame of {length} bytes") as error:
            a.send(bytes(length))
        assert error.value.errno == errno.EMSGSIZE


BOTH = fipsee.Offload.CHECKSUM | fipsee.Offload.TSO4
NEEDED = fipsee.Offload(flags=fipsee.Offload.NEEDS_CHECKSUM, checksum_start=34, checksum_offset=16)


def test_offloads_are_carried_or_done(lan):
    with fipsee.Port("lan/a", socket=lan.socket, offloads=BOTH, least_mtu=9000) as a:
        with fipsee.Port("lan/b", socket=lan.socket, offloads=BOTH) as b:
            assert (a.offloads, a.max_frame_size) == (BOTH, 65553)
            sent = frame(b, a, 200)
            a.send(sent, NEEDED)
            assert b.receive_offloaded(timeout=60) == (sent, NEEDED)
            a.send(sent)
            assert b.receive_offloaded(timeout=60) == (sent, fipsee.Offload())
            assert b.receive_offloaded(timeout=0) is None
            # TCP over IPv4 in one frame.
            payload = bytes(index % 251 for index in range(40_000))
            ip = b"\x45\0" + (40 + len(payload)).to_bytes(2, "big") + bytes(4) + b"\x40\x06" + bytes(10)
            sent = b.address + a.address + b"\x08\0" + ip + bytes(12) + b"\x50\x10" + bytes(6) + payload
            tcp = fipsee.Offload(flags=1, segmentation=fipsee.Offload.TCP4, segment_size=1448, checksum_start=34, checksum_offset=16)
            a.send(sent, tcp)
            received, offload = b.receive_offloaded(timeout=60)
            assert received == sent and (offload.segmentation, offload.segment_size, offload.header_size) == (1, 1448, 54)
        with fipsee.Port("lan/b", socket=lan.socket) as b:
            a.send(sent, tcp)
            segments = [b.receive(timeout=60) for _ in range(28)]
            assert b"".join(segment[54:] for segment in segments) == payload and b.offloads == 0
            b.send(frame(a, b, 200), NEEDED)
            assert b.wait_sent(timeout=60) and "offload is not in force" in b.counters["refusal"]
        a.send(frame(a, a, 200), fipsee.Offload(flags=1, checksum_start=300))
        assert a.wait_sent(timeout=60) and "what its offload says" in a.counters["refusal"]
    with pytest.raises(ValueError, match=r"add Offload\.CHECKSUM"):
        fipsee.Port("lan/a", socket=lan.socket, offloads=64)
    with pytest.raises(fipsee.Error, match="MTU of 9000"):
        fipsee.Port("lan/a", socket=lan.socket, least_mtu=9001)
    assert repr(NEEDED).startswith("fipsee.Offload(flags=1, segmentation=0,") and hash(NEEDED) != hash(fipsee.Offload())


def set_down(lan, port, down):
    with socket.socket(socket.AF_UNIX) as admin:
        admin.connect(f"{lan.socket}.admin")
        request = {"jsonrpc": "2.0", "id": 1, "method": "net.set", "params": {"port": port, "down": down}}
        admin.sendall(json.dumps(request).encode() + b"\n")
        assert "result" in json.loads(admin.makefile().readline())


def test_changes_of_the_link_are_seen(lan, ports):
    a, b = ports

    def has_changed(count):
        assert b.receive(timeout=0) is None
        return b.changes == count

    assert (b.up, b.changes) == (True, 0)
    for count, down in enumerate((True, False), start=1):
        set_down(lan, "lan/b", down)
        eventually("a change is reported", lambda count=count: has_changed(count))
        assert (b.up, b.mtu, b.mac) == (not down, 9000, "02:00:00:00:00:0b")
    a.send(frame(b, a, 60))
    assert b.receive(timeout=60) == frame(b, a, 60)


def test_changes_and_offloads_in_an_event_loop(lan):
    async def main():
        async with await fipsee.aopen_port("lan/a", socket=lan.socket, offloads=1) as a, await fipsee.aopen_port(
            "lan/b", socket=lan.socket, offloads=1, least_mtu=1500
        ) as b:
            task = asyncio.create_task(b.receive_offloaded())
            for count, down in enumerate((True, False), start=1):
                set_down(lan, "lan/b", down)
                while b.changes < count:
                    await asyncio.sleep(0)
                assert b.up is not down
            await a.send(frame(b, a, 200), NEEDED)
            assert await asyncio.wait_for(task, 60) == (frame(b, a, 200), NEEDED)
            assert a.offloads == b.offloads == 1

    asyncio.run(asyncio.wait_for(main(), 120))


def test_ports_are_listed(lan):
    with fipsee.Port("lan/b", socket=lan.socket):
        found = fipsee.list_ports(socket=lan.socket)
    assert [(port.name, port.mac, port.mtu, port.in_use) for port in found] == [
        ("lan/a", "02:00:00:00:00:0a", 9000, False),
        ("lan/b", "02:00:00:00:00:0b", 9000, True),
    ]
    assert repr(found[1]) == "<fipsee.ListedPort 'lan/b', 02:00:00:00:00:0b, in use>"
    assert found != fipsee.list_ports(socket=str(lan.socket))


def test_misuse_is_refused_with_words(lan, ports):
    a, b = ports
    with pytest.raises(fipsee.NotFoundError, match="lan/x"):
        fipsee.Port("lan/x", socket=lan.socket)
    with pytest.raises(fipsee.BusyError, match="lan/a"):
        fipsee.Port("lan/a", socket=lan.socket)
    with pytest.raises(fipsee.NotFoundError, match="start fipseed"):
        fipsee.Port("lan/a", socket="/nowhere/s")
    for wrong in ({"wait": "hard"}, {"depth": "1"}, {"depht": 1}):
        with pytest.raises((ValueError, TypeError)):
            fipsee.Port("lan/a", socket=lan.socket, **wrong)
    with pytest.raises(TypeError, match="read-only"):
        b.receive_into(b"constant", timeout=0)
    with pytest.raises(ValueError, match="timeout"):
        b.receive(timeout=float("nan"))
    child = os.fork()
    if child == 0:
        try:
            a.send(bytes(60))
        except ValueError as error:
            a.close()
            os._exit(0 if "fork" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    waiting = threading.Thread(target=b.receive)
    waiting.start()
    refused = []

    def is_refused():
        try:
            b.receive(timeout=0)
        except RuntimeError as error:
            refused.append(str(error))
        return bool(refused)

    eventually("another thread is refused", is_refused)
    assert "one thread at a time" in refused[0]
    a.send(frame(b, a, 60))
    waiting.join()
    a.close()
    a.close()
    assert a.mtu == 9000 and a.closed and repr(a) == "<fipsee.Port 'lan/a', closed>"
    with pytest.raises(ValueError, match="closed"):
        a.send(bytes(60))


def test_death_of_the_daemon_is_an_exception_and_can_be_outlived(lan, ports):
    a, b = ports
    lan.kill()
    with pytest.raises(fipsee.DisconnectedError):
        b.receive()
    with pytest.raises(fipsee.DisconnectedError):
        a.receive()
    a.send(frame(b, a, 60))
    with pytest.raises(fipsee.DisconnectedError):
        a.reconnect(timeout=0)
    lan.start()
    a.reconnect()
    b.reconnect(timeout=60)
    assert a.counters["lost"] == 1
    a.send(frame(b, a, 600))
    assert b.receive() == frame(b, a, 600)


def test_frames_are_awaited(lan):
    async def main():
        async with await fipsee.aopen_port("lan/a", socket=lan.socket) as a, await fipsee.aopen_port(
            "lan/b", socket=lan.socket, wait="sleep", depth=16
        ) as b:

            async def echo(count):
                for _ in range(count):
                    received = await b.receive()
                    await b.send(received[6:12] + received[:6] + received[12:])

            task = asyncio.create_task(echo(300))
            for seed in range(300):
                sent = frame(b, a, 60 + seed, seed)
                await a.send(sent)
                assert await asyncio.wait_for(a.receive(), 60) == sent[6:12] + sent[:6] + sent[12:]
            await task
            # Several await frames: each frame is of one of them, and one that is cancelled takes none.
            tasks = [asyncio.create_task(b.receive()) for _ in range(5)]
            await asyncio.sleep(0)
            tasks[2].cancel()
            for seed in range(4):
                await a.send(frame(b, a, 100, seed))
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(found.pop(2), asyncio.CancelledError)
            assert sorted(found) == sorted(frame(b, a, 100, seed) for seed in range(4))
            await a.send(frame(b, a, 99))
            assert await b.receive_batch() == [frame(b, a, 99)]
            # A flood waits for buffers, of which there are 16.
            for seed in range(500):
                await b.send(frame(a, b, 500, seed))
            assert b.counters["refused"] == 0
            lan.kill()
            with pytest.raises(fipsee.DisconnectedError):
                while True:
                    await a.receive()
            with pytest.raises(fipsee.DisconnectedError):
                await b.receive()
        assert a.closed
        with pytest.raises(ValueError):
            await a.receive()

    asyncio.run(main())
