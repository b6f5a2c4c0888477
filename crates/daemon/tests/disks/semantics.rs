//! The effects of requests, from the client library through the daemon to memory and file disks.

use fipsee_block::client::{AttachOptions, Buffer, Disk, Queue};
use fipsee_block::wire::{
    BlockInfo, CAPABILITY_DISCARD, CAPABILITY_FLUSH, CAPABILITY_FUA, CAPABILITY_WRITE, CAPABILITY_WRITE_ZEROES, SECTOR_SHIFT,
    Segment, Status,
};
use fipsee_testkit::{Daemon, assert_says, bytes_of, eventually, finish_all, finish_one, stamp};
use rustix::fs::SealFlags;

const DISKS: [&str; 2] = ["m", "f"];

fn daemon() -> Daemon {
    Daemon::start(&["--disk", "m=memory:96M,max=128M", "--disk", "f=file:{dir}/disk,size=96M"])
}

fn options(disk: &str) -> AttachOptions {
    AttachOptions { pool_bytes: 40 << 20, ..Daemon::options(disk) }
}

fn write(queue: &mut Queue, offset_bytes: u64, segment: Segment, fua: bool) {
    queue.write(offset_bytes >> SECTOR_SHIFT, segment, fua, 1).expect("room");
    assert_eq!(finish_one(queue), Status::Ok);
}

fn read(queue: &mut Queue, offset_bytes: u64, segment: Segment) {
    queue.read(offset_bytes >> SECTOR_SHIFT, segment, 1).expect("room");
    assert_eq!(finish_one(queue), Status::Ok);
}

/// The disk's content, read into a buffer that held something else.
fn on_disk(queue: &mut Queue, buffer: &Buffer, offset_bytes: u64) -> Vec<u8> {
    buffer.fill(0, &vec![0xee; usize::try_from(buffer.length_bytes()).expect("small")]);
    read(queue, offset_bytes, buffer.segment(0, buffer.length_bytes()));
    bytes_of(buffer)
}

#[test]
fn flush_fua_discard_and_zeroes_do_what_they_say() {
    let daemon = daemon();
    for name in DISKS {
        let (disk, mut queue) = daemon.client(&options(name));
        let all = CAPABILITY_WRITE | CAPABILITY_FLUSH | CAPABILITY_FUA | CAPABILITY_DISCARD | CAPABILITY_WRITE_ZEROES;
        assert!(disk.info().can(all), "{name}: {:#x}", disk.info().capabilities);
        let buffer = disk.allocate(64 << 10).expect("a pool");
        for (round, fua) in [(1, false), (2, true)] {
            let data = stamp(64 << 10, 1, round);
            buffer.fill(0, &data);
            write(&mut queue, 1 << 20, buffer.segment(0, 64 << 10), fua);
            queue.flush(1).expect("room");
            assert_eq!(finish_one(&mut queue), Status::Ok);
            assert!(on_disk(&mut queue, &buffer, 1 << 20) == data, "{name}: round {round}");
        }
        // Zeroes in the middle, with edges inside pages, leave both sides unchanged.
        for (unmap, fua) in [(false, false), (true, false), (false, true), (true, true)] {
            let data = stamp(64 << 10, 2, 3);
            buffer.fill(0, &data);
            write(&mut queue, 2 << 20, buffer.segment(0, 64 << 10), false);
            queue.write_zeroes((2 << 20 >> SECTOR_SHIFT) + 3, 90, unmap, fua, 1).expect("room");
            assert_eq!(finish_one(&mut queue), Status::Ok);
            let found = on_disk(&mut queue, &buffer, 2 << 20);
            let (start, end) = (3 << 9, 93 << 9);
            assert!(found[start..end].iter().all(|byte| *byte == 0), "{name}: zeroes, unmap {unmap}, FUA {fua}");
            assert!(found[..start] == data[..start] && found[end..] == data[end..], "{name}: the edges");
        }
        queue.discard(2 << 20 >> SECTOR_SHIFT, 128, 1).expect("room");
        assert_eq!(finish_one(&mut queue), Status::Ok);
        let data = stamp(64 << 10, 2, 3);
        let found = on_disk(&mut queue, &buffer, 2 << 20);
        let old_or_zero = |(found, old): (&[u8], &[u8])| found == old || found.iter().all(|byte| *byte == 0);
        assert!(found.chunks(512).zip(data.chunks(512)).all(old_or_zero), "{name}: a discard leaves old data or zeroes");
    }
}

