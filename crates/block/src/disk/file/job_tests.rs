//! Results that a healthy kernel rarely returns, injected.

use std::ptr::NonNull;

use fipsee_serve::Engine as _;

use super::*;
use crate::disk::Faults;

/// The alignment of a file that needs memory aligned to 512 bytes, whole units of `unit` bytes, and ranges of 4096.
const fn alignment(unit: u64) -> Option<Alignment> {
    Some(Alignment { memory_mask: 511, unit_mask: unit - 1, range_mask: 4095 })
}

/// A file without a name. It is opened without O_DIRECT: the kernel's results are injected.
fn target_with(size_bytes: u64, alignment: Option<Alignment>) -> Arc<Target> {
    let path = std::env::temp_dir().join(format!("fipsee-job-{}-{:?}", std::process::id(), std::thread::current().id()));
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(&path).expect("a file");
    std::fs::remove_file(&path).expect("it was there");
    file.set_len(size_bytes).expect("a size");
    Arc::new(Target::new(file.into(), alignment, 512, size_bytes, true, Faults::default()))
}

fn target(size_bytes: u64) -> Arc<Target> {
    target_with(size_bytes, alignment(512))
}

fn spans(memory: &mut [u8], lengths: &[usize]) -> Vec<Span> {
    let start = memory.as_ptr().align_offset(4096);
    let mut place = NonNull::from(&mut memory[start]);
    lengths
        .iter()
        .map(|&length| {
            // SAFETY: within `memory`, by the lengths the tests give.
            let span = unsafe { Span::new(place, length) };
            // SAFETY: as above.
            place = unsafe { place.add(length) };
            span
        })
        .collect()
}

/// A job and the parts of an engine that it needs.
struct Alone {
    job: Job,
    buffers: Buffers,
    grants: Arc<Grants>,
}

impl Alone {
    fn entry(&mut self) -> Entry {
        self.job.entry(&mut self.buffers).expect("a buffer")
    }

    fn advance(&mut self, result: i32) -> Progress {
        self.job.advance(result, &mut self.buffers)
    }

    fn release(&mut self) {
        self.job.release(&mut self.buffers, &self.grants);
    }
}

fn job(target: &Arc<Target>, step: Step, offset_bytes: u64, length_bytes: u64, spans: &[Span]) -> Alone {
    let mut job = Job::idle();
    job.set_up(target, step, offset_bytes, length_bytes, spans);
    let mut alone = Alone { job, buffers: Buffers::default(), grants: Grants::new().expect("eventfd") };
    alone.entry();
    alone
}

/// Run it on an engine. The spans' memory belongs to the caller, which waits here.
fn run_in(engine: &mut crate::disk::Engine, target: &Arc<Target>, step: Step, (offset, length): (u64, u64), spans: &[Span]) {
    let ticket = crate::disk::Ticket { queue: 0, tag: 0, started_ticks: 0 };
    // SAFETY: the memory outlives the request, which is waited for.
    let begun = unsafe { engine.begin(ticket, |job| job.set_up(target, step, offset, length, spans)) };
    assert_eq!(begun, crate::disk::Submitted::Pending);
    engine.flush();
    let mut result = None;
    while result.is_none() {
        engine.poll(1, &mut |_, status| result = Some(status));
    }
    assert_eq!(result, Some(Status::Ok));
}

const WRITE: Step = Step::Write { durable: false };

