//! A file with writes that come late, and overtake each other: what the storage below a daemon may do, and no file system on fast
//! storage does.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fipsee_testkit::Random;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, Session,
    WriteFlags,
};

/// The name of the file in its folder.
pub const NAME: &str = "slow";
/// Three writes of ten take a random time below this.
const LATE_MS: u64 = 1500;
/// Everything else takes so long.
const PROMPT: Duration = Duration::from_millis(1);
const NODE: INodeNo = INodeNo(2);
const TRUSTED_FOR: Duration = Duration::from_secs(1);
/// Requests that the kernel hands out at a time.
const MOST_AT_A_TIME: u16 = 256;

struct SlowFile {
    bytes: Arc<Mutex<Vec<u8>>>,
    random: Mutex<Random>,
}

fn attributes(node: INodeNo, length_bytes: u64) -> FileAttr {
    let kind = if node == NODE { FileType::RegularFile } else { FileType::Directory };
    FileAttr {
        ino: node,
        size: length_bytes,
        blocks: length_bytes / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o700,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: 0,
        blksize: 4096,
    }
}

impl SlowFile {
    fn length_bytes(&self) -> u64 {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}

impl Filesystem for SlowFile {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Requests of a loop device run at the same time.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_background(MOST_AT_A_TIME);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == NAME {
            reply.entry(&TRUSTED_FOR, &attributes(NODE, self.length_bytes()), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _request: &Request, node: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TRUSTED_FOR, &attributes(node, if node == NODE { self.length_bytes() } else { 0 }));
    }

    fn open(&self, _request: &Request, _node: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);
    }

    fn read(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = Arc::clone(&self.bytes);
        std::thread::spawn(move || {
            std::thread::sleep(PROMPT); // tidy: allow sleep, the slowness is what is wanted
            let bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            let end = start.saturating_add(size as usize).min(bytes.len());
            reply.data(&bytes[start..end]);
        });
    }

    fn write(
        &self,
        _request: &Request,
        _node: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (bytes, data) = (Arc::clone(&self.bytes), data.to_vec());
        let late = {
            let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
            if random.percent(30) { Duration::from_millis(random.below(LATE_MS)) } else { PROMPT }
        };
        std::thread::spawn(move || {
            std::thread::sleep(late); // tidy: allow sleep, as above
            let mut bytes = bytes.lock().unwrap_or_else(PoisonError::into_inner);
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            match bytes.get_mut(start..start.saturating_add(data.len())) {
                Some(place) => {
                    place.copy_from_slice(&data);
                    reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX));
                }
                None => reply.error(Errno::ENOSPC),
            }
        });
    }

    fn fsync(&self, _request: &Request, _node: INodeNo, _handle: FileHandle, _only_data: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}

/// Serve such a file of zeroes in `folder` until that is unmounted; says "ready".
pub fn serve(folder: &Path, content: Vec<u8>, seed: u64) -> Result<(), String> {
    let file = SlowFile { bytes: Arc::new(Mutex::new(content)), random: Mutex::new(Random(seed)) };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("fipsee-oracle".to_owned())];
    let session = Session::new(file, folder, &config).map_err(|error| format!("{}: {error}", folder.display()))?;
    println!("ready");
    session.spawn().and_then(|running| running.join()).map_err(|error| error.to_string())
}
