//! The file of `fipsee mount`, read and written by threads.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fipsee_block::wire::Status;
use rustix::fs::{FallocateFlags, OFlags, fallocate, fdatasync};
use rustix::io::{Errno, ReadWriteFlags, preadv, pwritev2};

use super::{Action, Done, Front, Limits, Piece, Request, Waited};
use crate::content::SECTOR_BYTES;
use crate::slow::Server;

const SECTOR: u64 = SECTOR_BYTES as u64;
const PAGE_BYTES: usize = 4096;
const PAGE_SECTORS: u64 = 8;
/// Requests at the file at a time.
const THREADS: usize = 16;
/// Status of what the file refused; what errno said is printed.
const FAILED: u64 = 1;
const IDLE_WAIT: Duration = Duration::from_millis(5);

/// Have `fipsee` mount disk `d` at `file`.
pub fn mount(fipsee: &Path, socket: &Path, file: &Path) -> Result<Server, String> {
    let mut command = Command::new(fipsee);
    command.arg("--connect").arg(socket).args(["mount", "--threads=2", "d"]).arg(file);
    Server::start(&mut command, file)
}

/// Memory at the same place in its page as the piece of the arena. The kernel splits large requests at pages of this memory: at
/// sectors, if it begins at one, as programs with O_DIRECT see to. Anywhere else two such writes could mix within a sector, as in
/// any file.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn copy_of(bytes: &[u8], (sector, _): Piece) -> Self {
        let place = usize::try_from(sector % PAGE_SECTORS).unwrap_or(0) * SECTOR_BYTES;
        let mut all = vec![0; bytes.len() + 2 * PAGE_BYTES];
        let start = all.as_ptr().align_offset(PAGE_BYTES) + place;
        all[start..start + bytes.len()].copy_from_slice(bytes);
        Self { bytes: all, start, length: bytes.len() }
    }

    fn all(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }

    fn all_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

struct Job {
    token: u64,
    action: Action,
    offset_bytes: u64,
    length_bytes: u64,
    buffers: Vec<Aligned>,
}

struct Answer {
    token: u64,
    status: u64,
    buffers: Vec<Aligned>,
}

pub struct MountedFile {
    jobs: Option<Sender<Job>>,
    answers: Receiver<Answer>,
    threads: Vec<JoinHandle<()>>,
    staged: Vec<Job>,
    /// By token: where the data of a read goes.
    reads: Vec<(u64, Vec<Piece>)>,
    in_flight: usize,
    arena: Vec<u8>,
    limits: Limits,
    _mount: Server,
}

impl MountedFile {
    /// Open the file of a mount. `direct`: with O_DIRECT.
    pub fn open(mount: Server, path: &Path, direct: bool, arena_bytes: u64) -> Result<Self, String> {
        let flags = if direct { OFlags::DIRECT.bits().cast_signed() } else { 0 };
        let file = File::options().read(true).write(true).custom_flags(flags).open(path);
        let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
        let length_bytes = file.metadata().map_err(|error| format!("{}: {error}", path.display()))?.len();
        let (jobs, receiver) = channel();
        let (answer, answers) = channel();
        let (file, receiver) = (Arc::new(file), Arc::new(Mutex::new(receiver)));
        let thread = |_| {
            let (file, receiver, answer) = (Arc::clone(&file), Arc::clone(&receiver), Sender::clone(&answer));
            std::thread::spawn(move || serve(&file, &receiver, &answer))
        };
        let threads = (0..THREADS).map(thread).collect();
        let limits = Limits {
            sector_count: length_bytes / SECTOR,
            block_sectors: 1,
            transfer_sectors: 32768,
            range_sectors: 1 << 23,
            pieces: 64,
            piece_sectors: 32768,
            queues: 1,
            has_fua: true,
            has_discard: true,
            has_zeroes: true,
            can_resize: false,
        };
        let arena = vec![0; usize::try_from(arena_bytes / SECTOR * SECTOR).unwrap_or(0)];
        let (staged, reads) = (Vec::new(), Vec::new());
        Ok(Self { jobs: Some(jobs), answers, threads, staged, reads, in_flight: 0, arena, limits, _mount: mount })
    }

    fn range(&self, (sector, count): Piece) -> Range<usize> {
        let at = |sector: u64| usize::try_from(sector).unwrap_or(usize::MAX) * SECTOR_BYTES;
        at(sector)..at(sector + count)
    }