const fn error(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

#[test]
fn short_transfer_continues_where_it_ended() {
    let target = target_with(1 << 20, None);
    let mut memory = vec![0; 65536];
    let spans = spans(&mut memory, &[4096, 8192, 512]);
    let mut alone = job(&target, Step::Read, 8192, 12800, &spans);
    assert_eq!(alone.advance(5000), Progress::Again);
    let job = &alone.job;
    assert_eq!((job.first, job.offset_bytes, job.length_bytes), (1, 8192 + 5000, 7800));
    assert_eq!(job.spans[1].base().addr().get(), spans[1].base().addr().get() + 904);
    assert_eq!(job.spans[1].length_bytes(), 8192 - 904);
    alone.entry();
    assert_eq!(alone.advance(7288), Progress::Again);
    assert_eq!((alone.job.first, alone.job.length_bytes), (2, 512));
    alone.entry();
    assert_eq!(alone.advance(512), Progress::Finished(Status::Ok));
}

#[test]
fn short_direct_transfer_continues_at_a_whole_unit() {
    let target = target(1 << 20);
    let mut memory = vec![0; 65536];
    let spans = spans(&mut memory, &[4096, 8192, 512]);
    let mut alone = job(&target, WRITE, 8192, 12800, &spans);
    assert_eq!(alone.advance(5000), Progress::Again);
    assert_eq!((alone.job.offset_bytes, alone.job.length_bytes), (8192 + 4608, 12800 - 4608));
    let (code, offset, ..) = asked(alone.entry());
    assert_eq!((code, offset), (opcode::Writev::CODE, 8192 + 4608));
    // A write that keeps moving less than a unit is not repeated for ever.
    for _ in 0..MAX_ATTEMPTS {
        assert_eq!(alone.advance(100), Progress::Again);
        alone.entry();
    }
    assert_eq!(alone.advance(100), Progress::Finished(Status::IoError));
}

#[test]
fn end_of_file_within_a_read_is_an_io_error() {
    for alignment in [None, alignment(512), alignment(4096)] {
        let target = target_with(1 << 20, alignment);
        let mut memory = vec![0; 16384];
        let mut alone = job(&target, Step::Read, 0, 8192, &spans(&mut memory, &[8192]));
        assert_eq!(alone.advance(4096), Progress::Again);
        alone.entry();
        assert_eq!(alone.advance(0), Progress::Finished(Status::IoError));
        // A file that was truncated at an odd offset.
        let mut alone = job(&target, Step::Read, 512, 1024, &spans(&mut memory, &[1024]));
        let rest = alone.advance(300);
        assert!(alignment.is_none() || rest == Progress::Finished(Status::IoError), "{alignment:?}");
    }
}

#[test]
fn interrupted_step_is_repeated_but_not_for_ever() {
    let target = target(1 << 20);
    let mut job = job(&target, Step::Sync, 0, 0, &[]);
    for _ in 0..MAX_ATTEMPTS {
        assert_eq!(job.advance(error(Errno::AGAIN)), Progress::Again);
    }
    assert_eq!(job.advance(error(Errno::INTR)), Progress::Finished(Status::IoError));
}

#[test]
fn memory_that_direct_io_refuses_is_copied() {
    let target = target(1 << 20);
    let mut memory = vec![7; 16384];
    let mut alone = job(&target, WRITE, 4096, 8192, &spans(&mut memory, &[8192]));
    assert!(alone.job.window.is_none());
    assert_eq!(alone.advance(error(Errno::INVAL)), Progress::Again);
    let (code, offset, _, length) = asked(alone.entry());
    assert!(alone.job.window.is_some());
    assert_eq!((code, offset, length), (opcode::Write::CODE, 4096, 8192));
    assert_eq!(alone.advance(error(Errno::INVAL)), Progress::Finished(Status::IoError));
    alone.release();
    assert!(alone.job.window.is_none());
}

#[test]
fn sectors_of_a_device_that_accepts_them_are_not_copied() {
    let target = target(1 << 20);
    let mut memory = vec![0; 16384];
    let spans = spans(&mut memory, &[512]);
    for step in [Step::Read, WRITE] {
        let alone = job(&target, step, 4096 + 512, 512, &spans);
        assert!(alone.job.window.is_none() && alone.job.range_to_lock().is_none(), "{step:?}");
    }
    // Without that, other writes are locked out of the units.
    let alone = job(&target_with(1 << 20, alignment(4096)), WRITE, 4096 + 3584, 1024, &[spans[0], spans[0]]);
    let (_, range) = alone.job.range_to_lock().expect("parts of two units");
    assert_eq!((range.start_bytes, range.end_bytes, range.exclusive), (4096, 12288, true));
}

/// Through the engine, and with O_DIRECT off: tests that all pieces arrive in place, and that data beside them is unchanged.
#[test]
fn long_transfers_between_units_arrive_whole() {
    const LENGTH: usize = (1 << 20) + 512;
    let target = target_with(4 << 20, alignment(4096));
    let mut memory = vec![0; LENGTH + 8192];
    let mut engine = crate::disk::Engine::new(4).expect("engine");
    let start = memory.as_ptr().align_offset(4096);
    // At an aligned address, and at an unaligned one.
    for (round, skip) in (1..).zip([512, 516]) {
        let pattern: Vec<u8> = (0..LENGTH).map(|index| u8::try_from((index / 512 + round) % 251).expect("small")).collect();
        memory[start + skip..start + skip + LENGTH].copy_from_slice(&pattern);
        // SAFETY: the piece is within the memory, which outlives the request.
        let piece = unsafe { Span::new(NonNull::from(&mut memory[start + skip]), LENGTH) };
        for step in [WRITE, Step::Read] {
            if step == WRITE {
                rustix::io::pwrite(target.file(), &vec![0xbe; LENGTH + 3072], 0).expect("written");
            }
            run_in(&mut engine, &target, step, (1536, LENGTH as u64), &[piece]);
            if step == WRITE {
                let mut got = vec![0; LENGTH + 3072];
                rustix::io::pread(target.file(), &mut got, 0).expect("read");
                assert!(got[1536..][..LENGTH] == pattern);
                assert!([&got[..1536], &got[1536 + LENGTH..]].concat().iter().all(|byte| *byte == 0xbe));
                memory[start + skip..start + skip + LENGTH].fill(0);
            }
        }
        assert!(memory[start + skip..start + skip + LENGTH] == pattern[..]);
    }
}

#[test]
fn a_job_without_a_buffer_says_so_and_loses_nothing() {
    let target = target_with(1 << 20, alignment(4096));
    let mut memory = vec![2; 16384];
    let spans = spans(&mut memory, &[512]);
    let mut buffers = Buffers::default();
    let taken: Vec<_> = std::iter::from_fn(|| buffers.take(4096)).collect();
    let mut job = Job::idle();
    job.set_up(&target, WRITE, 512, 512, &spans);
    assert!(job.entry(&mut buffers).is_none());
    taken.into_iter().take(1).for_each(|buffer| buffers.give(buffer));
    let (code, offset, _, length) = asked(job.entry(&mut buffers).expect("there is one now"));
    assert_eq!((code, offset, length), (opcode::Read::CODE, 0, 4096));
}

#[test]
fn ends_of_zeroed_ranges_are_written_and_never_left_to_the_page_cache() {
    let target = target_with(1 << 20, alignment(512));
    let mut alone = job(&target, Step::Zero { unmap: true, durable: false }, 512, 12288, &[]);
    let (code, offset, _, length) = asked(alone.entry());
    assert_eq!((code, offset, length), (opcode::Write::CODE, 512, 3584));
    assert_eq!(alone.advance(3584), Progress::Again);
    let (code, offset, ..) = asked(alone.entry());
    assert_eq!((code, offset), (opcode::Fallocate::CODE, 4096));
    assert_eq!(alone.job.asked, Asked::Allocate(ZeroMethod::PunchHole, 8192));
    assert_eq!(alone.advance(0), Progress::Again);
    let (code, offset, _, length) = asked(alone.entry());
    assert_eq!((code, offset, length), (opcode::Write::CODE, 12288, 512));
    assert_eq!(alone.advance(512), Progress::Finished(Status::Ok));
    // The ends of a discard are not changed.
    assert_eq!(target.whole_ranges(512, 12288), (4096, 12288));
    assert_eq!(target.whole_ranges(512, 1024), (4096, 4096));
    // Through the page cache the file system zeroes all of it.
    assert_eq!(target_with(1 << 20, None).whole_ranges(512, 1024), (512, 1536));
}

#[test]
fn write_zeroes_falls_back_from_zero_range_to_hole_to_writing() {
    let target = target(8 << 20);
    let mut first = job(&target, Step::Zero { unmap: false, durable: true }, 0, 5 << 20, &[]);
    assert_eq!(first.job.asked, Asked::Allocate(ZeroMethod::ZeroRange, 5 << 20));
    assert_eq!(first.advance(error(Errno::OPNOTSUPP)), Progress::Again);
    first.entry();
    assert_eq!(first.job.asked, Asked::Allocate(ZeroMethod::PunchHole, 5 << 20));
    assert_eq!(first.advance(error(Errno::OPNOTSUPP)), Progress::Again);
    first.entry();
    assert_eq!(first.job.asked, Asked::Plain(5 << 20));
    assert_eq!(first.advance(5 << 20), Progress::Again);
    assert_eq!(first.job.step, Step::Sync, "durable zeroes end with fdatasync");
    first.entry();
    assert_eq!(first.advance(0), Progress::Finished(Status::Ok));
    // The next one skips the failed method.
    assert_eq!(job(&target, Step::Zero { unmap: true, durable: false }, 0, 4096, &[]).job.asked, Asked::Plain(4096));
}

#[test]
fn write_zeroes_without_a_method_really_writes_them() {
    use std::os::unix::fs::FileExt;
    let target = target(40 << 20);
    let file = std::fs::File::from(rustix::io::dup(target.file()).expect("dup"));
    file.write_all_at(&vec![0xff; 40 << 20], 0).expect("written");
    target.forget_zero_method(ZeroMethod::ZeroRange);
    target.forget_zero_method(ZeroMethod::PunchHole);
    let mut engine = crate::disk::Engine::new(4).expect("engine");
    let step = Step::Zero { unmap: false, durable: true };
    run_in(&mut engine, &target, step, (512, (35 << 20) + 512), &[]);
    let mut bytes = vec![0; 40 << 20];
    file.read_exact_at(&mut bytes, 0).expect("read");
    let (start, end) = (512, (35 << 20) + 1024);
    assert!(bytes[..start].iter().all(|byte| *byte == 0xff));
    assert!(bytes[start..end].iter().all(|byte| *byte == 0));
    assert!(bytes[end..].iter().all(|byte| *byte == 0xff));
}

#[test]
fn late_write_does_not_leave_the_file_longer_than_the_shrunk_disk() {
    let target = target(1 << 20);
    let mut memory = vec![0; 16384];
    let mut late = job(&target, Step::Write { durable: false }, 65536, 4096, &spans(&mut memory, &[4096]));
    target.resize(4096).expect("cut");
    // The effect of a write that was already in flight.
    rustix::io::pwrite(target.file(), &[1; 4096], 65536).expect("written");
    assert_eq!(late.advance(4096), Progress::Finished(Status::Ok));
    late.release();
    assert_eq!(rustix::fs::fstat(target.file()).expect("stat").st_size, 4096);
}

#[test]
fn errno_reaches_the_client_as_its_status() {
    for (status, errnos) in [
        (Status::NoSpace, &[Errno::NOSPC, Errno::DQUOT, Errno::FBIG][..]),
        (Status::IoError, &[Errno::IO, Errno::NXIO, Errno::NOMEM]),
        (Status::ReadOnly, &[Errno::ROFS, Errno::PERM]),
        (Status::Unsupported, &[Errno::OPNOTSUPP]),
        (Status::BadMemory, &[Errno::FAULT]),
    ] {
        assert!(errnos.iter().all(|errno| status_of(*errno) == status), "{status:?}");
    }
}

fn bytes_of(entry: Entry) -> [u8; 64] {
    // SAFETY: an entry is the kernel's structure of 64 bytes, without padding that could be uninitialised.
    unsafe { std::mem::transmute::<Entry, [u8; 64]>(entry) }
}

fn operation_of(entry: Entry) -> (u8, u32) {
    let bytes = bytes_of(entry);
    (bytes[0], u32::from_ne_bytes([bytes[28], bytes[29], bytes[30], bytes[31]]))
}

/// Operation, offset, address and length of an entry.
fn asked(entry: Entry) -> (u8, u64, usize, usize) {
    let bytes = bytes_of(entry);
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let length = u32::from_ne_bytes(bytes[24..28].try_into().expect("four bytes"));
    (bytes[0], word(8), usize::try_from(word(16)).expect("an address"), usize::try_from(length).expect("small"))
}

#[test]
fn flush_is_fdatasync_and_a_durable_write_is_rwf_dsync() {
    const DATASYNC: u32 = 1;
    let target = target(1 << 20);
    assert_eq!(operation_of(job(&target, Step::Sync, 0, 0, &[]).entry()), (opcode::Fsync::CODE, DATASYNC));
    let mut memory = vec![0; 32768];
    for (lengths, code) in [(&[8192][..], opcode::Write::CODE), (&[4096, 4096], opcode::Writev::CODE)] {
        for (durable, flags) in [(false, 0), (true, ReadWriteFlags::DSYNC.bits())] {
            let mut job = job(&target, Step::Write { durable }, 0, 8192, &spans(&mut memory, lengths));
            assert_eq!(operation_of(job.entry()), (code, flags), "durable: {durable}");
            // The rest of a short write is as durable as its first part.
            assert_eq!(job.advance(512), Progress::Again);
            assert_eq!(operation_of(job.entry()).1, flags);
        }
    }
    let mut zeroes = job(&target, Step::Zero { unmap: true, durable: true }, 0, 4096, &[]);
    assert_eq!(zeroes.advance(0), Progress::Again);
    assert_eq!(operation_of(zeroes.entry()), (opcode::Fsync::CODE, DATASYNC));
}

#[test]
fn timer_succeeds_when_its_time_has_passed_and_not_before() {
    let (mut job, mut buffers) = (Job::idle(), Buffers::default());
    job.set_up_timer(Duration::from_secs(1), None);
    assert_eq!(operation_of(job.entry(&mut buffers).expect("an entry")).0, opcode::Timeout::CODE);
    assert_eq!(job.advance(error(Errno::TIME), &mut buffers), Progress::Finished(Status::Ok));
    job.set_up_timer(Duration::from_secs(1), None);
    assert_eq!(job.advance(error(Errno::CANCELED), &mut buffers), Progress::Finished(Status::IoError));
}
