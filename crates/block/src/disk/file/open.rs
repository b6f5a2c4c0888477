//! Opening: every check that a file can be a disk, each with a message that says what to do.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::lock::lock;
use super::target::Target;
use super::{FileDisk, FileOptions, mode};
use crate::disk::{Engine, Faults, capabilities, check_block, description, page_bytes, sectors_of};
use crate::wire::{BlockInfo, CAPABILITY_DISCARD};

/// How the file is found.
pub(super) enum Source {
    /// By its path, where it is created if it is missing.
    Path,
    /// Open and locked by the daemon that is taken over. Its path must lead to it.
    Served(File),
    /// Opened by another process for this one. Its path may be out of reach, and is only a name.
    Passed(File),
    /// Likewise, and since then served by the daemon that is taken over.
    ServedAsPassed(File),
}

pub(super) fn open(options: &FileOptions, source: Source) -> Result<FileDisk, String> {
    let wanted_block = check_block(options.block_bytes)?;
    Engine::check()?;
    let is_taken_over = matches!(source, Source::Served(_) | Source::ServedAsPassed(_));
    let (file, mut new) = find(options, source)?;
    let path = options.path.display();
    let metadata = file.metadata().map_err(|error| format!("{path}: {error}"))?;
    let is_regular = metadata.is_file();
    let (size_bytes, device_block) = if is_regular {
        (metadata.len(), None)
    } else {
        let size = device_bytes(file.as_fd()).map_err(|errno| format!("{path}: its size cannot be found: {errno}"))?;
        let block =
            rustix::fs::ioctl_blksszget(&file).map_err(|errno| format!("{path}: its block size cannot be found: {errno}"))?;
        (size, Some(block))
    };
    let block_bytes = choose_block(options, wanted_block, device_block)?;
    let sector_count = check_size(options, size_bytes, block_bytes)?;

    let alignment = mode::choose(options, &file, is_taken_over, device_block, size_bytes)?;
    let mut capabilities = capabilities(options.read_only);
    if !options.read_only && !can_discard(&file, &metadata, size_bytes) {
        capabilities &= !CAPABILITY_DISCARD;
    }
    let optimal = alignment.map_or(0, |alignment| alignment.unit_mask + 1).max(page_bytes());
    new.iter_mut().for_each(NewFile::keep);
    let faults = Faults::new(Some(&options.path));
    let target = Arc::new(Target::new(file.into(), alignment, block_bytes, size_bytes, is_regular, faults));
    let usual = description(sector_count, block_bytes, capabilities, identity_of(&metadata));
    let info = BlockInfo { optimal_bytes: u32::try_from(optimal).unwrap_or(block_bytes).max(block_bytes), ..usual };
    Ok(FileDisk { target, path: options.path.clone(), info, new })
}

fn find(options: &FileOptions, source: Source) -> Result<(File, Option<NewFile>), String> {
    let path = options.path.display();
    let served = match source {
        Source::Passed(file) | Source::ServedAsPassed(file) => return Ok((continue_with(options, file)?, None)),
        Source::Served(file) => Some(file),
        Source::Path => None,
    };
    match (std::fs::metadata(&options.path), served) {
        (Ok(metadata), None) => Ok((open_existing(options, &metadata)?, None)),
        (Ok(metadata), Some(served)) => Ok((take_over(options, &metadata, served)?, None)),
        (Err(error), None) if error.kind() == io::ErrorKind::NotFound => create(options),
        (Err(error), _) => Err(format!("{path} cannot be looked at: {error}; check the path and its directories' permissions")),
    }
}

/// The same whenever the file or device is opened. The inode number of a removed file is reused: the creation time
/// distinguishes the two.
fn identity_of(metadata: &Metadata) -> [u8; 16] {
    let mut identity = [0; 16];
    let made = || metadata.created().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok();
    let (device, number) = match metadata.is_file() {
        true => (metadata.dev() ^ made().map_or(0, |time| mix(u64::try_from(time.as_nanos()).unwrap_or(0))), metadata.ino()),
        false => (metadata.rdev(), 0),
    };
    identity[..8].copy_from_slice(&device.to_le_bytes());
    identity[8..].copy_from_slice(&number.to_le_bytes());
    identity
}

