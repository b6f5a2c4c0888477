//! Announcements of the disk's size to a client: never a size that it knows, and none is missed by a new queue.

use std::sync::Arc;

use fipsee_block::disk::{AnyDisk, Disk, NullDisk, NullOptions};
use fipsee_block::server::{DiskQueue, EventState, QueueServer, QueueSetup, QueueState};
use fipsee_block::wire::{BlockInfo, PROFILE};
use fipsee_ring::channel::RegionLayout;
use fipsee_ring::handshake::Grant;
use fipsee_ring::memory::RegionTable;
use fipsee_serve::Queue;

const SECTORS: u64 = 64;
const NOTHING: EventState = EventState { unacknowledged: false, wanted: None };
const SENT: EventState = EventState { unacknowledged: true, wanted: None };

fn disk() -> AnyDisk {
    let options = NullOptions { size_bytes: SECTORS * 512, ..NullOptions::default() };
    AnyDisk::Null(NullDisk::new("disk", &options).expect("a possible size"))
}

/// A queue whose client knows this disk description.
fn server(info: BlockInfo) -> QueueServer {
    let mut grant = Grant::new(RegionLayout::plan(&PROFILE, 1, 4, 0, 0), |_| {}).expect("memory");
    let memory = RegionTable::of_pool(&grant.region, 0, 0).expect("no pool");
    let counters = Arc::default();
    let setup = QueueSetup { depth: 4, info, read_only: false, memory, counters };
    QueueServer::new(grant.queues.pop().expect("a queue"), 0, setup)
}

/// checks: R-5.6-6
#[test]
fn a_size_that_the_client_knows_is_not_announced() {
    let info = disk().info();
    let with = |sector_count| BlockInfo { sector_count, ..info };
    let mut server = server(info);
    let mut resize = |sector_count| {
        server.announce_resize(&with(sector_count));
        server.state().expect("nothing is in flight").resize
    };
    assert_eq!(resize(SECTORS), NOTHING, "it is the size that it was");
    assert_eq!(resize(32), SENT);
    assert_eq!(resize(16), EventState { wanted: Some(16), ..SENT });
    assert_eq!(resize(32), SENT, "32 was sent last");
}

#[test]
fn a_queue_added_after_a_resize_announces_it() {
    let disk = Arc::new(disk());
    let (known, unchanged) = (server(disk.info()), server(disk.info()));
    let state = |mut queue: DiskQueue| {
        let state = Queue::saved_state(&mut queue, true).expect("nothing is in flight");
        state.downcast::<QueueState>().expect("a queue's").resize
    };
    assert_eq!(state(DiskQueue::new(unchanged, Arc::clone(&disk))), NOTHING);
    disk.resize(32).expect("a possible size");
    assert_eq!(state(DiskQueue::new(known, disk)), SENT);
}