#[test]
fn get_info_agrees_with_attached() {
    let daemon = daemon();
    for name in DISKS {
        for read_only in [false, true] {
            let (disk, mut queue) = daemon.client(&AttachOptions { read_only, ..options(name) });
            let buffer = disk.allocate(512).expect("a pool");
            queue.get_info(buffer.segment(0, 512), 1).expect("room");
            assert_eq!(finish_one(&mut queue), Status::Ok);
            let bytes = bytes_of(&buffer);
            let info = BlockInfo::from_bytes(bytes.first_chunk().expect("a sector")).expect("a disk");
            assert_eq!(info, disk.info(), "{name}, read-only: {read_only}");
            assert_eq!(info.can(CAPABILITY_WRITE), !read_only);
        }
    }
}

#[test]
fn requests_of_many_mebibytes_arrive_whole_on_both_data_paths() {
    let daemon = daemon();
    for name in DISKS {
        let (disk, mut queue) = daemon.client(&options(name));
        let memory = disk.create_memory(16 << 20).expect("registered");
        for length_bytes in [512, 4096, 1 << 20, 4 << 20, 16 << 20] {
            let pool = disk.allocate(length_bytes).expect("a pool");
            let own = memory.buffer(0, length_bytes).expect("inside");
            for (version, from, to) in [(1, &pool, &own), (2, &own, &pool)] {
                let data = stamp(usize::try_from(length_bytes).expect("small"), length_bytes, version);
                from.fill(0, &data);
                write(&mut queue, 5 << 20, from.segment(0, length_bytes), false);
                assert!(on_disk(&mut queue, to, 5 << 20) == data, "{name}: {length_bytes} bytes, way {version}");
            }
        }
    }
}

/// Pieces of different lengths, from the end of the buffer to its start, and the bytes they hold in that order.
fn scattered(buffer: &Buffer, count: u64) -> (Vec<Segment>, Vec<u8>) {
    let all = bytes_of(buffer);
    let (mut segments, mut bytes) = (Vec::new(), Vec::new());
    for index in (0..count).rev() {
        let (offset, length) = (index * 4096, 512 * (1 + index % 8));
        segments.push(buffer.segment(offset, length));
        let range = usize::try_from(offset).expect("small")..usize::try_from(offset + length).expect("small");
        bytes.extend_from_slice(&all[range]);
    }
    (segments, bytes)
}

#[test]
fn scattered_requests_keep_the_order_of_their_pieces() {
    let daemon = daemon();
    for name in DISKS {
        let (disk, mut queue) = daemon.client(&options(name));
        let memory = disk.create_memory(2 << 20).expect("registered");
        for count in [1, 2, 3, 4, 5, 6, 17, 255, 256] {
            let pool = disk.allocate(count * 4096).expect("a pool");
            let own = memory.buffer(0, count * 4096).expect("inside");
            for (version, buffer) in [(count, &pool), (count + 1000, &own)] {
                buffer.fill(0, &stamp(usize::try_from(count * 4096).expect("small"), 3, version));
                let (segments, bytes) = scattered(buffer, count);
                queue.write_vectored((30 << 20) >> SECTOR_SHIFT, &segments, false, 1).expect("staged");
                assert_eq!(finish_one(&mut queue), Status::Ok);
                let flat = disk.allocate(bytes.len() as u64).expect("a pool");
                assert!(on_disk(&mut queue, &flat, 30 << 20) == bytes, "{name}: write of {count} pieces");
                buffer.fill(0, &vec![0; usize::try_from(count * 4096).expect("small")]);
                queue.read_vectored((30 << 20) >> SECTOR_SHIFT, &segments, 1).expect("staged");
                assert_eq!(finish_one(&mut queue), Status::Ok);
                assert!(scattered(buffer, count).1 == bytes, "{name}: read of {count} pieces");
            }
        }
        let too_many = vec![memory.buffer(0, 512).expect("inside").segment(0, 512); 257];
        let error = queue.read_vectored(0, &too_many, 1).expect_err("257 pieces").to_string();
        assert_says(&error, &["longer than the disk's maximum", "split it"]);
    }
}

