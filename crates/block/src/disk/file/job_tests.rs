//! Results that a healthy kernel rarely gives, fed in by hand.

use super::*;
use crate::disk::file::target::Alignment;

/// A file without a name, as both the cached and the direct descriptor.
fn target(size_bytes: u64) -> Arc<Target> {
    let path = std::env::temp_dir().join(format!("fipsee-job-{}-{:?}", std::process::id(), std::thread::current().id()));
    let open = || std::fs::File::options().read(true).write(true).create(true).truncate(false).open(&path).expect("a file");
    let (buffered, direct) = (open(), open());
    std::fs::remove_file(&path).expect("it was there");
    buffered.set_len(size_bytes).expect("a size");
    let alignment = Alignment { memory_mask: 511, read_mask: 511, write_mask: 4095 };
    Arc::new(Target::new(buffered.into(), Some((direct.into(), alignment)), size_bytes, true))
}

fn spans(memory: &mut [u8], lengths: &[usize]) -> Vec<Span> {
    let start = memory.as_ptr().align_offset(4096);
    let mut place = NonNull::from(&mut memory[start]);
    lengths
        .iter()
        .map(|&length| {
            // SAFETY: within `memory`, by the lengths the tests give; nothing is done with it here.
            let span = unsafe { Span::new(place, length) };
            // SAFETY: as above.
            place = unsafe { place.add(length) };
            span
        })
        .collect()
}

fn job(target: &Arc<Target>, step: Step, offset_bytes: u64, length_bytes: u64, spans: &[Span]) -> Job {
    let mut job = Job::idle();
    job.set_up(target, step, offset_bytes, length_bytes, spans);
    job.entry();
    job
}

const fn error(errno: Errno) -> i32 {
    -errno.raw_os_error()
}

#[test]
fn short_transfer_continues_where_it_ended() {
    let target = target(1 << 20);
    let mut memory = vec![0; 65536];
    let spans = spans(&mut memory, &[4096, 8192, 512]);
    let mut job = job(&target, Step::Read, 8192, 12800, &spans);
    assert_eq!(job.advance(5000), Progress::Again);
    assert_eq!((job.first, job.offset_bytes, job.length_bytes), (1, 8192 + 5000, 7800));
    assert_eq!(job.spans[1].base().addr().get(), spans[1].base().addr().get() + 904);
    assert_eq!(job.spans[1].length_bytes(), 8192 - 904);
    job.entry();
    assert!(!job.is_direct, "an odd rest cannot bypass the page cache");
    assert_eq!(job.advance(7288), Progress::Again);
    assert_eq!((job.first, job.length_bytes), (2, 512));
    assert_eq!(job.advance(512), Progress::Finished(Status::Ok));
}

