"""Frames in the memory that a port shares with its daemon, event loops, and multicast groups."""

import asyncio
import contextlib
import errno
import selectors
import threading

import fipsee
import pytest
from conftest import frame


def test_frames_are_read_where_they_came(ports):
    a, b = ports
    for seed, length in enumerate((14, 56, 57, 68, 512)):
        sent = frame(b, a, length, seed)
        a.send(sent)
        with b.take(timeout=60) as found:
            view = found.view
            assert (len(found), view.nbytes, view.readonly, bytes(view), found.tobytes()) == (length, length, True, sent, sent)
            assert found.view is view and found.offload == fipsee.Offload() and not found.released
            with pytest.raises(TypeError):
                view[0] = 1
        assert found.released and repr(found) == f"<fipsee.Frame of {length} bytes, released>"
        for use in (lambda: view[0], lambda: bytes(view), lambda: found.view, lambda: found.pieces, found.tobytes):
            with pytest.raises(ValueError):
                use()
        found.release()
    assert b.take(timeout=0) is None and b.take(timeout=0.01) is None


def test_long_frames_are_in_several_buffers(ports):
    a, b = ports
    sent = frame(b, a, 1300, 3)
    a.send(sent)
    found = b.take(timeout=60)
    assert [len(piece) for piece in found.pieces] == [512, 512, 276]
    assert b"".join(found.pieces) == sent == found.tobytes()
    with pytest.raises(BufferError, match="3 buffers; use pieces"):
        found.view
    last = found.pieces[2]
    found.release()
    with pytest.raises(ValueError):
        last[0]


def test_views_of_views_hold_a_frame(ports):
    a, b = ports
    a.send(frame(b, a, 100))
    found = b.take(timeout=60)
    part = found.view[14:20]
    with pytest.raises(BufferError, match="1 views of this memory exist"):
        found.release()
    assert not found.released and part == frame(b, a, 100)[14:20]
    # An exception is not hidden by another, and the buffer is given back with the last view.
    with pytest.raises(KeyError), found:
        raise KeyError
    assert not found.released and bytes(found.view[:6]) == b.address
    part.release()
    found.release()
    assert found.released


def test_buffers_come_back_with_the_last_use(lan):
    with fipsee.Port("lan/a", socket=lan.socket) as a, fipsee.Port("lan/b", socket=lan.socket, depth=8) as b:
        for how in ("release", "drop", "view"):
            held = []
            for seed in range(8):
                a.send(frame(b, a, 100, seed))
                held.append(b.take(timeout=60))
            for call in (lambda: b.take(timeout=0), b.take):
                with pytest.raises(fipsee.BusyError, match="8 receive buffers; release some"):
                    call()
            a.send(frame(b, a, 100, 9))
            assert a.wait_sent(timeout=60) and b.receive(timeout=0) is None
            assert [found.tobytes() for found in held] == [frame(b, a, 100, seed) for seed in range(8)]
            if how == "release":
                thread = threading.Thread(target=lambda held=held: [found.release() for found in held])
                thread.start()
                thread.join()
            views = [found.view[14:] for found in held] if how == "view" else []
            held.clear()
            assert all(view == frame(b, a, 100, seed)[14:] for seed, view in enumerate(views))
            views.clear()
            # Without a call that receives in between: each was posted again.
            a.send_batch([frame(b, a, 100, seed) for seed in range(8)])
            assert a.wait_sent(timeout=60)
            assert b.receive_batch(timeout=0) == [frame(b, a, 100, seed) for seed in range(8)]


