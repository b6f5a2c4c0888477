//! Descriptors, mappings and memory are released on both sides, however clients leave.
//! The clients have a process of their own, whose resources are counted, too.

use std::process::Stdio;

use fipsee_block::client::AttachOptions;
use fipsee_block::wire::SECTOR_BYTES;
use fipsee_testkit::{Daemon, child, eventually, fd_count, finish_all, mapping_count, resident_bytes};

const WARM_UP_CYCLES: u32 = 200;
const CYCLES: u32 = 10_000;
/// Allocators keep some of what was freed. A leak of 256 bytes a cycle would exceed this.
const RESIDENT_SLACK_BYTES: u64 = 2 << 20;

/// Connect, attach, and leave in one of the possible ways.
fn one_cycle(daemon: &Daemon, cycle: u32) {
    let disk_name = if cycle.is_multiple_of(2) { "f" } else { "a" };
    let options = AttachOptions { queue_count: 1 + u16::from(cycle % 8 == 7), ..Daemon::options(disk_name) };
    let (disk, mut queues) = daemon.attach(&options).expect("attached");
    match cycle / 2 % 4 {
        0 => disk.detach(queues).expect("detached"),
        1 => drop((disk, queues)),
        2 => {
            let memory = disk.create_memory(64 << 10).expect("registered");
            let other = disk.create_memory(4096).expect("registered");
            disk.unregister(&memory).expect("unregistered");
            let buffer = other.buffer(0, 4096).expect("inside");
            queues[0].read(0, buffer.segment(0, 4096), 1).expect("room");
            assert_eq!(finish_all(&mut queues[0]).expect("connected").len(), 1);
            drop(queues);
        }
        _ => {
            let memory = disk.create_memory(256 << 10).expect("registered");
            let buffer = memory.buffer(0, 4096).expect("inside");
            for token in 0..64 {
                queues[0].write(token * 4096 / SECTOR_BYTES, buffer.segment(0, 4096), false, token).expect("room");
            }
            queues[0].submit();
            drop((queues, disk));
        }
    }
}

#[derive(Debug)]
struct Held {
    fds: usize,
    mappings: usize,
    resident_bytes: u64,
}

fn held(pid: u32) -> Held {
    Held { fds: fd_count(pid), mappings: mapping_count(pid), resident_bytes: resident_bytes(pid) }
}

/// The resources of both processes once no client is attached.
fn settled(daemon: &Daemon) -> [Held; 2] {
    for disk in ["a", "f"] {
        eventually("no client is attached", || daemon.attached_count(disk) == 0);
    }
    [held(daemon.pid()), held(std::process::id())]
}

#[test]
fn ten_thousand_clients_leave_descriptors_mappings_and_memory_as_they_were() {
    let output = child::command("ten_thousand_clients").stderr(Stdio::piped()).output().expect("a process");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    println!("{text}");
    assert!(output.status.success(), "{}: {text}", output.status);
}

pub(crate) fn ten_thousand_clients() {
    let disks = ["--disk", "a=memory:1M", "--disk", "f=file:{dir}/disk,size=1M", "--log-level", "warn"];
    let daemon = Daemon::start(&disks);
    (0..WARM_UP_CYCLES).for_each(|cycle| one_cycle(&daemon, cycle));
    let before = settled(&daemon);
    (0..CYCLES).for_each(|cycle| one_cycle(&daemon, cycle));
    let after = settled(&daemon);
    for ((process, before), after) in ["daemon", "client"].iter().zip(before).zip(after) {
        println!("{process}: {before:?} before, {after:?} after {CYCLES} cycles");
        assert_eq!(after.fds, before.fds, "{process}: descriptors");
        // An allocator may map a few heaps of its own, but not one per cycle.
        assert!(after.mappings <= before.mappings + 4, "{process}: {} mappings became {}", before.mappings, after.mappings);
        let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
        assert!(grown < RESIDENT_SLACK_BYTES, "{process}: {grown} bytes more");
    }
}
