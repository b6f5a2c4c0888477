//! A client outlives its daemon: requests without an answer are resubmitted, and only to the same disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fipsee_block::client::{Blocking, Completion, Disk, DiskError, Error, Queue, ReconnectEvent, ReconnectPolicy};
use fipsee_block::wire::{SECTOR_BYTES, Segment, Status};
use fipsee_testkit::{Daemon, assert_says, bytes_of, eventually, finish_all, stamp};

const POLICY: ReconnectPolicy = ReconnectPolicy {
    give_up_after: Duration::from_secs(30),
    pause_first: Duration::from_millis(1),
    pause_max: Duration::from_millis(20),
};

const BLOCK_BYTES: u64 = 16 << 10;

fn file_daemon() -> Daemon {
    Daemon::start(&["--disk", "f=file:{dir}/disk,size=64M"])
}

/// Wait for everything outstanding, across the daemon's death.
fn finish_across(disk: &Disk, queues: &mut [Queue]) -> Vec<Completion> {
    let mut completions = Vec::new();
    for index in 0..queues.len() {
        queues[index].submit();
        while queues[index].outstanding() > 0 {
            match queues[index].wait(&mut |completion| completions.push(completion)) {
                Ok(_) => {}
                Err(Error::Disconnected) => disk.reconnect(queues, &POLICY, &mut |_| {}).expect("the daemon comes back"),
                Err(other) => panic!("{other}"),
            }
        }
    }
    completions
}

#[track_caller]
fn assert_each_once(completions: &[Completion], count: u64) {
    assert!(completions.iter().all(|completion| completion.status == Status::Ok), "{completions:?}");
    let mut tokens: Vec<u64> = completions.iter().map(|completion| completion.token).collect();
    tokens.sort_unstable();
    assert!(tokens.iter().copied().eq(0..count), "tokens {tokens:?}");
}

fn check_blocks(daemon: &Daemon, count: u64, version: u64) {
    let mut reader = daemon.blocking("f");
    let mut bytes = vec![0; usize::try_from(BLOCK_BYTES).expect("small")];
    for block in 0..count {
        reader.read_at(&mut bytes, block * BLOCK_BYTES).expect("read");
        assert!(bytes == stamp(bytes.len(), block, version), "block {block}");
    }
}

#[test]
fn requests_that_no_daemon_had_seen_complete_once_after_the_restart() {
    let mut daemon = file_daemon();
    let (disk, queue) = daemon.client(&Daemon::options("f"));
    let mut queues = vec![queue];
    // Half of the data is in the pool, whose address changes, half in memory of the client.
    let pool = disk.allocate(32 * BLOCK_BYTES).expect("a pool");
    let memory = disk.create_memory(32 * BLOCK_BYTES).expect("registered");
    let own = memory.buffer(0, 32 * BLOCK_BYTES).expect("inside");
    let segment = |block: u64| match block {
        0..32 => pool.segment(block * BLOCK_BYTES, BLOCK_BYTES),
        _ => own.segment((block - 32) * BLOCK_BYTES, BLOCK_BYTES),
    };
    for version in 1..=5 {
        for block in 0..32 {
            pool.fill(block * BLOCK_BYTES, &stamp(16 << 10, block, version));
            own.fill(block * BLOCK_BYTES, &stamp(16 << 10, block + 32, version));
        }
        // A stopped daemon takes nothing, so none of these is answered before it is killed.
        daemon.freeze();
        for block in 0..64 {
            queues[0].write(block * BLOCK_BYTES / SECTOR_BYTES, segment(block), block % 7 == 0, block).expect("room");
        }
        queues[0].submit();
        daemon.kill_9();
        daemon.restart();
        assert_each_once(&finish_across(&disk, &mut queues), 64);
        check_blocks(&daemon, 64, version);
    }
    let bytes = bytes_of(&pool);
    assert!(
        (0..32).all(|block| bytes[block << 14..(block + 1) << 14] == stamp(16 << 10, block as u64, 5)),
        "the pool kept its content"
    );
}

#[test]
fn reads_flushes_and_tables_without_an_answer_are_submitted_again_on_every_queue() {
    let mut daemon = file_daemon();
    let options = fipsee_block::client::AttachOptions { queue_count: 2, ..Daemon::options("f") };
    let (disk, mut queues) = daemon.attach(&options).expect("attached");
    daemon.blocking("f").write_at(&stamp(1 << 20, 3, 3), 1 << 20).expect("written");
    let buffer = disk.allocate(1 << 20).expect("a pool");
    daemon.freeze();
    let segments: Vec<Segment> = (0..64).map(|piece| buffer.segment(piece * BLOCK_BYTES, BLOCK_BYTES)).collect();
    queues[0].read_vectored((1 << 20) / SECTOR_BYTES, &segments, 0).expect("staged");
    queues[1].flush(1).expect("room");
    queues[1].write_zeroes(0, 128, false, true, 2).expect("room");
    queues.iter_mut().for_each(Queue::submit);
    daemon.kill_9();
    daemon.restart();
    let completions = finish_across(&disk, &mut queues);
    assert_each_once(&completions, 3);
    assert!(bytes_of(&buffer) == stamp(1 << 20, 3, 3), "read through a table in the pool");
}