#[test]
fn end_of_file_within_a_read_is_an_io_error() {
    let target = target(1 << 20);
    let mut memory = vec![0; 16384];
    let mut job = job(&target, Step::Read, 0, 8192, &spans(&mut memory, &[8192]));
    assert_eq!(job.advance(4096), Progress::Again);
    assert_eq!(job.advance(0), Progress::Finished(Status::IoError));
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
fn transfer_that_direct_io_refuses_takes_the_page_cache() {
    let target = target(1 << 20);
    let mut memory = vec![0; 16384];
    let mut job = job(&target, Step::Write { durable: false }, 4096, 8192, &spans(&mut memory, &[8192]));
    assert!(job.is_direct);
    assert_eq!(job.advance(error(Errno::INVAL)), Progress::Again);
    job.entry();
    assert!(!job.is_direct);
    assert_eq!(job.advance(error(Errno::INVAL)), Progress::Finished(Status::IoError));
}

#[test]
fn part_of_a_page_is_written_through_the_page_cache_and_read_past_it() {
    let target = target(1 << 20);
    let mut memory = vec![0; 16384];
    let spans = spans(&mut memory, &[512]);
    assert!(!job(&target, Step::Write { durable: false }, 4096, 512, &spans).is_direct);
    assert!(job(&target, Step::Read, 4096, 512, &spans).is_direct);
}

#[test]
fn memory_at_an_odd_address_goes_through_the_page_cache() {
    let target = target(1 << 20);
    let mut memory = vec![0; 16384];
    let odd = spans(&mut memory, &[4, 4096])[1];
    assert!(!job(&target, Step::Read, 4096, 4096, &[odd]).is_direct);
    assert!(!job(&target, Step::Write { durable: false }, 4096, 4096, &[odd]).is_direct);
}

#[test]
fn write_zeroes_falls_back_from_zero_range_to_hole_to_writing() {
    let target = target(8 << 20);
    let mut first = job(&target, Step::Zero { unmap: false, durable: true }, 0, 5 << 20, &[]);
    assert_eq!(first.method, ZeroMethod::ZeroRange);
    assert_eq!(first.advance(error(Errno::OPNOTSUPP)), Progress::Again);
    first.entry();
    assert_eq!(first.method, ZeroMethod::PunchHole);
    assert_eq!(first.advance(error(Errno::OPNOTSUPP)), Progress::Again);
    first.entry();
    assert_eq!(first.step, Step::ZeroFill { durable: true });
    assert_eq!(first.advance(5 << 20), Progress::Again);
    assert_eq!(first.step, Step::Sync, "durable zeroes end with fdatasync");
    assert_eq!(first.advance(0), Progress::Finished(Status::Ok));
    // The next one knows.
    assert_eq!(job(&target, Step::Zero { unmap: true, durable: false }, 0, 4096, &[]).step, Step::ZeroFill { durable: false });
}

#[test]
fn write_zeroes_without_a_method_really_writes_them() {
    use std::os::unix::fs::FileExt;
    let target = target(40 << 20);
    let file = std::fs::File::from(rustix::io::dup(target.buffered()).expect("dup"));
    file.write_all_at(&vec![0xff; 40 << 20], 0).expect("written");
    target.forget_zero_method(ZeroMethod::ZeroRange);
    target.forget_zero_method(ZeroMethod::PunchHole);
    let mut engine = crate::disk::Engine::new(4).expect("engine");
    let ticket = crate::disk::Ticket { queue: 0, tag: 0, started_ticks: 0 };
    let (start, length) = (512, (35 << 20) + 512);
    let step = Step::Zero { unmap: false, durable: true };
    // SAFETY: the job names no memory of ours.
    let submitted = unsafe { engine.begin(ticket, |job| job.set_up(&target, step, start, length, &[])) };
    assert_eq!(submitted, crate::disk::Submitted::Pending);
    engine.flush();
    let mut result = None;
    while result.is_none() {
        engine.poll(1, &mut |_, status| result = Some(status));
    }
    assert_eq!(result, Some(Status::Ok));
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
    // What the kernel does with a write that was already on its way.
    rustix::io::pwrite(target.buffered(), &[1; 4096], 65536).expect("written");
    assert_eq!(late.advance(4096), Progress::Finished(Status::Ok));
    late.release();
    assert_eq!(rustix::fs::fstat(target.buffered()).expect("stat").st_size, 4096);
}

#[test]
fn errno_reaches_the_client_as_its_status() {
    for (errno, status) in [
        (Errno::NOSPC, Status::NoSpace),
        (Errno::DQUOT, Status::NoSpace),
        (Errno::FBIG, Status::NoSpace),
        (Errno::IO, Status::IoError),
        (Errno::NXIO, Status::IoError),
        (Errno::NOMEM, Status::IoError),
        (Errno::ROFS, Status::ReadOnly),
        (Errno::PERM, Status::ReadOnly),
        (Errno::OPNOTSUPP, Status::Unsupported),
        (Errno::FAULT, Status::BadMemory),
    ] {
        assert_eq!(status_of(errno), status, "{errno}");
    }
}

/// Operation and flags of an entry, where the kernel reads them.
fn operation_of(entry: Entry) -> (u8, u32) {
    // SAFETY: an entry is the kernel's structure of 64 bytes, without padding that could be uninitialised.
    let bytes = unsafe { std::mem::transmute::<Entry, [u8; 64]>(entry) };
    (bytes[0], u32::from_ne_bytes([bytes[28], bytes[29], bytes[30], bytes[31]]))
}

#[test]
fn flush_is_fdatasync_and_a_durable_write_says_so_to_the_kernel() {
    const DATASYNC: u32 = 1;
    let target = target(1 << 20);
    assert_eq!(operation_of(job(&target, Step::Sync, 0, 0, &[]).entry()), (opcode::Fsync::CODE, DATASYNC));
    let mut memory = vec![0; 32768];
    for (lengths, code) in [(&[8192][..], opcode::Write::CODE), (&[4096, 4096], opcode::Writev::CODE)] {
        for (durable, flags) in [(false, 0), (true, ReadWriteFlags::DSYNC.bits())] {
            let mut job = job(&target, Step::Write { durable }, 0, 8192, &spans(&mut memory, lengths));
            assert_eq!(operation_of(job.entry()), (code, flags), "durable: {durable}");
            // The rest of a short write is as durable as its beginning.
            assert_eq!(job.advance(512), Progress::Again);
            assert_eq!(operation_of(job.entry()).1, flags);
        }
    }
    let mut zeroes = job(&target, Step::Zero { unmap: true, durable: true }, 0, 4096, &[]);
    assert_eq!(zeroes.advance(0), Progress::Again);
    assert_eq!(operation_of(zeroes.entry()), (opcode::Fsync::CODE, DATASYNC));
}

#[test]
fn timer_ends_well_when_its_time_has_passed_and_only_then() {
    let mut job = Job::idle();
    job.set_up_timer(Duration::from_secs(1));
    assert_eq!(operation_of(job.entry()).0, opcode::Timeout::CODE);
    assert_eq!(job.advance(error(Errno::TIME)), Progress::Finished(Status::Ok));
    job.set_up_timer(Duration::from_secs(1));
    assert_eq!(job.advance(error(Errno::CANCELED)), Progress::Finished(Status::IoError));
}