def test_frames_are_filled_where_they_are_sent_from(ports):
    a, b = ports
    for seed, length in enumerate((14, 56, 57, 500, 9014)):
        sent = frame(b, a, length, seed)
        buffer = a.buffer()
        view = buffer.view
        assert (len(buffer), view.nbytes, view.readonly, buffer.released) == (9018, 9018, False, False)
        view[:length] = sent
        a.send_buffer(buffer, length)
        assert b.receive(timeout=60) == sent
        assert buffer.released and repr(buffer) == "<fipsee.TransmitBuffer of 9018 bytes, released>"
        for use in (lambda: view[0], lambda: buffer.view, lambda: a.send_buffer(buffer, 60)):
            with pytest.raises(ValueError):
                use()
        buffer.release()
    with a.buffer() as buffer:
        for length in (13, 9019, 1 << 40):
            with pytest.raises(fipsee.Error, match=f"a frame of {length} bytes") as error:
                a.send_buffer(buffer, length)
            assert error.value.errno == errno.EMSGSIZE
        with pytest.raises(OverflowError):
            a.send_buffer(buffer, -1)
        part = buffer.view[:60]
        part[:] = frame(b, a, 60, 7)
        with pytest.raises(BufferError, match="1 views of this memory exist"):
            a.send_buffer(buffer, 60)
        with pytest.raises(ValueError, match="another port"):
            b.send_buffer(buffer, 60)
        assert b.receive(timeout=0) is None and a.counters["unsent"] == 0
        part.release()
        a.send_buffer(buffer, 60)
    assert b.receive(timeout=60) == frame(b, a, 60, 7) and a.counters["refused"] == 0


def test_transmit_buffers_come_back_with_the_last_use(lan):
    with fipsee.Port("lan/a", socket=lan.socket, depth=8) as a:
        for how in ("release", "with", "drop", "view"):
            buffers = [a.buffer() for _ in range(8)]
            with pytest.raises(fipsee.BusyError):
                a.buffer()
            with pytest.raises(fipsee.BusyError):
                a.send(frame(a, a, 60))
            if how == "release":
                for buffer in buffers:
                    buffer.release()
                del buffer
            if how == "with":
                with contextlib.ExitStack() as stack:
                    for buffer in buffers:
                        stack.enter_context(buffer)
                del buffer
            views = [buffer.view[:1] for buffer in buffers] if how == "view" else []
            buffers.clear()
            if how == "view":
                with pytest.raises(fipsee.BusyError):
                    a.buffer()
                views.clear()
        assert a.send_batch([frame(a, a, 60)] * 8) == 8 and a.wait_sent(timeout=60)


def test_views_outlive_the_port_and_the_daemon(lan):
    a, b = fipsee.Port("lan/a", socket=lan.socket), fipsee.Port("lan/b", socket=lan.socket)
    a.send(frame(b, a, 1000, 1))
    found, buffer = b.take(timeout=60), a.buffer()
    view, room, sent = found.view, buffer.view, frame(b, a, 1000, 1)
    other = b.buffer()
    b.close()
    assert view == sent and b.closed
    for use in (lambda: b.take(timeout=0), b.buffer, lambda: b.send_buffer(other, 60), lambda: b.join("01:00:5e:00:00:01"), b.fileno, b.arm):
        with pytest.raises(ValueError, match="closed"):
            use()
    lan.kill()
    with pytest.raises(fipsee.DisconnectedError):
        a.take()
    lan.start()
    a.reconnect()
    room[:14] = sent[:14]
    with pytest.raises(fipsee.Error, match="another attachment") as error:
        a.send_buffer(buffer, 60)
    assert error.value.errno == errno.ESTALE and buffer.released
    del a, b
    assert view == sent and bytes(other.view[:1]) is not None
    found.release()
    other.release()
    with pytest.raises(ValueError):
        view[0]


def test_offloads_go_with_frames_in_place(lan):
    needed = fipsee.Offload(flags=fipsee.Offload.NEEDS_CHECKSUM, checksum_start=34, checksum_offset=16)
    with fipsee.Port("lan/a", socket=lan.socket, offloads=1) as a, fipsee.Port("lan/b", socket=lan.socket, offloads=1) as b:
        buffer = a.buffer()
        buffer.view[:200] = frame(b, a, 200)
        a.send_buffer(buffer, 200, needed)
        with b.take(timeout=60) as found:
            assert (found.tobytes(), found.offload) == (frame(b, a, 200), needed)


