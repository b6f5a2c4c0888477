//! Page cache or direct I/O: chosen when a file is opened, for as long as it is open.

use std::fs::File;
use std::os::fd::AsFd;

use fipsee_serve::uring::MAX_BUFFER_BYTES;
use rustix::fs::{AtFlags, IFlags, OFlags, StatxFlags};
use rustix::io::Errno;

use super::window::Alignment;
use super::{DirectMode, FileOptions};
use crate::disk::page_bytes;

/// The largest block of a file system: 64 KiB.
const MAX_BLOCK_BYTES: u64 = 64 << 10;
/// Buffers are aligned to this.
const MAX_MEMORY_ALIGNMENT_BYTES: u64 = 4096;

const EXT4_MAGIC: u64 = 0xef53;
pub(super) const NFS_MAGIC: u64 = 0x6969;
/// File systems that consist of page cache only.
const IN_MEMORY_MAGICS: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// The alignment of direct I/O with this file; `None`: it goes through the page cache. `is_taken_over`: another daemon opened the
/// file, and its mode is kept.
///
/// # Errors
/// Direct I/O is required and not possible; or the mode differs from the required one, and can no longer be changed.
pub(super) fn choose(
    options: &FileOptions,
    file: &File,
    is_taken_over: bool,
    device_block: Option<u32>,
    size_bytes: u64,
) -> Result<Option<Alignment>, String> {
    let path = options.path.display();
    let flags = rustix::fs::fcntl_getfl(file).map_err(|errno| format!("{path}: {errno}"))?;
    if is_taken_over {
        let is_direct = flags.contains(OFlags::DIRECT);
        match (options.direct, is_direct) {
            (DirectMode::On, false) | (DirectMode::Off, true) => {
                return Err(format!(
                    "{path} is served {} by the running daemon, which cannot change; leave direct= as it was, or restart the daemon",
                    if is_direct { "past the page cache" } else { "through the page cache" },
                ));
            }
            (_, false) => return Ok(None),
            (_, true) => return alignment(file, device_block, size_bytes).map(Some).map_err(|text| format!("{path}: {text}")),
        }
    }
    if options.direct == DirectMode::Off {
        return Ok(None);
    }
    let found = set_direct(file, flags | OFlags::DIRECT).and_then(|()| alignment(file, device_block, size_bytes));
    match found {
        Ok(alignment) => Ok(Some(alignment)),
        Err(text) if options.direct == DirectMode::On => Err(format!("{path}: {text}; use direct=auto or direct=off")),
        Err(_) => {
            set_direct(file, flags).map_err(|text| format!("{path}: {text}; use direct=off"))?;
            Ok(None)
        }
    }
}

fn set_direct(file: &File, flags: OFlags) -> Result<(), String> {
    rustix::fs::fcntl_setfl(file, flags).map_err(|errno| match errno {
        Errno::INVAL => "its file system refuses O_DIRECT".to_owned(),
        errno => format!("O_DIRECT cannot be set ({errno})"),
    })
}

/// The alignment of direct transfers, with a file that is open for them.
fn alignment(file: &File, device_block: Option<u32>, size_bytes: u64) -> Result<Alignment, String> {
    let magic = magic_of(file);
    if device_block.is_none() && IN_MEMORY_MAGICS.contains(&magic) {
        return Err("its file system is the page cache itself, there is nothing past it".to_owned());
    }
    let (memory, offset) = transfer_alignment(file, device_block)?;
    let block =
        rustix::fs::fstatvfs(file).map_or(0, |stat| stat.f_frsize).clamp(page_bytes(), MAX_BLOCK_BYTES).next_power_of_two();
    let unit = if device_block.is_some() || takes_parts_of_blocks(file, magic) { offset } else { offset.max(block) };
    if memory > MAX_MEMORY_ALIGNMENT_BYTES || unit > MAX_BUFFER_BYTES as u64 {
        return Err(format!(
            "its file system wants direct I/O aligned to {memory} bytes of memory and {unit} of the file, more than is supported"
        ));
    }
    let found = Alignment { memory_mask: memory - 1, unit_mask: unit - 1, range_mask: block.max(unit) - 1 };
    check_whole_units(Some(found), size_bytes)?;
    Ok(found)
}

pub(super) fn magic_of(file: &File) -> u64 {
    rustix::fs::fstatfs(file).map_or(0, |stat| stat.f_type.cast_unsigned())
}

/// Does direct I/O of less than a block of the file system always bypass its page cache? XFS uses the page cache for it once
/// another file shares blocks with this one (`cp --reflink`, which is how cp works there), btrfs always, and of others
/// we do not know. ext4 does not, except in files of its predecessors without extents.
fn takes_parts_of_blocks(file: &File, magic: u64) -> bool {
    match magic {
        EXT4_MAGIC => rustix::fs::ioctl_getflags(file).is_ok_and(|flags| flags.contains(IFlags::from_bits_retain(EXTENTS))),
        NFS_MAGIC => true,
        _ => false,
    }
}

/// `FS_EXTENT_FL` of `linux/fs.h`.
const EXTENTS: u32 = 0x0008_0000;

/// If the size is not a whole number of units, direct I/O cannot write its end.
pub(super) fn check_whole_units(alignment: Option<Alignment>, size_bytes: u64) -> Result<(), String> {
    let unit = alignment.map_or(1, |alignment| alignment.unit_mask + 1);
    if size_bytes.is_multiple_of(unit) {
        return Ok(());
    }
    let (below, above) = (size_bytes / unit * unit, size_bytes.next_multiple_of(unit));
    Err(format!(
        "direct I/O needs a size that is a multiple of {unit} bytes here, not {size_bytes}; use {below} or {above}, or direct=off"
    ))
}

/// The alignment of direct transfers, in bytes: memory, offset. Powers of two.
fn transfer_alignment(file: &File, device_block: Option<u32>) -> Result<(u64, u64), String> {
    if let Ok(stat) = rustix::fs::statx(file.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN)
    {
        let (memory, offset) = (u64::from(stat.stx_dio_mem_align), u64::from(stat.stx_dio_offset_align));
        return match memory.is_power_of_two() && offset.is_power_of_two() {
            true => Ok((memory, offset)),
            false => Err("its file system has no direct I/O for this file".to_owned()),
        };
    }
    // Linux before 6.1, or a file system that does not report it: try.
    let mut memory = vec![0_u8; 3 * 4096];
    let start = memory.as_ptr().align_offset(4096);
    let smallest = device_block.map_or(512, u64::from);
    let found = [512, 1024, 2048, 4096].into_iter().filter(|bytes| *bytes >= smallest).find_map(|bytes| {
        // Aligned to exactly `bytes`.
        let skip = start + usize::try_from(bytes).ok()?;
        let place = memory.get_mut(skip..skip + usize::try_from(bytes).ok()?)?;
        rustix::io::pread(file, place, 0).ok().map(|_| (bytes, bytes))
    });
    found.ok_or_else(|| "its file system refuses direct I/O of up to 4096 bytes".to_owned())
}