#[test]
fn registered_file_carries_data_and_is_shared_with_its_holders() {
    let daemon = daemon();
    for name in DISKS {
        let (disk, mut queue) = daemon.client(&options(name));
        let file = fipsee_testkit::raw::sealed_memory(1 << 20, SealFlags::SHRINK | SealFlags::GROW);
        let same = file.try_clone().expect("a descriptor");
        let memory = disk.register_file(file, 1 << 20).expect("registered");
        let data = stamp(64 << 10, 9, 9);
        assert_eq!(rustix::io::pwrite(&same, &data, 8192).expect("written"), data.len());
        let buffer = memory.buffer(8192, 64 << 10).expect("inside");
        write(&mut queue, 0, buffer.segment(0, 64 << 10), false);
        read(&mut queue, 0, memory.buffer(512 << 10, 64 << 10).expect("inside").segment(0, 64 << 10));
        let mut found = vec![0; data.len()];
        assert_eq!(rustix::io::pread(&same, &mut found, 512 << 10).expect("read"), data.len());
        assert!(found == data, "{name}");
    }
}

/// Write blocks from `buffer`, whose every block holds its number, with the queue always full; `between` runs from time to time.
fn keep_busy(queue: &mut Queue, buffer: &Buffer, rounds: u64, mut between: impl FnMut(u64)) {
    let blocks = buffer.length_bytes() / 4096;
    let mut next = 0;
    while next < rounds * blocks || queue.outstanding() > 0 {
        while queue.free() > 0 && next < rounds * blocks {
            let block = next % blocks;
            queue.write(block * 8, buffer.segment(block * 4096, 4096), false, next).expect("room");
            next += 1;
            if next.is_multiple_of(blocks) {
                queue.submit();
                between(next / blocks);
            }
        }
        queue.wait(&mut |completion| assert_eq!(completion.status, Status::Ok)).expect("connected");
    }
}

#[test]
fn memory_is_unregistered_while_idle_and_while_other_requests_are_in_flight() {
    let daemon = daemon();
    for name in DISKS {
        let (disk, mut queue) = daemon.client(&options(name));
        let idle = disk.create_memory(1 << 20).expect("registered");
        let id = idle.id();
        write(&mut queue, 0, idle.buffer(0, 4096).expect("inside").segment(0, 4096), false);
        disk.unregister(&idle).expect("unregistered while idle");
        let gone = Segment { offset_sectors: 0, length_sectors: 8, region: id };
        queue.write(0, gone, false, 1).expect("room");
        assert_eq!(finish_one(&mut queue), Status::BadMemory, "{name}: unregistered memory is out of reach");
        let busy = disk.create_memory(256 << 10).expect("registered");
        let buffer = busy.buffer(0, 256 << 10).expect("inside");
        let data = stamp(256 << 10, 5, 5);
        buffer.fill(0, &data);
        let mut spare = Some(disk.create_memory(64 << 10).expect("registered"));
        keep_busy(&mut queue, &buffer, 200, |_| match spare.take() {
            Some(memory) => disk.unregister(&memory).expect("unregistered in flight"),
            None => spare = Some(disk.create_memory(64 << 10).expect("registered in flight")),
        });
        let check = disk.allocate(256 << 10).expect("a pool");
        assert!(on_disk(&mut queue, &check, 0) == data, "{name}: the blocks written meanwhile");
    }
}

