//! Virtqueues that another implementation fills: the mock driver of the `virtio-queue` crate, which knows nothing of ours and
//! shares no code with it. A correct request is carried out; a ring or chain that no driver makes stops its queue, with one line
//! in the log, and affects neither the other queue of the device, nor other devices, nor local clients.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use fipsee_testkit::guest::machine::{socket_of, start_with};
use fipsee_testkit::hypervisor::*;
use fipsee_testkit::{CorrectClient, Daemon, assert_says, eventually};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use virtio_queue::desc::RawDescriptor;
use virtio_queue::desc::split::Descriptor;
use virtio_queue::mock::{DescriptorTable, MockSplitQueue};
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

type Mock<'a> = MockSplitQueue<'a, GuestMemoryMmap>;
/// Address, length, flags, next.
type Raw = (u64, u32, u16, u16);

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
const INDIRECT_FEATURE: u64 = 1 << 28;

/// Descriptors of a queue. The mock's used ring begins amid its available ring: only the first half of that can be relied on.
const SIZE: u16 = 64;
/// The first of those that correct requests use.
const CORRECT: u16 = 32;

/// Memory of the guest: address and length.
const BASE: (u64, u64) = (0x10_0000, 1 << 20);
/// Memory of the driver right behind that, which is not shared with the daemon.
const UNSHARED: (u64, u64) = (BASE.0 + BASE.1, 1 << 16);
/// Where the mock puts indirect tables.
const TABLES: (u64, u64) = (0x3000_0000, 1 << 16);
/// What the hypervisor claims to see instead of a guest's address.
const USER: u64 = 0x7f00_0000_0000;

/// Of the faulty queue, and of the correct one.
const RINGS: [u64; 2] = [BASE.0, BASE.0 + 0x8000];
const HEADER: u64 = BASE.0 + 0x1_0000;
const DATA: u64 = HEADER + 0x1000;
const STATUS: u64 = HEADER + 0x2000;
/// The same of correct requests.
const OWN: u64 = 0x1_0000;
const END: u64 = UNSHARED.0;

const UNANSWERED: u8 = 0xaa;

fn memory() -> GuestMemoryMmap {
    let pieces = [BASE, UNSHARED, TABLES].map(|(address, length)| {
        let file = File::from(memfd_create("mock", MemfdFlags::CLOEXEC).expect("a memory file"));
        file.set_len(length).expect("memory");
        (GuestAddress(address), usize::try_from(length).expect("small"), Some(FileOffset::new(file, 0)))
    });
    GuestMemoryMmap::from_ranges_with_files(pieces).expect("memory")
}

fn doorbell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd")
}

/// A hypervisor that has shared that memory with the daemon.
fn connect(socket: &Path, memory: &GuestMemoryMmap, features: u64) -> Hypervisor {
    use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};
    let hypervisor = Hypervisor::connect(socket);
    hypervisor.say(SET_OWNER, &[]);
    let offered = hypervisor.ask(GET_FEATURES, &[]).u64();
    assert_eq!(offered & features, features, "what the mock driver takes is offered");
    let protocol = hypervisor.ask(GET_PROTOCOL_FEATURES, &[]).u64();
    hypervisor.say(SET_PROTOCOL_FEATURES, &u64s(&[protocol]));
    hypervisor.send(SET_FEATURES, &u64s(&[wanted(offered) | features]), &[]);
    let injected = [BASE, TABLES];
    let table: Vec<u8> = injected.iter().flat_map(|(address, length)| u64s(&[*address, *length, USER + address, 0])).collect();
    let files: Vec<BorrowedFd<'_>> = injected
        .iter()
        .map(|(address, _)| memory.find_region(GuestAddress(*address)).expect("a region"))
        .map(|region| region.file_offset().expect("a file").file().as_fd())
        .collect();
    hypervisor.send(SET_MEM_TABLE, &[u32s(&[2, 0]), table].concat(), &files);
    hypervisor
}

/// SET_VRING_ADDR.
fn ring_addresses(mock: &Mock<'_>, index: u32) -> Vec<u8> {
    let places = [mock.desc_table_addr(), mock.used_addr(), mock.avail_addr()].map(|address| USER + address.0);
    [u32s(&[index, 0]), u64s(&places), u64s(&[0])].concat()
}

/// A queue as the daemon knows it.
struct Queue<'a> {
    mock: Mock<'a>,
    memory: &'a GuestMemoryMmap,
    place: u64,
    requests: u16,
    kick: OwnedFd,
    error: OwnedFd,
}

