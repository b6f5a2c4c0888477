//! The part of the disk that each queue uses, and whether the settings fit the disk.

use fipsee_block::wire::{BlockInfo, CAPABILITY_WRITE};

use super::{LoadError, Settings};
use crate::pattern::Blocks;

/// Give each queue blocks of its own, so that it must read what it wrote.
pub(super) fn divide(settings: &Settings, info: &BlockInfo, queues: u64, depth: u64) -> Result<Vec<Blocks>, LoadError> {
    let (first, per_queue) = check(settings, info, queues, depth).map_err(LoadError::Settings)?;
    let blocks = |queue| Blocks::new(first + queue * per_queue, per_queue, settings.block_bytes, settings.verify);
    Ok((0..queues).map(blocks).collect())
}

/// The number of the first block, and the blocks of each queue; or what does not fit and what would.
fn check(settings: &Settings, info: &BlockInfo, queues: u64, depth: u64) -> Result<(u64, u64), String> {
    let (request, unit, size) = (settings.block_bytes, u64::from(info.block_bytes), info.size_bytes());
    let (start, length) = settings.range_bytes;
    let (disk, shown) = (&settings.disk, option_size(request));
    if settings.mix.writes() && !info.can(CAPABILITY_WRITE) {
        return Err(format!("disk '{disk}' is exported for reading only; use --rw randread or read, or serve it without ro"));
    }
    let most = u64::from(info.max_transfer_bytes) / unit * unit;
    if request > most {
        return Err(format!(
            "--bs {shown} is longer than the longest request of disk '{disk}'; use --bs {} at most",
            option_size(most)
        ));
    }
    if request == 0 || !request.is_multiple_of(unit) {
        let near = neighbours(request, unit);
        return Err(format!("--bs {shown} is no multiple of the {unit} bytes of a block of disk '{disk}'; use --bs {near}"));
    }
    if start >= size {
        let (start, size) = (option_size(start), option_size(size));
        return Err(format!("--offset {start} is not on disk '{disk}', which has {size}; use a smaller one"));
    }
    if !start.is_multiple_of(request) {
        let (near, start) = (neighbours(start, request), option_size(start));
        return Err(format!("--offset {start} is no multiple of --bs {shown}; use --offset {near}"));
    }
    let left = size - start;
    if length > left {
        let (length, left) = (option_size(length), option_size(left));
        return Err(format!("--range {length} goes beyond the end of disk '{disk}'; use --range {left} at most"));
    }
    let length = if length == 0 { left } else { length };
    let per_queue = length / request / queues;
    if per_queue < depth {
        let larger = if length == left { "disk" } else { "--range" };
        let less = match per_queue {
            0 => "a smaller --bs".to_owned(),
            _ => format!("--depth {per_queue} at most, a smaller --bs"),
        };
        return Err(format!(
            "{queues} x {depth} requests (--queues, --depth) of {shown} do not fit into {}; use {less}, or a larger {larger}",
            option_size(length)
        ));
    }
    Ok((start / request, per_queue))
}

/// The multiples of `unit` on both sides of `value`, without 0.
fn neighbours(value: u64, unit: u64) -> String {
    let below = value / unit * unit;
    let above = option_size(below.saturating_add(unit));
    if below == 0 { above } else { format!("{} or {above}", option_size(below)) }
}

/// A number of bytes as options take it, exactly.
fn option_size(bytes: u64) -> String {
    let unit = [(40, "T"), (30, "G"), (20, "M"), (10, "K")].into_iter().find(|(shift, _)| bytes >> shift << shift == bytes);
    unit.filter(|_| bytes > 0).map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}
