//! The file system of one file: the kernel's requests, translated into requests to the disk.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, SystemTime};

use fipsee_block::wire::{CAPABILITY_FLUSH, CAPABILITY_FUA, CAPABILITY_WRITE_ZEROES};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{FallocateFlags, OFlags};

use super::answer::Answer;
use super::compound::{Job, whole_blocks};
use super::lane::{Lane, MAX_DATA_BYTES, Work};
use super::link::MountedDisk;
use super::placement::Placement;
use super::ranges::{Claim, Ranges};

/// How long the kernel may cache the file's attributes; it is notified of a resize at once.
const ATTRIBUTES_LIVE: Duration = Duration::from_secs(1);
/// Asynchronous requests that the kernel hands out at a time; the lanes take as many.
const MAX_BACKGROUND: u16 = 256;
/// The I/O size that programs are advised of; also the granularity of discards through a loop device.
const BLKSIZE_BYTES: u32 = 4096;
/// The only file.
const ROOT: INodeNo = INodeNo::ROOT;

/// The owner of the file, and the users who may open it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) permissions: u16,
}

/// The file system.
#[derive(Debug)]
pub(super) struct DiskFile {
    pub(super) lanes: Vec<Arc<Lane>>,
    pub(super) mounted: Arc<MountedDisk>,
    pub(super) ranges: Arc<Ranges>,
    pub(super) compound: Sender<Job>,
    pub(super) owner: Owner,
    pub(super) read_only: bool,
    /// Let the kernel keep pages of the file.
    pub(super) kernel_cache: bool,
    pub(super) mounted_at: SystemTime,
    pub(super) next_lane: AtomicUsize,
    pub(super) placement: Placement,
}

thread_local! {
    /// The lane of this thread, once chosen.
    static LANE: Cell<Option<usize>> = const { Cell::new(None) };
}

impl DiskFile {
    fn submit(&self, work: Work<'_>, answer: Answer, claim: Option<Claim>) {
        let lane = self.lane();
        lane.submit(work, answer, claim);
        self.placement.after_request(|| lane.kernel_has_more());
    }

    fn lane(&self) -> &Lane {
        let index = LANE.get().unwrap_or_else(|| {
            let index = self.next_lane.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
            LANE.set(Some(index));
            index
        });
        &self.lanes[index]
    }

    fn attributes(&self) -> FileAttr {
        let size = self.mounted.size_bytes();
        FileAttr {
            ino: ROOT,
            size,
            blocks: size.div_ceil(512),
            atime: self.mounted_at,
            mtime: self.mounted_at,
            ctime: self.mounted_at,
            crtime: self.mounted_at,
            kind: FileType::RegularFile,
            perm: self.owner.permissions,
            nlink: 1,
            uid: self.owner.uid,
            gid: self.owner.gid,
            rdev: 0,
            blksize: BLKSIZE_BYTES,
            flags: 0,
        }
    }

    /// Can one request of the disk move these bytes?
    fn is_one_transfer(&self, bytes: &Range<u64>) -> bool {
        bytes.end - bytes.start <= self.mounted.max_transfer_bytes()
    }

    fn flush_disk(&self, reply: ReplyEmpty) {
        if self.read_only || !self.mounted.can(CAPABILITY_FLUSH) {
            return reply.ok();
        }
        self.submit(Work::Flush, Answer::Done(reply), None);
    }

    fn hand_over(&self, job: Job) {
        // The thread ends after the session. Without it the reply would be dropped, which answers EIO.
        drop(self.compound.send(job));
    }

    fn write_bytes(&self, bytes: Range<u64>, data: &[u8], durably: bool, reply: ReplyWrite) {
        let blocks = whole_blocks(&bytes, self.mounted.block_bytes());
        let is_durable_at_once = !durably || self.mounted.can(CAPABILITY_FUA) || !self.mounted.can(CAPABILITY_FLUSH);
        if blocks == bytes
            && is_durable_at_once
            && self.is_one_transfer(&bytes)
            && let Some(claim) = self.ranges.try_claim(blocks)
        {
            let length_bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
            let work = Work::Write { offset_bytes: bytes.start, data, durably: durably && self.mounted.can(CAPABILITY_FUA) };
            return self.submit(work, Answer::Write { reply, length_bytes }, Some(claim));
        }
        self.hand_over(Job::Write { offset_bytes: bytes.start, data: data.to_vec(), durably, reply });
    }
}

/// The operation of fallocate(2).
enum Allocation {
    Nothing,
    Zero { unmap: bool },
}

impl Allocation {
    fn parse(mode: i32) -> Option<Self> {
        let flags = FallocateFlags::from_bits(u32::try_from(mode).ok()?)?;
        let what = flags.difference(FallocateFlags::KEEP_SIZE);
        if what.is_empty() {
            return Some(Self::Nothing);
        }
        if what == FallocateFlags::PUNCH_HOLE {
            return Some(Self::Zero { unmap: true });
        }
        (what == FallocateFlags::ZERO_RANGE).then_some(Self::Zero { unmap: false })
    }
}

