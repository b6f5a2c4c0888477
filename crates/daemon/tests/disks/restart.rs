//! A daemon that was killed under load, and the next one, started at once: the kernel has not ended the first one yet, which
//! still has its sockets and its files.

use fipsee_block::client::{Disk, Error, Queue};
use fipsee_block::wire::{SECTOR_BYTES, Status};
use fipsee_testkit::{Daemon, stamp};

const ROUNDS: usize = 20;
const TRANSFER_BYTES: u64 = 256 << 10;
const DEPTH: usize = 32;

/// Keep writes in flight until the daemon is gone; `begun` gets a message when the whole disk has been written once.
fn write_until_killed(disk: &Disk, queue: &mut Queue, size_bytes: u64, begun: &std::sync::mpsc::Sender<()>) -> Result<(), Error> {
    let buffer = disk.allocate(TRANSFER_BYTES)?;
    buffer.fill(0, &stamp(256 << 10, 0, 0));
    let places = size_bytes / TRANSFER_BYTES;
    let (mut next, mut finished) = (0, 0);
    loop {
        while queue.free() > 0 && queue.outstanding() < DEPTH {
            let sector = next % places * (TRANSFER_BYTES / SECTOR_BYTES);
            queue.write(sector, buffer.segment(0, TRANSFER_BYTES), false, next).expect("room");
            next += 1;
        }
        queue.wait(&mut |completion| {
            assert_eq!(completion.status, Status::Ok);
            finished += 1;
            if finished == places {
                begun.send(()).expect("the test waits");
            }
        })?;
    }
}

/// Kill the daemon while it works for a client, and have the next one serve, repeatedly.
fn killed_and_started_again(spec: &str, size_bytes: u64) {
    let mut daemon = Daemon::start(&["--disk", spec]);
    for _ in 0..ROUNDS {
        let (disk, mut queue) = daemon.client(&Daemon::options("d"));
        let (begun, has_begun) = std::sync::mpsc::channel();
        let client = std::thread::spawn(move || write_until_killed(&disk, &mut queue, size_bytes, &begun));
        has_begun.recv().expect("the whole disk is written");
        daemon.kill_9_and_start_at_once();
        assert!(client.join().expect("no assertion fails").is_err(), "the client is disconnected");
    }
    let mut data = vec![0; 256 << 10];
    daemon.blocking("d").read_at(&mut data, 0).expect("the last one serves");
}

#[test]
fn memory_disk_under_load_is_served_again_right_after_a_kill() {
    // Freeing its memory takes the kernel time.
    killed_and_started_again("d=memory:128M", 128 << 20);
}

#[test]
fn file_disk_under_load_is_served_again_right_after_a_kill() {
    killed_and_started_again("d=file:{dir}/disk,size=32M,block=4096", 32 << 20);
}