impl<'a> Queue<'a> {
    /// Send the whole setup of a queue. The daemon looks at it when it gets the rings and when the queue is enabled.
    fn start(hypervisor: &Hypervisor, memory: &'a GuestMemoryMmap, index: u32, rings: u64) -> Self {
        let mock = Mock::create(memory, GuestAddress(rings), SIZE);
        let (kick, call, error) = (doorbell(), doorbell(), doorbell());
        let number = u64s(&[index.into()]);
        hypervisor.send(SET_VRING_NUM, &u32s(&[index, SIZE.into()]), &[]);
        hypervisor.send(SET_VRING_BASE, &u32s(&[index, 0]), &[]);
        hypervisor.send(SET_VRING_ADDR, &ring_addresses(&mock, index), &[]);
        hypervisor.send(SET_VRING_ERR, &number, &[error.as_fd()]);
        hypervisor.send(SET_VRING_CALL, &number, &[call.as_fd()]);
        hypervisor.send(SET_VRING_KICK, &number, &[kick.as_fd()]);
        hypervisor.send(SET_VRING_ENABLE, &u32s(&[index, 1]), &[]);
        Self { mock, memory, place: HEADER + OWN * (1 + u64::from(index)), requests: 0, kick, error }
    }

    fn kick(&self) {
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).expect("an eventfd");
    }

    fn used(&self) -> u16 {
        self.mock.used().idx().load()
    }

    /// Carry out a request for one sector as a driver does; its status.
    #[track_caller]
    fn run(&mut self, kind: u32, sector: u64) -> u8 {
        let first = CORRECT + self.requests * 3;
        let (header, data, status) = (self.place, self.place + 0x1000, self.place + 0x2000);
        put_header(self.memory, header, kind, sector);
        self.memory.write_obj(UNANSWERED, GuestAddress(status)).expect("memory");
        let flags = if kind == IN { NEXT | WRITE } else { NEXT };
        let chain = [(header, 16, NEXT, first + 1), (data, 512, flags, first + 2), (status, 1, WRITE, 0)];
        // The daemon polls: it may answer before the kick.
        let before = self.used();
        self.mock.add_desc_chains(&chain.map(raw), first).expect("there is room");
        self.requests += 1;
        self.kick();
        eventually("a correct request is answered", || self.used() == before.wrapping_add(1));
        self.memory.read_obj(GuestAddress(status)).expect("memory")
    }

    /// It works: a sector that is written is read again.
    #[track_caller]
    fn check(&mut self) {
        let (data, sector) = (GuestAddress(self.place + 0x1000), 8 + u64::from(self.requests));
        let bytes: Vec<u8> = (0..512_u32).map(|at| (at * 7 + u32::from(self.requests)).to_le_bytes()[0]).collect();
        self.memory.write_slice(&bytes, data).expect("memory");
        assert_eq!(self.run(OUT, sector), OK);
        self.memory.write_slice(&[0; 512], data).expect("memory");
        assert_eq!(self.run(IN, sector), OK);
        let mut read = [0; 512];
        self.memory.read_slice(&mut read, data).expect("memory");
        assert_eq!(read[..], bytes);
    }
}

fn raw((address, length, flags, next): Raw) -> RawDescriptor {
    Descriptor::new(address, length, flags, next).into()
}

fn put_header(memory: &GuestMemoryMmap, at: u64, kind: u32, sector: u64) {
    memory.write_slice(&[u32s(&[kind, 0]), u64s(&[sector])].concat(), GuestAddress(at)).expect("memory");
}

/// Put a chain at the beginning of the table, and make it available.
fn chain(mock: &Mock<'_>, descriptors: &[Raw]) {
    let descriptors: Vec<RawDescriptor> = descriptors.iter().copied().map(raw).collect();
    mock.add_desc_chains(&descriptors, 0).expect("there is room");
}

/// A chain of one descriptor, which names an indirect table of that length that begins so.
fn table(mock: &Mock<'_>, memory: &GuestMemoryMmap, length: u32, descriptors: &[Raw]) {
    let table = DescriptorTable::new(memory, GuestAddress(TABLES.0), SIZE);
    for (index, descriptor) in (0..).zip(descriptors) {
        table.store(index, raw(*descriptor)).expect("there is room");
    }
    chain(mock, &[(TABLES.0, length, INDIRECT, 0)]);
}