fn has_flags(flags: OpenFlags, wanted: OFlags) -> bool {
    u32::try_from(flags.0).is_ok_and(|bits| OFlags::from_bits_retain(bits).contains(wanted))
}

impl Filesystem for DiskFile {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let data_bytes = u32::try_from(MAX_DATA_BYTES).unwrap_or(u32::MAX);
        // Each may return less than requested.
        let _ = config.set_max_write(data_bytes);
        if let Err(most) = config.set_max_readahead(data_bytes) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        let wanted = [
            // Requests of one program with O_DIRECT and a queue run at the same time.
            InitFlags::FUSE_ASYNC_DIO,
            // This process handles O_TRUNC: it is ignored, as on a block device, so that `dd of=FILE` works.
            InitFlags::FUSE_ATOMIC_O_TRUNC,
            // Databases map files that are otherwise not cached; kernels before 6.6 cannot.
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        for flag in wanted {
            let _ = config.add_capabilities(flag);
        }
        Ok(())
    }

    fn getattr(&self, _request: &Request, _ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES_LIVE, &self.attributes());
    }

    fn setattr(
        &self,
        _request: &Request,
        _ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // A disk has no times; setting them (touch, cp -p) succeeds without effect. Other attributes cannot change.
        let attributes = self.attributes();
        let is_same = mode.is_none_or(|mode| mode & 0o7777 == u32::from(attributes.perm))
            && uid.is_none_or(|uid| uid == attributes.uid)
            && gid.is_none_or(|gid| gid == attributes.gid)
            && size.is_none_or(|size| size == attributes.size);
        if is_same { reply.attr(&ATTRIBUTES_LIVE, &attributes) } else { reply.error(Errno::EPERM) }
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let caching = if self.kernel_cache { FopenFlags::empty() } else { FopenFlags::FOPEN_DIRECT_IO };
        reply.opened(FileHandle(0), caching | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let end = offset.saturating_add(size.into()).min(self.mounted.size_bytes());
        if offset >= end {
            return reply.data(&[]);
        }
        let blocks = whole_blocks(&(offset..end), self.mounted.block_bytes());
        if !self.is_one_transfer(&blocks) {
            return self.hand_over(Job::Read { bytes: offset..end, reply });
        }
        let index = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let answer = Answer::Read { reply, skip_bytes: index(offset - blocks.start), length_bytes: index(end - offset) };
        self.submit(Work::Read { offset_bytes: blocks.start, length_bytes: blocks.end - blocks.start }, answer, None);
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if data.is_empty() {
            return reply.written(0);
        }
        let size_bytes = self.mounted.size_bytes();
        if offset >= size_bytes {
            return reply.error(Errno::ENOSPC);
        }
        let end = offset.saturating_add(data.len() as u64).min(size_bytes);
        let data = &data[..usize::try_from(end - offset).unwrap_or(usize::MAX).min(data.len())];
        // The kernel passes O_SYNC and RWF_DSYNC, too, with each write.
        self.write_bytes(offset..end, data, has_flags(flags, OFlags::DSYNC), reply);
    }

    fn flush(&self, _request: &Request, _ino: INodeNo, _fh: FileHandle, _lock_owner: LockOwner, reply: ReplyEmpty) {
        self.flush_disk(reply);
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(&self, _request: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.flush_disk(reply);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let size_bytes = self.mounted.size_bytes();
        let end = offset.saturating_add(length);
        match Allocation::parse(mode) {
            None => reply.error(Errno::EOPNOTSUPP),
            Some(Allocation::Nothing) if end <= size_bytes => reply.ok(),
            Some(Allocation::Nothing) => reply.error(Errno::ENOSPC),
            Some(Allocation::Zero { unmap: false }) if end > size_bytes => reply.error(Errno::ENOSPC),
            Some(Allocation::Zero { .. }) if offset >= size_bytes => reply.ok(), // The range beyond the end is a hole already.
            Some(Allocation::Zero { unmap }) => {
                let bytes = offset..end.min(size_bytes);
                let is_one_request = self.mounted.can(CAPABILITY_WRITE_ZEROES)
                    && whole_blocks(&bytes, self.mounted.block_bytes()) == bytes
                    && bytes.end - bytes.start <= self.mounted.max_range_bytes();
                match is_one_request.then(|| self.ranges.try_claim(bytes.clone())).flatten() {
                    Some(claim) => {
                        let work = Work::Zero { offset_bytes: bytes.start, length_bytes: bytes.end - bytes.start, unmap };
                        self.submit(work, Answer::Done(reply), Some(claim));
                    }
                    None => self.hand_over(Job::Zero { bytes, unmap, reply }),
                }
            }
        }
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let blocks = self.mounted.size_bytes() / u64::from(BLKSIZE_BYTES);
        reply.statfs(blocks, 0, 0, 1, 0, BLKSIZE_BYTES, 255, BLKSIZE_BYTES);
    }
}
