//! Section 3: the layout of the region, and what the daemon grants.

use std::sync::atomic::Ordering;

use fipsee_testkit::bytes::*;
use fipsee_testkit::{CorrectClient, Daemon};
use rustix::fs::SealFlags;

use super::client::Client;

fn daemon() -> Daemon {
    Daemon::start(&["--disk", "a=memory:1M", "--disk", "w=memory:1M"])
}

/// checks: R-4.5-1
#[test]
fn what_is_wanted_is_granted_up_to_the_limits_that_welcome_names() {
    let daemon = daemon();
    let control = Socket::connect(&daemon.socket());
    let welcome = control.ask(&hello(1, 1, 0), &[]).bytes;
    let (max_queues, max_depth, max_pool) = (u16_at(&welcome, 14), u32_at(&welcome, 16), u64_at(&welcome, 32));
    let most = Wanted { queues: u16::MAX, depth: u32::MAX, pool_bytes: u64::MAX, ..Wanted::disk("a") };
    let client = Client::attach_on(control, &most);
    assert_eq!((client.queues.len(), client.queues[0].depth), (usize::from(max_queues), max_depth));
    assert_eq!(client.pool_bytes, max_pool.next_multiple_of(4096));
    for (queues, depth, pool_bytes) in [(1, 1, 0), (2, 3, 1), (3, 64, 4096), (1, 7, 5000)] {
        let client = Client::attach(&daemon, &Wanted { queues, depth, pool_bytes, ..Wanted::disk("a") });
        assert_eq!(client.queues.len(), usize::from(queues));
        assert!(client.queues.iter().all(|queue| queue.depth == depth), "{depth}");
        assert_eq!(client.pool_bytes, pool_bytes.next_multiple_of(4096));
    }
}

/// checks: R-3-1, R-3.1-1, R-3.2-1, R-3.2-2, R-3.2-3, R-4.5-4, R-2-1, R-5.8-1
#[test]
fn region_table_rings_and_block_info_are_as_the_document_lays_them_out() {
    let daemon = daemon();
    for features in [0, 1, 4, 5] {
        for (queues, depth, pool_bytes) in [(1, 1, 0), (3, 5, 8192), (2, 256, 1 << 20)] {
            let control = Socket::connect(&daemon.socket());
            assert_eq!(u64_at(&control.ask(&hello(1, 1, features), &[]).bytes, 24), features);
            let client = Client::attach_on(control, &Wanted { queues, depth, pool_bytes, ..Wanted::disk("a") });
            check_header(&client, features);
            for index in 0..u64::from(queues) {
                check_entry(&client, index, features);
            }
            check_info(client.info());
        }
    }
}

fn check_header(client: &Client, features: u64) {
    let seals = rustix::fs::fcntl_get_seals(&client.file).expect("a memory file");
    assert_eq!(seals, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL);
    let region_bytes = u64_at(&client.attached, 16);
    let file_bytes = rustix::fs::fstat(&client.file).expect("a file").st_size;
    assert!(u64::try_from(file_bytes).expect("not negative") >= region_bytes && region_bytes <= 1 << 41);
    let header = client.memory.read(0, 64);
    assert_eq!(header[..8], *b"FIPSEE01");
    assert_eq!(u32_at(&header, 8), 1);
    assert_eq!(u32_at(&header, 12), u32::from(u16_at(&client.attached, 12)), "as in ATTACHED");
    assert_eq!((u64_at(&header, 16), u64_at(&header, 24)), (region_bytes, features));
    let (pool, pool_bytes) = (u64_at(&header, 32), u64_at(&header, 40));
    assert!(
        pool.is_multiple_of(4096)
            && pool_bytes.is_multiple_of(4096)
            && pool_bytes <= 1 << 30
            && pool + pool_bytes <= region_bytes
    );
    assert_eq!(header[48..], [0; 16]);
    assert_eq!(u16_at(&client.attached, 14), 0);
}

fn check_entry(client: &Client, index: u64, features: u64) {
    let entry = client.memory.read(64 + 64 * index, 64);
    let (slots, starts) = ([u32_at(&entry, 24), u32_at(&entry, 28)], [u32_at(&entry, 32), u32_at(&entry, 36)]);
    let depth = u32_at(&entry, 40);
    assert!((1..=4096).contains(&depth) && depth <= slots[0] && depth + 2 <= slots[1], "depth {depth}, slots {slots:?}");
    let region_bytes = u64_at(&client.attached, 16);
    for ((offset, slots), start) in [u64_at(&entry, 0), u64_at(&entry, 8)].into_iter().zip(slots).zip(starts) {
        assert!(slots.is_power_of_two() && (2..=65_536).contains(&slots) && start < slots, "slots {slots}, start {start}");
        assert!(offset.is_multiple_of(64) && offset + 64 * u64::from(slots) <= region_bytes);
        let bytes = client.memory.read(offset, usize::try_from(64 * slots).expect("small"));
        assert!(bytes.iter().all(|byte| *byte == 0), "a new ring is zero");
    }
    let cold = u64_at(&entry, 16);
    assert!(cold.is_multiple_of(64) && cold + 256 <= region_bytes);
    // The daemon may already sleep on the request ring; the rest is unwritten.
    client.memory.word(cold + 4).store(0, Ordering::SeqCst);
    let words = client.memory.read(cold, 256);
    assert!((0..256).filter(|at| !(4..8).contains(at)).all(|at| words[at] == 0), "{words:?}");
    assert!(features & 1 != 0 || u32_at(&entry, 44) == 0, "a CPU that was not requested");
    assert!(u32_at(&entry, 44) <= 4096, "an impossible CPU");
    let choices = u32_at(&entry, 48);
    assert!(features & 4 != 0 || choices == 0, "advice that was not requested");
    let fields = [0, 4, 8, 12, 16].map(|shift| choices >> shift & 0xf);
    assert!(fields.iter().zip([3, 3, 3, 2, 2]).all(|(field, most)| *field <= most) && choices >> 21 == 0, "{choices:#x}");
    assert_eq!(entry[52..], [0; 12]);
}

fn check_info(info: &[u8]) {
    let (first, count) = (u64_at(info, 0), u64_at(info, 8));
    assert_eq!((first, count), (0, 2048));
    let block = u32_at(info, 16);
    assert!([512, 1024, 2048, 4096].contains(&block));
    let longest = u32_at(info, 24);
    assert!(longest >= block && longest <= 16 << 20);
    assert!((1..=256).contains(&u32_at(info, 32)));
    assert_eq!(u64_at(info, 56), 0);
}

/// checks: R-3-2, R-6-6
#[test]
fn what_a_client_writes_into_header_and_table_changes_nothing() {
    let daemon = daemon();
    let mut correct_client = CorrectClient::new(&daemon, "w");
    let mut client = Client::attach(&daemon, &Wanted { queues: 2, ..Wanted::disk("a") });
    for byte in [0xff, 0x00, 0x55] {
        client.memory.write(0, &[byte; 64 * 3]);
        for queue in 0..2 {
            for tag in 0..20 {
                assert_eq!(client.ask_on(queue, &transfer(READ, tag, 0, (0, 8, 0))), 0);
            }
        }
        correct_client.check();
    }
    assert_eq!(client.control.ask(&control(DETACH, 12), &[]).kind(), DETACHED);
}
