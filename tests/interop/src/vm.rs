//! The in-band upgrade: what `fipsee_vm.h` fixes, from the Rust types, and the examples of section 7.8.

use fipsee_ring::tuning::{Choices, Ownership, Touch};
use fipsee_virtio::blk::upgrade::wire::{self, Entry, FEATURE_CHOICES, Operation, RawUpgradeRequest, Reply, UpgradeRequest};

use crate::golden::Examples;
use crate::layout::{Table, fields, structure};

const ATTACHMENT: u64 = 0x1234_5678_9abc_def0;
const ENTRY: Entry = Entry {
    request_address: 0x1_0000_4000,
    completion_address: 0x1_0000_5000,
    cold_address: 0x1_0000_3f00,
    request_slots: 64,
    completion_slots: 128,
    request_start: 5,
    completion_start: 9,
    depth: 64,
    virtqueue: 1,
};

fn upgrade_request(operation: Operation) -> UpgradeRequest {
    UpgradeRequest { operation, attachment: 0, features: 0, queue: 0, entries: Vec::new() }
}

/// Upgrade requests and replies as the document prints them.
pub fn examples() -> Examples {
    let choices = Choices::NONE.with_ownership(Ownership::NotAsked).with_touch(Touch::Runs).word();
    let upgrade_requests = [
        ("vm-query", upgrade_request(Operation::Query)),
        ("vm-attach", UpgradeRequest { features: FEATURE_CHOICES, entries: vec![ENTRY], ..upgrade_request(Operation::Attach) }),
        ("vm-bell", UpgradeRequest { attachment: ATTACHMENT, queue: 3, ..upgrade_request(Operation::Doorbell) }),
        ("vm-detach", UpgradeRequest { attachment: ATTACHMENT, ..upgrade_request(Operation::Detach) }),
    ];
    let replies = [
        ("vm-reply-query", Reply { max_queues: 2, features: FEATURE_CHOICES, max_depth: 4096, ..Reply::of(wire::DONE) }),
        (
            "vm-reply-attach",
            Reply { max_queues: 2, attachment: ATTACHMENT, features: FEATURE_CHOICES, choices, ..Reply::of(wire::DONE) },
        ),
        ("vm-reply-invalid", Reply { max_queues: 2, queue: 1, ..Reply::of(wire::INVALID) }),
        ("vm-reply-rung", Reply::of(wire::RUNG)),
    ];
    let upgrade_requests = upgrade_requests.map(|(name, upgrade_request)| (name.to_owned(), upgrade_request.to_bytes()));
    let replies = replies.map(|(name, reply)| (name.to_owned(), reply.to_bytes().to_vec()));
    upgrade_requests.into_iter().chain(replies).collect()
}

/// Sizes, offsets and constants.
pub(crate) fn layout(table: &mut Table) {
    let constants = [
        ("VM_REQUEST_TYPE", wire::REQUEST_TYPE.into()),
        ("VM_MAGIC", wire::MAGIC.into()),
        ("VM_VERSION", wire::VERSION.into()),
        ("VM_REGION_SHIFT", wire::REGION_SHIFT.into()),
        ("VM_DONE", wire::DONE.into()),
        ("VM_RUNG", wire::RUNG.into()),
        ("VM_NO_ATTACHMENT", wire::NO_ATTACHMENT.into()),
        ("VM_NOT_NOW", wire::NOT_NOW.into()),
        ("VM_INVALID", wire::INVALID.into()),
        ("VM_BAD_VERSION", wire::BAD_VERSION.into()),
        ("VM_FEATURE_CHOICES", FEATURE_CHOICES),
        ("VM_FEATURES", wire::FEATURES),
    ];
    table.extend(constants.map(|(name, value)| (name.to_owned(), value)));
    for operation in Operation::ALL {
        table.push((format!("VM_{}", format!("{operation:?}").to_uppercase()), operation.to_wire().into()));
    }
    structure::<RawUpgradeRequest>(table, "vm_question");
    fields::<Entry>(table, "vm_queue", wire::PART_BYTES);
    structure::<Reply>(table, "vm_reply");
}
