//! A million requests of all kinds over the rings of a guest, by two queues and two workers, agree with a model of the disk.

use fipsee_block::wire::{self, FLAG_FUA, FLAG_UNMAP, Operation, Segment, Status};
use fipsee_ring::Message;
use fipsee_testkit::guest::device::{Guest, Options};
use fipsee_testkit::guest::machine::{Upgraded, start_guest, start_with};
use fipsee_testkit::guest::ring::{Incoming, segment};

/// Each tag of each queue has its own part of the disk and of memory, so that the order of requests does not matter.
const AREA_SECTORS: u64 = 32;
const DEPTH: u16 = 32;
const QUEUES: u16 = 2;
/// A gap after each piece, so that memory is scattered, and a table.
const BUFFER_BYTES: u64 = (AREA_SECTORS + 16) * 512;

/// A generator that is the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 32) * bound) >> 32
    }
}

enum Doing {
    Nothing,
    /// Compare these pieces (address and bytes) with the area from this sector on.
    Read(u64, Vec<(u64, u64)>),
    Info,
    Other,
}

struct Lane {
    queue: usize,
    tag: u16,
    first_sector: u64,
    buffer: u64,
    /// The area's expected content; `None`: anything.
    model: Vec<Option<[u8; 8]>>,
    doing: Doing,
}

impl Lane {
    /// Cut `sectors` into pieces with gaps between them.
    fn pieces(&self, random: &mut Random, sectors: u64) -> Vec<(u64, u64)> {
        let mut pieces = Vec::new();
        let (mut address, mut left) = (self.buffer + 512, sectors);
        while left > 0 {
            let count = if pieces.len() >= 7 { left } else { 1 + random.below(left) };
            pieces.push((address, count * 512));
            address += (count + 1) * 512;
            left -= count;
        }
        pieces
    }

    fn transfer(&self, guest: &Guest, operation: Operation, flags: u16, sector: u64, pieces: &[(u64, u64)]) -> Message {
        let segments: Vec<Segment> = pieces.iter().map(|(address, bytes)| segment(*address, *bytes)).collect();
        let sector = self.first_sector + sector;
        if segments.len() <= 5 {
            return wire::request_inline(operation, flags, self.tag, sector, &segments);
        }
        let table: Vec<u8> = segments.iter().flat_map(|segment| segment.to_word().to_le_bytes()).collect();
        guest.ram.write(self.buffer, &table);
        let count = u32::try_from(segments.len()).expect("small");
        wire::request_indirect(operation, flags, self.tag, sector, segment(self.buffer, 512), count)
    }

    fn begin(&mut self, guest: &Guest, random: &mut Random, version: u64) -> Message {
        let most = if random.below(8) == 0 { AREA_SECTORS } else { 8 };
        let sectors = 1 + random.below(most);
        let sector = random.below(AREA_SECTORS - sectors + 1);
        let range = usize::try_from(sector).expect("small")..usize::try_from(sector + sectors).expect("small");
        match random.below(16) {
            0..6 => {
                let pieces = self.pieces(random, sectors);
                let message = self.transfer(guest, Operation::Read, 0, sector, &pieces);
                self.doing = Doing::Read(sector, pieces);
                message
            }
            6..12 => {
                let pieces = self.pieces(random, sectors);
                let mark = (version | 1 << 63).to_le_bytes();
                for (address, bytes) in &pieces {
                    guest.ram.write(*address, &mark.repeat(usize::try_from(*bytes / 8).expect("small")));
                }
                self.model[range].fill(Some(mark));
                self.doing = Doing::Other;
                let flags = if random.below(8) == 0 { FLAG_FUA } else { 0 };
                self.transfer(guest, Operation::Write, flags, sector, &pieces)
            }
            12 => {
                self.model[range].fill(Some([0; 8]));
                self.doing = Doing::Other;
                let flags = [0, FLAG_UNMAP, FLAG_FUA, FLAG_FUA | FLAG_UNMAP][usize::try_from(random.below(4)).expect("small")];
                wire::request_range(Operation::WriteZeroes, flags, self.tag, self.first_sector + sector, sectors)
            }
            13 => {
                self.model[range].fill(None);
                self.doing = Doing::Other;
                wire::request_range(Operation::Discard, 0, self.tag, self.first_sector + sector, sectors)
            }
            14 => {
                self.doing = Doing::Other;
                wire::request_flush(self.tag)
            }
            _ => {
                self.doing = Doing::Info;
                wire::request_one_segment(Operation::GetInfo, 0, self.tag, 0, segment(self.buffer + 512, 512))
            }
        }
    }