def test_a_port_is_waited_for_beside_others(lan, ports):
    a, b = ports
    with selectors.DefaultSelector() as selector:
        selector.register(b, selectors.EVENT_READ)

        def received():
            while True:
                found = b.receive(timeout=0)
                if found is not None:
                    return found
                if not b.arm():
                    assert selector.select(timeout=60)
                b.woken()

        for seed in range(100):
            a.send(frame(b, a, 64, seed))
            assert received() == frame(b, a, 64, seed)
        assert not b.arm() and selector.select(timeout=0) == []
        b.woken()
        lan.kill()
        with pytest.raises(fipsee.DisconnectedError):
            received()

    lan.start()
    a.reconnect()
    b.reconnect()

    async def main():
        loop, found = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def look():
            b.woken()
            if (came := b.receive(timeout=0)) is not None:
                found.set_result(came)
            elif b.arm():
                loop.call_soon(look)

        loop.add_reader(b.fileno(), look)
        look()
        a.send(frame(b, a, 64, 5))
        assert await asyncio.wait_for(found, 60) == frame(b, a, 64, 5)
        loop.remove_reader(b.fileno())

    asyncio.run(main())


def test_frames_of_groups_that_were_joined_come_and_others_do_not(ports):
    a, b = ports
    one, two, everyone = b"\x01\0\x5e\0\0\1", b"\x01\0\x5e\0\0\2", b"\xff" * 6

    def received():
        """Which groups' frames come, once the daemon has what was asked for."""
        assert b.wait_sent(timeout=60)
        a.send_batch([group + a.address + b"\x88\xb5" + bytes(50) for group in (one, two, everyone)])
        assert a.wait_sent(timeout=60)
        return [found[:6] for found in b.receive_batch(timeout=0)]

    assert received() == [one, two, everyone]
    b.join("01:00:5e:00:00:01")
    assert received() == [one, everyone]
    b.join(bytearray(two))
    assert received() == [one, two, everyone]
    b.leave(one)
    assert received() == [two, everyone]
    b.leave("01:00:5e:00:00:02")
    assert received() == [everyone]
    b.all_groups()
    assert received() == [one, two, everyone]
    b.all_groups(all=False)
    assert received() == [everyone]
    for number in range(65):
        b.join(bytes([1, 0, 0x5E, 1, 0, number]))
    assert b.wait_sent(timeout=60) and b.counters["refused"] == 1 and "limit" in b.counters["refusal"]
    for wrong, words in (
        ("01:00:5e", "no MAC address"),
        (b"\x01\0", "2 bytes"),
        (a.mac, "address of no group"),
        (a.address, "odd first byte"),
        (everyone, "in any case"),
    ):
        for call in (b.join, b.leave):
            with pytest.raises(ValueError, match=words):
                call(wrong)
    with pytest.raises(TypeError):
        b.join(1)


def test_groups_and_frames_in_place_in_an_event_loop(lan):
    async def main():
        async with await fipsee.aopen_port("lan/a", socket=lan.socket, depth=4) as a, await fipsee.aopen_port(
            "lan/b", socket=lan.socket, depth=4
        ) as b:
            # More than there are transmit buffers.
            for number in range(20):
                await b.join(bytes([1, 0, 0x5E, 0, 0, number]))
            await b.leave("01:00:5e:00:00:00")
            task = asyncio.create_task(b.take())
            await asyncio.sleep(0)
            while b.counters["unsent"]:
                await asyncio.sleep(0)
            for number in (0, 30, 7):
                await a.send(bytes([1, 0, 0x5E, 0, 0, number]) + a.address + bytes(100))
            with await asyncio.wait_for(task, 60) as found:
                assert found.view[5] == 7
            await b.all_groups(False)
            assert b.counters["refused"] == 0

    asyncio.run(main())