struct InjectedFault {
    what: &'static str,
    /// Part of the line in the log.
    says: &'static str,
    inject: fn(&mut Mock<'_>, &GuestMemoryMmap),
}

const HEAD: Raw = (HEADER, 16, NEXT, 1);
const TAIL: Raw = (STATUS, 1, WRITE, 0);

/// Faults in the available ring and in the queue's own table.
const CHAINS: &[InjectedFault] = &[
    InjectedFault { what: "a chain onto itself", says: "loop", inject: |mock, _| chain(mock, &[(HEADER, 16, NEXT, 0)]) },
    InjectedFault { what: "a loop of two", says: "loop", inject: |mock, _| chain(mock, &[HEAD, (DATA, 8, NEXT, 0)]) },
    InjectedFault {
        what: "a chain of all descriptors that does not end",
        says: "more than 64 descriptors",
        inject: |mock, _| {
            let last = SIZE - 1;
            mock.add_chain(SIZE).expect("there is room");
            mock.desc_table().store(last, raw((DATA, 8, NEXT, last))).expect("it is there");
        },
    },
    InjectedFault {
        what: "next past the table",
        says: "number 64",
        inject: |mock, _| chain(mock, &[(HEADER, 16, NEXT, 64), TAIL]),
    },
    InjectedFault {
        what: "next far past it",
        says: "number 65535",
        inject: |mock, _| chain(mock, &[(HEADER, 16, NEXT, u16::MAX)]),
    },
    InjectedFault {
        what: "to read after to write",
        says: "after memory to write",
        inject: |mock, _| chain(mock, &[HEAD, (STATUS, 1, WRITE | NEXT, 2), (DATA, 8, 0, 0)]),
    },
    InjectedFault { what: "a header beyond memory", says: "header", inject: |mock, _| chain(mock, &[(END, 16, NEXT, 1), TAIL]) },
    InjectedFault {
        what: "a header half beyond",
        says: "header",
        inject: |mock, _| chain(mock, &[(END - 8, 16, NEXT, 1), TAIL]),
    },
    InjectedFault {
        what: "a header around 2^64",
        says: "header",
        inject: |mock, _| chain(mock, &[(u64::MAX - 7, 16, NEXT, 1), TAIL]),
    },
    InjectedFault { what: "an empty header", says: "header", inject: |mock, _| chain(mock, &[(HEADER, 0, NEXT, 1), TAIL]) },
    InjectedFault {
        what: "a status beyond memory",
        says: "status byte",
        inject: |mock, _| chain(mock, &[HEAD, (END, 1, WRITE, 0)]),
    },
    InjectedFault {
        what: "a status around 2^64",
        says: "status byte",
        inject: |mock, _| chain(mock, &[HEAD, (u64::MAX, u32::MAX, WRITE, 0)]),
    },
    InjectedFault {
        what: "an empty status",
        says: "no status byte",
        inject: |mock, _| chain(mock, &[HEAD, (STATUS, 0, WRITE, 0)]),
    },
    InjectedFault {
        what: "the mock's own chain, beyond memory",
        says: "header",
        inject: |mock, _| mock.add_chain(3).expect("room"),
    },
    InjectedFault {
        what: "a head past the table",
        says: "names descriptor 64, and the queue has 64",
        inject: |mock, _| {
            chain(mock, &[HEAD, TAIL]);
            let newest = mock.avail().idx().load() - 1;
            mock.avail().ring().ref_at(newest.into()).expect("in the ring").store(SIZE);
        },
    },
    InjectedFault {
        what: "an index that runs ahead by more than the queue",
        says: "by 65 entries",
        inject: |mock, _| mock.avail().idx().store(mock.avail().idx().load() + SIZE + 1),
    },
    InjectedFault {
        what: "an index that runs back",
        says: "by 65535 entries",
        inject: |mock, _| mock.avail().idx().store(mock.avail().idx().load() - 1),
    },
];

const STORED: u32 = 16;

/// Faults in indirect tables.
const INDIRECT_TABLES: &[InjectedFault] = &[
    InjectedFault {
        what: "a table in a table",
        says: "holds an indirect",
        inject: |mock, memory| table(mock, memory, 2 * STORED, &[HEAD, (TABLES.0, 2 * STORED, INDIRECT, 0)]),
    },
    InjectedFault {
        what: "a table that begins with itself",
        says: "holds an indirect",
        inject: |mock, memory| table(mock, memory, 2 * STORED, &[(TABLES.0, 2 * STORED, INDIRECT, 0), TAIL]),
    },
    InjectedFault { what: "an empty table", says: "has 0 bytes", inject: |mock, memory| table(mock, memory, 0, &[HEAD, TAIL]) },
    InjectedFault {
        what: "a table of one byte",
        says: "has 1 bytes",
        inject: |mock, memory| table(mock, memory, 1, &[HEAD, TAIL]),
    },
    InjectedFault {
        what: "one and a half entries",
        says: "has 24 bytes",
        inject: |mock, memory| table(mock, memory, 24, &[HEAD, TAIL]),
    },
    InjectedFault {
        what: "a table that is too long",
        says: "has 16400 bytes",
        inject: |mock, memory| table(mock, memory, 16400, &[HEAD, TAIL]),
    },
    InjectedFault {
        what: "a table of 4 GiB",
        says: "has 4294967280 bytes",
        inject: |mock, memory| table(mock, memory, u32::MAX - 15, &[HEAD, TAIL]),
    },
    InjectedFault {
        what: "a table beyond memory",
        says: "outside guest memory",
        inject: |mock, _| chain(mock, &[(END, 2 * STORED, INDIRECT, 0)]),
    },
    InjectedFault {
        what: "a table half beyond memory",
        says: "outside guest memory",
        inject: |mock, _| chain(mock, &[(END - 16, 2 * STORED, INDIRECT, 0)]),
    },
    InjectedFault {
        what: "a table around 2^64",
        says: "outside guest memory",
        inject: |mock, _| chain(mock, &[(u64::MAX - 15, 2 * STORED, INDIRECT, 0)]),
    },
    InjectedFault {
        what: "a table with a next",
        says: "has a next one",
        inject: |mock, _| chain(mock, &[(TABLES.0, 2 * STORED, INDIRECT | NEXT, 1), TAIL]),
    },
    InjectedFault {
        what: "a loop in a table",
        says: "loop",
        inject: |mock, memory| table(mock, memory, 2 * STORED, &[HEAD, (DATA, 8, NEXT, 0)]),
    },
    InjectedFault {
        what: "next past a table",
        says: "number 2",
        inject: |mock, memory| table(mock, memory, 2 * STORED, &[(HEADER, 16, NEXT, 2), TAIL, TAIL]),
    },
    InjectedFault {
        what: "to read after to write in a table",
        says: "after memory to write",
        inject: |mock, memory| table(mock, memory, 3 * STORED, &[HEAD, (STATUS, 1, WRITE | NEXT, 2), (DATA, 8, 0, 0)]),
    },
    InjectedFault {
        what: "the mock's own table, longer than the queue, of memory that is none",
        says: "header",
        inject: |mock, _| mock.add_indirect_chain(2 * SIZE).expect("room"),
    },
];

const BROKE: &str = "a virtqueue broke and is not served until it is reset";

fn setting() -> (Daemon, Vm, CorrectClient) {
    let daemon = start_with(&["--disk", "d=memory:1M", "--disk", "other=memory:1M", "--disk", "w=memory:1M"]);
    let other = Vm::boot(&socket_of(&daemon, "other"));
    let correct_client = CorrectClient::new(&daemon, "w");
    (daemon, other, correct_client)
}

fn inject_all(faults: &[InjectedFault], features: u64) {
    let (daemon, mut other, mut correct_client) = setting();
    for InjectedFault { what, says, inject } in faults {
        eventually("the last guest is forgotten", || daemon.attached_count("d") == 0);
        let before = daemon.log().len();
        let memory = memory();
        let hypervisor = connect(&socket_of(&daemon, "d"), &memory, features);
        let mut faulty = Queue::start(&hypervisor, &memory, 0, RINGS[0]);
        let mut correct = Queue::start(&hypervisor, &memory, 1, RINGS[1]);
        faulty.check();
        let used = faulty.used();
        put_header(&memory, HEADER, IN, 0);
        inject(&mut faulty.mock, &memory);
        faulty.kick();
        assert!(rings(&faulty.error), "{what}: the queue does not say that it broke");
        eventually(what, || daemon.log()[before..].contains(BROKE));
        // Other requests are answered after the fault, and nothing more happens.
        correct.check();
        faulty.kick();
        correct.check();
        other.check();
        correct_client.check();
        assert_eq!(faulty.used(), used, "{what}: it is answered");
        let log = daemon.log()[before..].to_owned();
        assert_eq!(log.matches(BROKE).count(), 1, "{what}: {log}");
        let line = log.lines().find(|line| line.contains(BROKE)).expect("just counted");
        assert_says(line, &["disk=\"d\"", "queue=0", says]);
    }
}

#[test]
fn chains_that_no_driver_makes_stop_their_queue_only() {
    inject_all(CHAINS, INDIRECT_FEATURE);
}

#[test]
fn indirect_tables_that_no_driver_makes_stop_their_queue_only() {
    inject_all(INDIRECT_TABLES, INDIRECT_FEATURE);
}

#[test]
fn a_table_without_its_feature_stops_its_queue_only() {
    let inject = |mock: &mut Mock<'_>, memory: &GuestMemoryMmap| table(mock, memory, 2 * STORED, &[HEAD, TAIL]);
    inject_all(&[InjectedFault { what: "a table that was not agreed on", says: "not negotiated", inject }], 0);
}

#[test]
fn data_beyond_memory_fails_its_request_and_the_queue_goes_on() {
    let (daemon, mut other, mut correct_client) = setting();
    let memory = memory();
    let hypervisor = connect(&socket_of(&daemon, "d"), &memory, INDIRECT_FEATURE);
    let mut queue = Queue::start(&hypervisor, &memory, 0, RINGS[0]);
    let places: [(&str, u64, u32); 6] = [
        ("beyond memory", END, 512),
        ("half beyond memory", END - 256, 512),
        ("before memory", BASE.0 - 512, 512),
        ("around 2^64", u64::MAX - 255, 512),
        ("of 4 GiB", DATA, u32::MAX - 511),
        ("of no bytes", DATA, 0),
    ];
    for (what, address, length) in places {
        for (kind, flags) in [(IN, NEXT | WRITE), (OUT, NEXT)] {
            put_header(&memory, HEADER, kind, 0);
            memory.write_obj(UNANSWERED, GuestAddress(STATUS)).expect("memory");
            let before = queue.used();
            chain(&queue.mock, &[HEAD, (address, length, flags, 2), TAIL]);
            queue.kick();
            eventually(what, || queue.used() == before.wrapping_add(1));
            assert_eq!(memory.read_obj::<u8>(GuestAddress(STATUS)).expect("memory"), IOERR, "{what}");
        }
    }
    queue.check();
    other.check();
    correct_client.check();
    assert!(!daemon.log().contains(BROKE), "{}", daemon.log());
}

#[test]
fn rings_beyond_memory_are_logged_and_affect_no_other_client() {
    let (daemon, mut other, mut correct_client) = setting();
    let table = u64::from(SIZE) * 16;
    let places: [(&str, u64, &str); 4] = [
        ("all beyond memory", END, "its rings are not in the memory"),
        ("an available ring beyond memory", END - table, "its rings are not in the memory"),
        (
            "an available ring that leaves memory",
            END - table - 96,
            "the available ring at 0x1fffa0, 134 bytes long, is not in one region",
        ),
        ("a used ring that leaves memory", END - table - 144, "the used ring at 0x1fffb4, 518 bytes long, is not in one region"),
    ];
    for (what, place, says) in places {
        eventually("the last guest is forgotten", || daemon.attached_count("d") == 0);
        let before = daemon.log().len();
        let memory = memory();
        let hypervisor = connect(&socket_of(&daemon, "d"), &memory, INDIRECT_FEATURE);
        let faulty = Queue::start(&hypervisor, &memory, 0, place);
        let mut correct = Queue::start(&hypervisor, &memory, 1, RINGS[1]);
        chain(&faulty.mock, &[HEAD, TAIL]);
        faulty.kick();
        correct.check();
        other.check();
        correct_client.check();
        assert_eq!(faulty.used(), 0, "{what}: it is served");
        eventually(what, || daemon.log()[before..].contains("a queue cannot be served"));
        assert_says(&daemon.log()[before..], &["disk=\"d\"", "queue=0", says]);
    }
}

#[test]
fn misaligned_rings_end_the_connection_and_affect_no_other_client() {
    let (daemon, mut other, mut correct_client) = setting();
    for misplaced in 1..16 {
        eventually("the last guest is forgotten", || daemon.attached_count("d") == 0);
        let memory = memory();
        let hypervisor = connect(&socket_of(&daemon, "d"), &memory, INDIRECT_FEATURE);
        let mock = Mock::create(&memory, GuestAddress(RINGS[0] + misplaced), SIZE);
        assert_eq!(hypervisor.try_tell(SET_VRING_ADDR, &ring_addresses(&mock, 0), &[]), Some(1), "{misplaced} is taken");
        hypervisor.assert_hung_up();
    }
    let refused = || daemon.log().matches("SET_VRING_ADDR: invalid message").count();
    eventually("a line in the log for each", || refused() == 15);
    other.check();
    correct_client.check();
}