#[test]
fn load_survives_a_daemon_killed_at_any_moment() {
    let mut daemon = file_daemon();
    let (disk, queue) = daemon.client(&Daemon::options("f"));
    let done = Arc::new(AtomicU64::new(0));
    let progress = Arc::clone(&done);
    let load = std::thread::spawn(move || {
        let mut queues = vec![queue];
        let buffer = disk.allocate(64 * BLOCK_BYTES).expect("a pool");
        for version in 1..=200 {
            for block in 0..64 {
                buffer.fill(block * BLOCK_BYTES, &stamp(16 << 10, block, version));
                let segment = buffer.segment(block * BLOCK_BYTES, BLOCK_BYTES);
                queues[0].write(block * BLOCK_BYTES / SECTOR_BYTES, segment, false, block).expect("room");
            }
            assert_each_once(&finish_across(&disk, &mut queues), 64);
            progress.store(version, Ordering::Relaxed);
        }
    });
    for kill in 1..=8 {
        eventually("the load goes on", || done.load(Ordering::Relaxed) >= kill * 20 || load.is_finished());
        daemon.kill_9();
        daemon.restart();
    }
    load.join().expect("every round was answered once");
    check_blocks(&daemon, 64, 200);
}

/// checks: R-5.8-3
#[test]
fn different_disk_is_refused_and_nothing_is_submitted() {
    let mut daemon = Daemon::start(&["--disk", "f=file:{dir}/disk,size=8M", "--disk", "m=memory:1M"]);
    for (name, what) in [("m", "identity"), ("f", "identity")] {
        let (disk, queue) = daemon.client(&Daemon::options(name));
        let mut queues = vec![queue];
        let buffer = disk.allocate(4096).expect("a pool");
        buffer.fill(0, &[7; 4096]);
        daemon.freeze();
        queues[0].write(0, buffer.segment(0, 4096), false, 1).expect("room");
        queues[0].submit();
        daemon.kill_9();
        // Kept open, or its inode number could be given to the new file.
        std::fs::rename(daemon.dir.path("disk"), daemon.dir.path(&format!("old-{name}"))).expect("renamed");
        daemon.restart();
        assert!(matches!(finish_all(&mut queues[0]), Err(Error::Disconnected)));
        let mut attempts = 0;
        let error = disk.reconnect(&mut queues, &POLICY, &mut |event| {
            attempts += u32::from(matches!(event, ReconnectEvent::AttemptFailed { .. }))
        });
        let error = error.expect_err("another disk");
        assert!(matches!(error, Error::Service(DiskError::Different(found)) if found == what), "{name}: {error}");
        assert_says(&error.to_string(), &["a disk of another identity", "nothing was resubmitted"]);
        assert_eq!(attempts, 1, "{name}: at once");
        let mut block = [1; 4096];
        daemon.blocking(name).read_at(&mut block, 0).expect("read");
        assert_eq!(block, [0; 4096], "{name}: the new disk is untouched");
    }
}

#[test]
fn disk_that_came_back_smaller_is_refused() {
    let mut daemon = Daemon::start(&["--disk", "f=file:{dir}/disk,size=8M"]);
    let (disk, queue) = daemon.client(&Daemon::options("f"));
    daemon.kill_9();
    let file = std::fs::File::options().write(true).open(daemon.dir.path("disk")).expect("the file");
    file.set_len(4 << 20).expect("cut");
    daemon.restart_with("size=8M", "size=4M");
    let error = disk.reconnect(&mut [queue], &POLICY, &mut |_| {}).expect_err("smaller");
    assert!(matches!(error, Error::Service(DiskError::Different(_))), "{error}");
    assert_says(&error.to_string(), &["size", "nothing was resubmitted"]);
}

#[test]
fn policy_ends_the_attempts_with_the_last_error() {
    let mut daemon = file_daemon();
    let (disk, queue) = daemon.client(&Daemon::options("f"));
    daemon.kill_9();
    let policy = ReconnectPolicy { give_up_after: Duration::from_millis(50), ..POLICY };
    assert_eq!(ReconnectPolicy::within(Duration::from_millis(50)).give_up_after, policy.give_up_after);
    let mut attempts = 0;
    let mut hook = |event: ReconnectEvent<'_>| match event {
        ReconnectEvent::AttemptFailed { .. } => attempts += 1,
        ReconnectEvent::Lost | ReconnectEvent::Resumed { .. } => {}
    };
    let error = disk.reconnect(&mut [queue], &policy, &mut hook).expect_err("no daemon comes back");
    assert_says(&error.to_string(), &["nothing listens; start fipseed"]);
    assert!(attempts > 1, "{attempts} attempts");
}

#[test]
fn blocking_calls_outlive_daemons() {
    let mut daemon = file_daemon();
    let resumed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&resumed);
    let hook = move |event: ReconnectEvent<'_>| {
        if matches!(event, ReconnectEvent::Resumed { .. }) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    let client = Blocking::attach(&daemon.socket(), &Daemon::options("f")).expect("attached");
    let mut client = client.with_reconnect(POLICY, Box::new(hook));
    let done = Arc::new(AtomicU64::new(0));
    let progress = Arc::clone(&done);
    let load = std::thread::spawn(move || {
        let mut read = vec![0; 3 << 20];
        for version in 1..=60 {
            let data = stamp(3 << 20, 1, version);
            client.write_at(&data, 4 << 20).expect("written");
            client.flush().expect("flushed");
            client.read_at(&mut read, 4 << 20).expect("read");
            assert!(read == data, "version {version}");
            progress.store(version, Ordering::Relaxed);
        }
        client.detach().expect("detached");
    });
    for kill in 1..=5 {
        eventually("the load goes on", || done.load(Ordering::Relaxed) >= kill * 10 || load.is_finished());
        daemon.kill_9();
        daemon.restart();
    }
    load.join().expect("no call failed");
    assert!(resumed.load(Ordering::Relaxed) >= 1, "it never had to reconnect");
}
