//! Upgrade requests of a guest for rings in its memory, and the replies that it reads.

use fipsee_interop::golden;
use fipsee_virtio::blk::upgrade::wire::{Entry, MAX_UPGRADE_REQUEST_BYTES, Operation, Reply, UpgradeRequest};

use crate::take;

pub(crate) fn one(bytes: &[u8]) {
    let upgrade_request = &bytes[..bytes.len().min(MAX_UPGRADE_REQUEST_BYTES)];
    match UpgradeRequest::parse(upgrade_request) {
        Ok(understood) => {
            assert_eq!(understood.to_bytes(), upgrade_request, "nothing of it is ignored: {understood:?}");
            assert_eq!(understood.entries.is_empty(), understood.operation != Operation::Attach, "{understood:?}");
            for entry in &understood.entries {
                assert!(entry.depth + 2 <= entry.completion_slots && entry.depth <= entry.request_slots, "{entry:?}");
            }
        }
        Err(refused) => {
            assert!(refused.result != 0 && refused.queue < 64, "{refused:?}");
            let _ = refused.to_bytes();
        }
    }
    let reply: [u8; 64] = take(&mut &*bytes);
    if let Some(understood) = Reply::from_bytes(&reply) {
        assert_eq!(understood.to_bytes(), reply, "nothing of it is ignored: {understood:?}");
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let entry = Entry { request_slots: 8, completion_slots: 16, depth: 8, ..Entry::default() };
    let ask =
        |operation, attachment, entries| UpgradeRequest { operation, attachment, features: 0, queue: 0, entries }.to_bytes();
    let mut all = vec![
        ask(Operation::Query, 0, Vec::new()),
        ask(Operation::Attach, 0, vec![entry; 2]),
        ask(Operation::Doorbell, 7, Vec::new()),
        Reply::of(3).to_bytes().to_vec(),
    ];
    all.extend(golden::examples().into_iter().filter(|(_, bytes)| bytes.starts_with(b"FiUP")).map(|(_, bytes)| bytes));
    all
}