/// Spreads the bits of a time, so that it does not cancel those of a device's number.
const fn mix(value: u64) -> u64 {
    (value ^ (value >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn check_kind(options: &FileOptions, metadata: &Metadata) -> Result<(), String> {
    let (path, kind) = (options.path.display(), metadata.file_type());
    if kind.is_dir() {
        return Err(format!("{path} is a directory; give the path of a file in it, with size=SIZE if it is to be created"));
    }
    if !kind.is_file() && !kind.is_block_device() {
        return Err(format!("{path} is neither a regular file nor a block device; give one of these"));
    }
    Ok(())
}

fn open_existing(options: &FileOptions, metadata: &Metadata) -> Result<File, String> {
    let path = options.path.display();
    check_kind(options, metadata)?;
    let kind = metadata.file_type();
    let mut how = OpenOptions::new();
    how.read(true).write(!options.read_only);
    if kind.is_block_device() && !options.read_only {
        // Exclusive: the kernel refuses while the device is mounted or part of another one.
        how.custom_flags(OFlags::EXCL.bits().cast_signed());
    }
    let mut opened = how.open(&options.path);
    if kind.is_block_device() && opened.as_ref().is_err_and(|error| Errno::from_io_error(error) == Some(Errno::BUSY)) {
        // Perhaps requests in flight of a killed daemon: its locks show that, and end with its exclusive use.
        if let Ok(shared) = OpenOptions::new().read(true).write(true).open(&options.path) {
            lock(options, &shared)?;
        }
        opened = how.open(&options.path);
    }
    let file = opened.map_err(|error| open_text(options, metadata, &error))?;
    let opened = file.metadata().map_err(|error| format!("{path}: {error}"))?;
    if place_of(metadata) != place_of(&opened) {
        return Err(format!("{path} was replaced while it was opened; try again"));
    }
    lock(options, &file)?;
    Ok(file)
}

/// Continue with an open file: its lock belongs to the open file, not to a process, so it is never free in between.
fn take_over(options: &FileOptions, metadata: &Metadata, served: File) -> Result<File, String> {
    let path = options.path.display();
    let opened = served.metadata().map_err(|error| format!("{path}: {error}"))?;
    if place_of(metadata) != place_of(&opened) {
        return Err(format!(
            "{path} is not the file that the running daemon serves; give the path of that, or restart the daemon"
        ));
    }
    continue_with(options, served)
}

/// It has its locks, or those of an older daemon, or none yet.
fn continue_with(options: &FileOptions, file: File) -> Result<File, String> {
    let path = options.path.display();
    let metadata = file.metadata().map_err(|error| format!("{path}: {error}"))?;
    check_kind(options, &metadata)?;
    let mode = rustix::fs::fcntl_getfl(&file).map_err(|error| format!("{path}: {error}"))? & OFlags::RWMODE;
    let wanted = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if mode != wanted {
        return Err(format!("{path} is open otherwise as far as ro goes; leave that as it is, or restart the daemon"));
    }
    lock(options, &file)?;
    Ok(file)
}

fn open_text(options: &FileOptions, metadata: &Metadata, error: &io::Error) -> String {
    let path = options.path.display();
    let purpose = if options.read_only { "reading" } else { "reading and writing" };
    let advice = match Errno::from_io_error(error) {
        Some(Errno::ACCESS) => {
            let (mode, user, group) = (metadata.mode() & 0o7777, metadata.uid(), metadata.gid());
            let remedy = if options.read_only { "" } else { ", or add ro" };
            format!("it has mode {mode:04o} and belongs to user {user}, group {group}; change these or the daemon's user{remedy}")
        }
        Some(Errno::ROFS) => "its file system is read-only; add ro".into(),
        Some(Errno::PERM) => "it is immutable or append-only (lsattr); clear that with chattr, or add ro".into(),
        Some(Errno::BUSY) => "the device is in use (mounted, swap, or part of RAID or LVM); release it, or add ro".into(),
        Some(Errno::TXTBSY) => "it is a program that runs, or an active swap file; give another file".into(),
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit of open files (`ulimit -n`, LimitNOFILE=)".into(),
        _ => "check the path and the device".into(),
    };
    format!("{path} cannot be opened for {purpose} ({error}): {advice}")
}

fn create(options: &FileOptions) -> Result<(File, Option<NewFile>), String> {
    let path = options.path.display();
    let Some(size_bytes) = options.size_bytes else {
        return Err(format!("{path} does not exist; add size=SIZE to create it, or correct the path"));
    };
    if options.read_only {
        return Err(format!("{path} does not exist and ro does not create it; leave out ro, or correct the path"));
    }
    sectors_of(size_bytes, options.block_bytes.unwrap_or(512))?;
    let (file, new) = NewFile::create(&options.path).map_err(|error| {
        format!("{path} cannot be created ({error}); check that its directory exists and that the daemon may write there")
    })?;
    lock(options, &file)?;
    file.set_len(size_bytes).map_err(|error| {
        format!(
            "{path} cannot be made {size_bytes} bytes long ({error}); the file system may limit file sizes, give a smaller size"
        )
    })?;
    Ok((file, Some(new)))
}

fn choose_block(options: &FileOptions, wanted: u32, device_block: Option<u32>) -> Result<u32, String> {
    let path = options.path.display();
    match device_block {
        Some(device) if !matches!(device, 512 | 1024 | 2048 | 4096) => {
            Err(format!("the device {path} has blocks of {device} bytes; 512 to 4096 are supported"))
        }
        Some(device) if options.block_bytes.is_none() => Ok(device),
        _ => Ok(wanted),
    }
}

fn check_size(options: &FileOptions, size_bytes: u64, block_bytes: u32) -> Result<u64, String> {
    let path = options.path.display();
    match options.size_bytes {
        Some(wanted) if wanted > size_bytes => {
            return Err(format!(
                "{path} has {size_bytes} bytes, less than size={wanted}; leave out size= and resize the disk, or grow the file with \
                 `truncate -s {wanted}`"
            ));
        }
        Some(wanted) if wanted < size_bytes => {
            return Err(format!(
                "{path} has {size_bytes} bytes, more than size={wanted}; leave out size=, or give size={size_bytes} (cutting the \
                 file with `truncate -s` would lose data)"
            ));
        }
        _ => {}
    }
    if size_bytes == 0 {
        return Err(format!(
            "{path} is empty; give it a size with `truncate -s SIZE`, or remove it and add size=SIZE to create it"
        ));
    }
    sectors_of(size_bytes, block_bytes).map_err(|text| format!("{path}: {text} (`truncate -s` changes it)"))
}

pub(super) fn device_bytes(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    rustix::fs::seek(file, SeekFrom::End(0))
}

/// Can ranges be deallocated? Tested without a change.
fn can_discard(file: &File, metadata: &Metadata, size_bytes: u64) -> bool {
    if metadata.is_file() {
        // A hole behind the end of the file.
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        return rustix::fs::fallocate(file, how, size_bytes.next_multiple_of(page_bytes()), page_bytes()).is_ok();
    }
    // The kernel punches holes into devices by their write-zeroes command. A partition's limits are its parent's.
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    ["queue", "../queue"].into_iter().any(|queue| {
        let limit = Path::new("/sys/dev/block").join(format!("{major}:{minor}")).join(queue).join("write_zeroes_max_bytes");
        std::fs::read_to_string(limit).is_ok_and(|text| text.trim() != "0")
    })
}

/// A file that opening a disk created: removed when dropped, unless kept.
#[derive(Debug)]
pub(super) struct NewFile {
    path: PathBuf,
    /// The path may later lead to another file.
    place: FileIdentity,
    is_kept: bool,
}

impl NewFile {
    /// Create an empty file, where there is none, and open it.
    ///
    /// In two steps: landlock and others check creation and writing separately, and a file
    /// that is created and then not writable would stay behind. Opened for reading, it is known to be ours.
    pub(super) fn create(path: &Path) -> io::Result<(File, Self)> {
        let how = OFlags::CREATE | OFlags::EXCL | OFlags::RDONLY | OFlags::CLOEXEC;
        let made = File::from(rustix::fs::open(path, how, Mode::RUSR | Mode::WUSR)?);
        let new = Self { path: path.to_owned(), place: place_of(&made.metadata()?), is_kept: false };
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        match new.place == place_of(&file.metadata()?) {
            true => Ok((file, new)),
            false => Err(io::Error::other("it was replaced in the moment in which it was made")),
        }
    }

    pub(super) fn keep(&mut self) {
        self.is_kept = true;
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        match self.path.symlink_metadata() {
            Ok(found) if self.place == place_of(&found) => std::fs::remove_file(&self.path),
            _ => Ok(()),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.remove();
        }
    }
}

/// Device and inode; and for a device file, the device.
type FileIdentity = (u64, u64, u64);

fn place_of(metadata: &Metadata) -> FileIdentity {
    (metadata.dev(), metadata.ino(), metadata.rdev())
}