/// A faulty client: it unregisters memory that the daemon still uses.
#[test]
fn memory_taken_back_too_early_stays_mapped_until_the_daemon_is_done() {
    // Through the page cache, and so long that the copy has just begun when the memory is unregistered.
    let daemon = Daemon::start(&["--disk", "f=file:{dir}/disk,size=96M,direct=off"]);
    let (disk, mut queue) = daemon.client(&options("f"));
    let mut done = 0;
    let visits = || {
        let info = daemon.ask(&serde_json::json!({ "method": "disk.info", "disk": "f" }));
        info["clients"][0]["visits"].as_u64().expect("a count")
    };
    for round in 0..20_u64 {
        let memory = disk.create_memory(64 << 20).expect("registered");
        let buffer = memory.buffer(0, 64 << 20).expect("inside");
        for part in 0..4_u64 {
            queue.write(part << 15, buffer.segment(part << 24, 16 << 20), true, part).expect("room");
        }
        let before = visits();
        queue.submit();
        // On a slow machine no request is taken before the memory is unregistered, unless that is waited for.
        if round % 2 == 1 {
            eventually("a request has been taken", || visits() > before);
        }
        disk.unregister(&memory).expect("unregistered once nothing is in flight");
        // Requests taken before the memory was unregistered are done, later ones are refused.
        for completion in finish_all(&mut queue).expect("connected") {
            assert!(matches!(completion.status, Status::Ok | Status::BadMemory), "round {round}: {completion:?}");
            done += u64::from(completion.status == Status::Ok);
        }
    }
    // A copy out of unmapped memory fails with BadMemory, too, so those in flight must have been done.
    assert!(done > 0, "no request that was in flight was done");
}

/// The slot of a departed client is not given to the next one until its requests are finished.
#[test]
fn client_that_leaves_in_the_middle_of_long_writes_does_not_disturb_the_next_one() {
    let daemon = Daemon::start(&["--disk", "f=file:{dir}/disk,size=96M,direct=off"]);
    for round in 0..20_u64 {
        let (disk, mut queue) = daemon.client(&options("f"));
        let memory = disk.create_memory(64 << 20).expect("registered");
        let buffer = memory.buffer(0, 64 << 20).expect("inside");
        for part in 0..4_u64 {
            queue.write(part << 15, buffer.segment(part << 24, 16 << 20), true, part).expect("room");
        }
        queue.submit();
        drop((queue, disk, memory, buffer));
        let (disk, mut next) = daemon.client(&options("f"));
        let piece = disk.allocate(4096).expect("a pool");
        piece.fill(0, &stamp(4096, 1, round));
        // Behind the blocks that the other client writes.
        write(&mut next, 80 << 20, piece.segment(0, 4096), false);
        assert!(on_disk(&mut next, &piece, 80 << 20) == stamp(4096, 1, round), "round {round}");
        disk.detach(vec![next]).expect("detached");
    }
    eventually("all clients are gone", || daemon.attached_count("f") == 0);
}

fn used(disk: &Disk) -> u64 {
    disk.info().size_bytes()
}

#[test]
fn several_queues_of_one_attachment_see_one_disk() {
    let daemon = daemon();
    for name in DISKS {
        let wanted = AttachOptions { queue_count: 4, ..options(name) };
        let (disk, mut queues) = daemon.attach(&wanted).expect("attached");
        assert_eq!(queues.len(), 4);
        let buffer = disk.allocate(4096).expect("a pool");
        for (index, queue) in (0..).zip(&mut queues) {
            buffer.fill(0, &stamp(4096, index, 1));
            write(queue, used(&disk) - (index + 1) * 4096, buffer.segment(0, 4096), false);
        }
        for (index, queue) in (0..).zip(queues.iter_mut().rev()) {
            let place = 3 - index;
            assert!(on_disk(queue, &buffer, used(&disk) - (place + 1) * 4096) == stamp(4096, place, 1), "{name}");
        }
        disk.detach(queues).expect("detached");
    }
}
