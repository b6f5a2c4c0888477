//! Jobs with writes that overlap while in flight. After each phase every sector that some job wrote must hold a whole
//! sector of this phase, of one of the jobs that wrote there, and all others what they held before.
//!
//! fio puts a header into each sector (`verify_interval=512`): offset, job, checksums. Its own verification wants the last write
//! of its own job, so we look at the headers ourselves.

use std::ops::Range;
use std::path::Path;
use std::process::Command;

use fipsee_acceptance::{Daemon, run, serve, shipped};

use super::{Fio, death};

const DISK_BYTES: u64 = 32 << 20;
const SECTOR: usize = 512;
/// Of a sector as `verify=crc32c` fills it: the offsets of the header's checksum, of the data's, and of the data.
const HEADER_CHECKSUM: usize = 36;
const DATA_CHECKSUM: usize = 40;
const DATA: usize = 44;
const MAGIC: u16 = 0xacca;

/// One job of a phase: its options, and which bytes it writes.
struct Job {
    options: String,
    writes: Box<dyn Fn(u64) -> bool>,
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("within a sector")
}

/// CRC-32C as fio has it, without the inversion at the end.
fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

/// The job, counted from 1, that wrote this sector as a whole, at this place.
fn job_of(sector: &[u8], offset_bytes: u64) -> Result<usize, String> {
    let checks = [
        ("magic number", u16::from_le_bytes(word(sector, 0)) == MAGIC),
        ("length", u32::from_le_bytes(word(sector, 4)) == 512),
        ("offset", u64::from_le_bytes(word(sector, 16)) == offset_bytes),
        ("header checksum", u32::from_le_bytes(word(sector, HEADER_CHECKSUM)) == crc32c(&sector[..HEADER_CHECKSUM])),
        ("data checksum", u32::from_le_bytes(word(sector, DATA_CHECKSUM)) == crc32c(&sector[DATA..])),
    ];
    match checks.iter().find(|(_, is_right)| !is_right) {
        Some((what, _)) => Err(format!("a wrong {what}")),
        None => Ok(usize::from(u16::from_le_bytes(word(sector, 32)))),
    }
}

fn within(range: Range<u64>) -> Box<dyn Fn(u64) -> bool> {
    Box::new(move |place| range.contains(&place))
}

/// Large writes that begin within a page, one sector of every page, and everything in between, all over the same megabytes.
fn jobs(phase: u64) -> Vec<Job> {
    let begin = (phase % 7) * 512 + (phase % 5) * (1 << 20);
    let (large, mixed) = (begin..begin + (16 << 20), begin + 1536..begin + 1536 + (6 << 20));
    let small = (begin & !4095) + 512..(begin & !4095) + 512 + (12 << 20);
    let job = |options: &str, range: &Range<u64>| {
        let options = format!("{options} offset={} size={}", range.start, range.end - range.start);
        Job { options, writes: within(range.clone()) }
    };
    let options = format!("rw=write:3584 bs=512 iodepth=32 offset={} size={}", small.start, small.end - small.start);
    let every_page = move |place: u64| small.contains(&place) && (place - small.start).is_multiple_of(4096);
    vec![
        job(
            ["rw=randwrite bs=4m iodepth=4", "rw=write bs=16m iodepth=1", "rw=randwrite bs=1m iodepth=16"]
                [usize::try_from(phase % 3).expect("few")],
            &large,
        ),
        Job { options, writes: Box::new(every_page) },
        job("rw=randwrite bsrange=512-64k iodepth=16", &mixed),
    ]
}

/// The disk as it is, through the daemon.
fn content(daemon: &Daemon, fipsee: &Path) -> Vec<u8> {
    let copy = daemon.dir.path("copy");
    let _ = std::fs::remove_file(&copy);
    run(Command::new(fipsee).arg("--connect").arg(daemon.socket()).args(["cp", "fip:b"]).arg(&copy));
    std::fs::read(&copy).expect("a copy")
}