    fn take(&mut self, answer: Answer, done: &mut Vec<Done>) {
        self.in_flight -= 1;
        if let Some(place) = self.reads.iter().position(|(token, _)| *token == answer.token) {
            let (_, pieces) = self.reads.swap_remove(place);
            for (piece, buffer) in pieces.into_iter().zip(&answer.buffers) {
                let range = self.range(piece);
                self.arena[range].copy_from_slice(buffer.all());
            }
        }
        done.push((answer.token, answer.status));
    }
}

impl Drop for MountedFile {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(file: &File, jobs: &Mutex<Receiver<Job>>, answers: &Sender<Answer>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(mut job) = job else { return };
        let status = match carry_out(file, &mut job) {
            Ok(()) => 0,
            Err(Errno::OPNOTSUPP) => Status::Unsupported as u64,
            Err(errno) => {
                eprintln!("{:?} at {}+{}: {errno}", job.action, job.offset_bytes, job.length_bytes);
                FAILED
            }
        };
        if answers.send(Answer { token: job.token, status, buffers: job.buffers }).is_err() {
            return;
        }
    }
}

fn carry_out(file: &File, job: &mut Job) -> Result<(), Errno> {
    let (offset, length) = (job.offset_bytes, job.length_bytes);
    match job.action {
        Action::Read => {
            let mut slices: Vec<IoSliceMut<'_>> =
                job.buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer.all_mut())).collect();
            whole(preadv(file, &mut slices, offset)?, length)
        }
        Action::Write { fua } => {
            let slices: Vec<IoSlice<'_>> = job.buffers.iter().map(|buffer| IoSlice::new(buffer.all())).collect();
            let flags = if fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
            whole(pwritev2(file, &slices, offset, flags)?, length)
        }
        Action::Flush => fdatasync(file),
        Action::Discard => fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length),
        Action::WriteZeroes { unmap, fua } => {
            let how = if unmap { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE };
            fallocate(file.as_fd(), how | FallocateFlags::KEEP_SIZE, offset, length)?;
            if fua { fdatasync(file) } else { Ok(()) }
        }
    }
}

/// Files of disks do no less than they are asked for.
fn whole(done: usize, length_bytes: u64) -> Result<(), Errno> {
    if done as u64 == length_bytes { Ok(()) } else { Err(Errno::IO) }
}

impl Front for MountedFile {
    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    fn areas(&self) -> Vec<Piece> {
        vec![(0, self.arena.len() as u64 / SECTOR)]
    }

    fn fill(&mut self, sector: u64, bytes: &[u8]) {
        let range = self.range((sector, bytes.len() as u64 / SECTOR));
        self.arena[range].copy_from_slice(bytes);
    }

    fn copy(&self, sector: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.arena[self.range((sector, into.len() as u64 / SECTOR))]);
    }

    fn has_room(&self, _queue: usize, _pieces: usize) -> bool {
        self.in_flight + self.staged.len() < THREADS
    }

    fn stage(&mut self, request: &Request<'_>) -> Result<(), String> {
        let (token, action) = (request.token, request.action);
        let buffers = request.pieces.iter().map(|piece| Aligned::copy_of(&self.arena[self.range(*piece)], *piece)).collect();
        if action == Action::Read {
            self.reads.push((token, request.pieces.to_vec()));
        }
        let (offset_bytes, length_bytes) = (request.sector * SECTOR, request.count * SECTOR);
        self.staged.push(Job { token, action, offset_bytes, length_bytes, buffers });
        Ok(())
    }

    fn publish(&mut self) {
        for job in std::mem::take(&mut self.staged) {
            self.in_flight += 1;
            // Threads that are gone answer nothing; that is noticed.
            let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
        }
    }

    fn wait(&mut self, done: &mut Vec<Done>) -> Result<Waited, String> {
        if self.in_flight == 0 {
            return Ok(Waited::Alive);
        }
        match self.answers.recv_timeout(IDLE_WAIT) {
            Ok(answer) => self.take(answer, done),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err("the threads ended".to_owned()),
        }
        while let Ok(answer) = self.answers.try_recv() {
            self.take(answer, done);
        }
        Ok(Waited::Alive)
    }

    fn reconnect(&mut self) -> Result<(), String> {
        Ok(()) // the mount does, by itself
    }
}