    fn finish(&mut self, guest: &Guest, status: u16, keeps_data: bool) {
        assert_eq!(Status::from_wire(status), Some(Status::Ok));
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => panic!("tag {} was answered twice", self.tag),
            Doing::Read(sector, pieces) if keeps_data => {
                let mut place = usize::try_from(sector).expect("small");
                for (address, bytes) in pieces {
                    let found = guest.ram.read(address, usize::try_from(bytes).expect("small"));
                    for content in found.chunks_exact(512) {
                        if let Some(mark) = self.model[place] {
                            assert!(content.chunks_exact(8).all(|word| word == mark), "sector {place} of tag {}", self.tag);
                        }
                        place += 1;
                    }
                }
            }
            Doing::Info => {
                let info = guest.ram.read(self.buffer + 512, 64);
                let bytes = info.first_chunk().expect("64 bytes");
                assert!(wire::BlockInfo::from_bytes(bytes).is_ok());
            }
            Doing::Read(..) | Doing::Other => {}
        }
    }
}

fn run(disk: &str, requests: u64, keeps_data: bool) {
    let specification = format!("d={disk}");
    let daemon = start_with(&["--disk", &specification, "--workers", "2"]);
    let options = Options { queues: QUEUES, event_index: true, ..Options::default() };
    let mut guest = start_guest(&daemon, "d", &options);
    let mut up = Upgraded::attach(&mut guest, &[1, 0], DEPTH.into());
    let lane = |number: u16| Lane {
        queue: usize::from(number / DEPTH),
        tag: number % DEPTH,
        first_sector: u64::from(number) * AREA_SECTORS,
        buffer: guest.ram.allocate(BUFFER_BYTES, 512),
        model: vec![None; usize::try_from(AREA_SECTORS).expect("small")],
        doing: Doing::Nothing,
    };
    let mut lanes: Vec<Lane> = (0..QUEUES * DEPTH).map(lane).collect();
    let (mut random, mut begun, mut finished) = (Random(7), 0, 0);
    while finished < requests {
        for queue in 0..usize::from(QUEUES) {
            let mut batch = Vec::new();
            for lane in lanes.iter_mut().filter(|lane| lane.queue == queue && matches!(lane.doing, Doing::Nothing)) {
                if begun < requests && random.below(4) != 0 {
                    batch.push(lane.begin(&guest, &mut random, begun));
                    begun += 1;
                }
            }
            let virtqueue = usize::try_from(up.rings[queue].entry.virtqueue).expect("small");
            up.rings[queue].submit(&batch, &guest.queues[virtqueue]);
            let is_busy = lanes.iter().any(|lane| lane.queue == queue && !matches!(lane.doing, Doing::Nothing));
            let all = if is_busy { up.rings[queue].wait(up.attachment, &mut guest) } else { Vec::new() };
            for one in all {
                let Incoming::Answer(tag, status) = one else { panic!("{one:?}") };
                lanes[queue * usize::from(DEPTH) + usize::from(tag)].finish(&guest, status, keeps_data);
                finished += 1;
            }
        }
    }
    assert_eq!(begun, finished);
}

#[test]
fn memory_disk_agrees_with_a_model() {
    run("memory:4M", 400_000, true);
}

#[test]
fn null_disk_answers_every_request_once() {
    run("null:4M", 400_000, false);
}

#[test]
fn file_disk_agrees_with_a_model() {
    run("file:{dir}/f,size=4M,block=512", 200_000, true);
}
