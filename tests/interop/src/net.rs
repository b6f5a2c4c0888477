//! Frames: what `fipsee_net.h` fixes, and the examples of `docs/protocol.md`, from the Rust code.

use fipsee_net::frame::Mac;
use fipsee_net::wire::{
    self, Event, Filled, FilledPacked, ListedPort, Offload, PackedBuffer, PackedFrame, PortInfo, Post, PostedBuffer, Request,
    Returned, ReturnedEntry, Send, SendPacked, Small, Status,
};
use fipsee_ring::control::{Control, Wanted};

use crate::golden::Examples;
use crate::layout::{Table, shout, structure};

fn offload() -> [(&'static str, u64); 12] {
    [
        ("NET_OFFLOAD_CHECKSUM", wire::OFFLOAD_CHECKSUM.into()),
        ("NET_OFFLOAD_TSO4", wire::OFFLOAD_TSO4.into()),
        ("NET_OFFLOAD_TSO6", wire::OFFLOAD_TSO6.into()),
        ("NET_OFFLOAD_ECN", wire::OFFLOAD_ECN.into()),
        ("NET_OFFLOAD_USO", wire::OFFLOAD_USO.into()),
        ("NET_MAX_SEGMENTED_BYTES", wire::MAX_SEGMENTED_BYTES.into()),
        ("NET_CHECKSUM_NEEDED", wire::CHECKSUM_NEEDED.into()),
        ("NET_CHECKSUM_VALID", wire::CHECKSUM_VALID.into()),
        ("NET_SEGMENT_TCP4", wire::SEGMENT_TCP4.into()),
        ("NET_SEGMENT_TCP6", wire::SEGMENT_TCP6.into()),
        ("NET_SEGMENT_UDP", wire::SEGMENT_UDP.into()),
        ("NET_SEGMENT_ECN", wire::SEGMENT_ECN.into()),
    ]
}

pub(crate) fn layout(table: &mut Table) {
    let number = |value: usize| u64::try_from(value).expect("small");
    let plain = [
        ("SERVICE_NET", wire::SERVICE_NET.into()),
        ("NET_QUEUES_PER_PAIR", wire::QUEUES_PER_PAIR.into()),
        ("NET_MAX_PAIRS", wire::MAX_PAIRS.into()),
        ("NET_EVENT_CREDITS", wire::EVENT_CREDITS.into()),
        ("NET_MIN_MTU", wire::MIN_MTU.into()),
        ("NET_MAX_MTU", wire::MAX_MTU.into()),
        ("NET_SEND", wire::OPERATION_SEND.into()),
        ("NET_SEND_SMALL", wire::OPERATION_SEND_SMALL.into()),
        ("NET_POST", wire::OPERATION_POST.into()),
        ("NET_RETURNED", wire::KIND_RETURNED.into()),
        ("NET_RECEIVED", wire::KIND_RECEIVED.into()),
        ("NET_RECEIVED_SMALL", wire::KIND_RECEIVED_SMALL.into()),
        ("NET_MAX_FIRST_BYTES", number(wire::MAX_FIRST_BYTES)),
        ("NET_MAX_SMALL_BYTES", number(wire::MAX_SMALL_BYTES)),
        ("NET_MAX_POSTED", number(wire::MAX_POSTED)),
        ("NET_MAX_FRAME_BUFFERS", number(wire::MAX_FRAME_BUFFERS)),
        ("NET_MAX_RETURNED", number(wire::MAX_RETURNED)),
        ("NET_LISTED_IN_USE", wire::LISTED_IN_USE.into()),
        ("NET_ACKNOWLEDGE", wire::OPERATION_ACKNOWLEDGE.into()),
        ("NET_JOIN", wire::OPERATION_JOIN.into()),
        ("NET_LEAVE", wire::OPERATION_LEAVE.into()),
        ("NET_ALL_GROUPS", wire::OPERATION_ALL_GROUPS.into()),
        ("NET_NO_GROUP", wire::OPERATION_NO_GROUP.into()),
        ("NET_ATTACH_OFFLOADS", wire::ATTACH_OFFLOADS.into()),
        ("NET_ATTACH_EVENTS", wire::ATTACH_EVENTS.into()),
        ("NET_ATTACH_MTU_SHIFT", wire::ATTACH_MTU_SHIFT.into()),
        ("NET_EVENT", wire::KIND_EVENT.into()),
        ("NET_SEND_PACKED", wire::OPERATION_SEND_PACKED.into()),
        ("NET_RECEIVED_PACKED", wire::KIND_RECEIVED_PACKED.into()),
        ("NET_SEND_COMPRESSED", wire::OPERATION_SEND_COMPRESSED.into()),
        ("NET_RECEIVED_COMPRESSED", wire::KIND_RECEIVED_COMPRESSED.into()),
        ("NET_ADDRESSES_BYTES", number(wire::ADDRESSES_BYTES)),
        ("NET_MAX_COMPRESSED_BYTES", number(wire::MAX_COMPRESSED_BYTES)),
        ("NET_MAX_PACKED_SENT", number(wire::MAX_PACKED_SENT)),
        ("NET_MAX_PACKED_RECEIVED", number(wire::MAX_PACKED_RECEIVED)),
        ("NET_MAX_GROUPS", number(wire::MAX_GROUPS)),
    ];
    table.extend(plain.into_iter().chain(offload()).map(|(name, value): (&str, u64)| (name.to_owned(), value)));
    for status in Status::ALL {
        table.push((format!("NET_STATUS_{}", shout(&format!("{status:?}"))), status.to_wire().into()));
    }
    structure::<Offload>(table, "net_offload");
    structure::<Send>(table, "net_send");
    structure::<Small>(table, "net_small");
    structure::<PostedBuffer>(table, "net_posted_buffer");
    structure::<Post>(table, "net_post");
    structure::<Filled>(table, "net_filled");
    structure::<PackedFrame>(table, "net_packed_frame");
    structure::<SendPacked>(table, "net_send_packed");
    structure::<PackedBuffer>(table, "net_packed_buffer");
    structure::<FilledPacked>(table, "net_filled_packed");
    structure::<Request>(table, "net_request");
    structure::<Event>(table, "net_event");
    structure::<ReturnedEntry>(table, "net_returned_entry");
    structure::<Returned>(table, "net_returned");
    structure::<PortInfo>(table, "net_port_info");
    structure::<ListedPort>(table, "net_listed_port");
}

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn send() -> Send {
    let packet = [0x45, 0, 5, 0xdc, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0xd4, 0x31];
    let mut first = [0; wire::MAX_FIRST_BYTES];
    first.copy_from_slice(&[&B[..], &A, &[8, 0], &packet].concat());
    Send {
        operation: wire::OPERATION_SEND,
        first_bytes: 36,
        tag: 7,
        offset_bytes: 0x824,
        rest_bytes: 1478,
        memory: 0,
        offload: Offload::default(),
        first,
        stamp: 0,
    }
}

fn segmented() -> Offload {
    Offload {
        flags: wire::CHECKSUM_NEEDED,
        segmentation: wire::SEGMENT_TCP4,
        header_bytes: 66,
        segment_bytes: 1448,
        checksum_start: 34,
        checksum_offset: 16,
    }
}

pub(crate) fn examples() -> Examples {
    let attach = Wanted {
        service: wire::SERVICE_NET,
        queue_count: 2,
        depth: 256,
        flags: 0,
        pool_bytes: 1 << 20,
        name: "lan/a".to_owned(),
    };
    let broadcast = [&Mac::BROADCAST.0[..], &A, &[0x88, 0xb5, 42]].concat();
    let packet = [0x45, 0, 0, 0x32, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let datagram = [&B[..], &A, &[8, 0], &packet, &[0; 30]].concat();
    let buffer = |tag: u16, offset_bytes| PostedBuffer { tag, memory: 0, offset_bytes, length_bytes: 1536 };
    let frame = |tag, length_bytes, offset_bytes| PackedFrame { tag, length_bytes, offset_bytes };
    let filled = |(tag, length_bytes)| PackedBuffer { tag, length_bytes };
    let messages = [
        ("frame-send", send().to_message()),
        ("frame-small", Small::new(wire::OPERATION_SEND_SMALL, 8, &broadcast).to_message()),
        ("frame-compressed", wire::compressed(wire::OPERATION_SEND_COMPRESSED, 9, &datagram)),
        ("frame-post", Post::new(&[buffer(0, 4096), buffer(1, 5632)]).to_message()),
        ("frame-send-packed", SendPacked::new(0, &[frame(7, 64, 0x1000), frame(6, 1514, 0x1800)]).to_message()),
        ("frame-filled-packed", FilledPacked::new(&[(0, 64), (1, 1514), (2, 42)].map(filled)).to_message()),
        ("frame-filled", Filled::new(1514, &[0, 1]).to_message()),
        ("frame-segmented", Filled::new(2962, &[0, 1]).with_offload(segmented()).to_message()),
        ("frame-event", Event::new(false, Mac(A), 1500).to_message()),
        ("frame-join", Request::new(wire::OPERATION_JOIN, 9, Some(Mac([0x33, 0x33, 0, 0, 0, 1]))).to_message()),
        ("frame-returned", Returned::new(&[(7, Status::Ok), (8, Status::WrongSource)]).to_message()),
    ];
    let messages = messages.map(|(name, message)| (name.to_owned(), message.to_bytes()[..60].to_vec()));
    let plain = [
        ("attach-port".to_owned(), Control::Attach(attach).encode()),
        ("port-info".to_owned(), PortInfo::new(Mac(A), 1500, 10, 1).to_bytes().to_vec()),
    ];
    plain.into_iter().chain(messages).collect()
}