fn compare(jobs: &[Job], before: &[u8], after: &[u8]) -> Result<[u64; 3], String> {
    let mut won = [0; 3];
    for ((before, after), place) in before.chunks(SECTOR).zip(after.chunks(SECTOR)).zip((0..).step_by(SECTOR)) {
        let by: Vec<usize> = (0..jobs.len()).filter(|job| (jobs[*job].writes)(place)).collect();
        let wrong = |what: &str| Err(format!("sector {} of page {}: {what}", place / 512 % 8, place / 4096));
        match (by.is_empty(), before == after) {
            (true, true) => continue,
            (true, false) => return wrong("nothing wrote here, and it changed"),
            (false, true) => return wrong(&format!("jobs {by:?} wrote here, and it holds what it did before")),
            (false, false) => {}
        }
        match job_of(after, place) {
            Ok(job) if by.contains(&(job - 1)) => won[job - 1] += 1,
            Ok(job) => return wrong(&format!("it is of job {job}, which did not write here; {by:?} did, counted from 0")),
            Err(what) => return wrong(&what),
        }
    }
    Ok(won)
}

#[test]
fn jobs_that_overlap_leave_a_whole_sector_of_one_of_them_everywhere() {
    let Some(daemon) = serve("fio-overlap", &[&format!("b=file:{{dir}}/b.img,size={DISK_BYTES},block=512")]) else { return };
    let (Some(fio), Some(fipsee)) = (Fio::new("fio-overlap", &daemon), shipped("fio-overlap", "bin/fipsee")) else { return };
    let mut before = content(&daemon, &fipsee);
    let mut won = [0; 3];
    for phase in 1..=death::kills() / 4 {
        let jobs = jobs(phase);
        let mut command = fio.command();
        command.arg("--output-format=json").arg(format!("--ioengine=external:{}", fio.engine.display()));
        command.args(["--filename=b", "--verify=crc32c", "--verify_interval=512", "--do_verify=0", "--verify_state_save=0"]);
        // The content of a sector follows from the seed: that of another phase is another one.
        command.args(["--loops=2", "--end_fsync=1"]).arg(format!("--randseed={}", 1000 + phase));
        for (number, job) in jobs.iter().enumerate() {
            command.arg(format!("--name=job{number}"));
            command.args(job.options.split_whitespace().map(|option| format!("--{option}")));
        }
        fio.jobs_of(&mut command);
        let after = content(&daemon, &fipsee);
        let counts = compare(&jobs, &before, &after).unwrap_or_else(|error| panic!("phase {phase}: {error}\n{command:?}"));
        won.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        before = after;
    }
    println!("sectors won by each job: {won:?}");
    assert!(won.iter().all(|count| *count > 0), "they did not overlap: {won:?}");
}

#[test]
fn sectors_that_fio_did_not_write_so_are_noticed() {
    let mut sector = vec![7; SECTOR];
    sector[..4].copy_from_slice(&[0xca, 0xac, 5, 0]);
    sector[4..8].copy_from_slice(&512_u32.to_le_bytes());
    sector[16..24].copy_from_slice(&4096_u64.to_le_bytes());
    sector[32..34].copy_from_slice(&2_u16.to_le_bytes());
    let header = crc32c(&sector[..HEADER_CHECKSUM]).to_le_bytes();
    sector[HEADER_CHECKSUM..DATA_CHECKSUM].copy_from_slice(&header);
    let data = crc32c(&sector[DATA..]).to_le_bytes();
    sector[DATA_CHECKSUM..DATA].copy_from_slice(&data);
    assert_eq!(job_of(&sector, 4096), Ok(2));
    assert_eq!(job_of(&sector, 4608), Err("a wrong offset".to_owned()));
    for (at, what) in [(0, "magic number"), (8, "header checksum"), (300, "data checksum")] {
        let mut other = sector.clone();
        other[at] ^= 1;
        assert_eq!(job_of(&other, 4096), Err(format!("a wrong {what}")));
    }
    let jobs = [Job { options: String::new(), writes: within(4096..4608) }];
    let mut disk = vec![0; 8192];
    let zeroes = disk.clone();
    assert!(compare(&jobs, &zeroes, &disk).expect_err("not written").contains("holds what it did before"));
    disk[4096..4608].copy_from_slice(&sector);
    assert!(compare(&jobs, &zeroes, &disk).expect_err("of another job").contains("it is of job 2"));
    disk[0] = 1;
    assert!(compare(&jobs, &zeroes, &disk).expect_err("outside").contains("nothing wrote here"));
}
