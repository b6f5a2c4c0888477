//! Opening, describing, reconnecting and closing a disk.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use fipsee_block::client::{Disk, Error, Queue, ReconnectPolicy};
use fipsee_block::wire::SECTOR_SHIFT;
use fipsee_topology::near::Near;
use rustix::io::Errno;

use crate::failure::{Failure, guarded, null};
use crate::fork::Opener;
use crate::function::functions;
use crate::memory::Registry;
use crate::options::{self, Info, Options, Wanted};
use crate::queue::OpenQueue;

/// State shared by a disk and its queues.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) disk: Disk,
    pub(crate) registry: Registry,
    /// How waiting calls try to reconnect.
    pub(crate) reconnect: Option<ReconnectPolicy>,
}

/// `struct fipsee_disk`.
pub(crate) struct OpenDisk {
    pub(crate) common: Arc<Common>,
    /// From a box. Raw, because C uses each queue through a pointer of its own, in threads of its own, at any time.
    queues: *mut [OpenQueue],
    near: Near,
    opener: Opener,
}

impl OpenDisk {
    fn open(wanted: Wanted) -> Result<Self, Failure> {
        let opener = Opener::this();
        let (disk, queues) = Disk::attach(&wanted.socket, &wanted.attach).map_err(|error| match error {
            Error::Refused { text, .. } if wanted.attach.name.is_empty() => {
                Failure::invalid(format!("{text}; set options->disk"))
            }
            other => other.into(),
        })?;
        let common = Arc::new(Common { disk, registry: Registry::default(), reconnect: wanted.reconnect });
        let near = Near::new(queues.iter().map(Queue::worker_cpu).collect());
        let queues = queues.into_iter().map(|queue| OpenQueue::new(queue, Arc::clone(&common), opener));
        let queues = Box::into_raw(queues.collect::<Box<[_]>>());
        Ok(Self { common, queues, near, opener })
    }

    /// C's handle of a disk.
    ///
    /// # Safety
    /// `disk` is null or open, and stays so while the reference exists.
    pub(crate) unsafe fn from_c<'a>(disk: *const Self) -> Result<&'a Self, Failure> {
        // SAFETY: promised by the caller; only `fipsee_close` ever makes a `&mut` of it.
        let disk = unsafe { disk.as_ref() }.ok_or_else(|| null("disk"))?;
        disk.opener.check()?;
        Ok(disk)
    }

    fn check_queue(&self, index: usize) -> Result<(), Failure> {
        let count = self.queues.len();
        if index < count {
            return Ok(());
        }
        let text =
            format!("there is no queue {index}; the disk has {count}, numbered from 0 (options.queue_count asks for more)");
        Err(Failure::invalid(text))
    }

    fn describe(&self) -> Info {
        let info = self.common.disk.info();
        Info {
            size_bytes: 0,
            capacity_bytes: info.size_bytes(),
            block_bytes: info.block_bytes,
            optimal_bytes: info.optimal_bytes,
            max_transfer_bytes: info.max_transfer_bytes,
            max_segments: info.max_segments,
            max_range_bytes: u64::from(info.max_range_sectors) << SECTOR_SHIFT,
            capabilities: info.capabilities,
            queue_count: u32::try_from(self.queues.len()).unwrap_or(u32::MAX),
            identity: info.identity,
        }
    }

    /// Release everything in order.
    ///
    /// # Safety
    /// The disk's queues and memory are no longer in use.
    unsafe fn close(self) -> Result<(), Failure> {
        // SAFETY: it came from a box, and there is no other pointer to it.
        let queues = unsafe { Box::from_raw(self.queues) };
        let queues = queues.into_iter().map(OpenQueue::into_queue).collect();
        // The queues' shares are dropped, so ours is the last.
        match Arc::into_inner(self.common) {
            Some(common) => Ok(common.disk.detach(queues)?),
            None => Ok(()),
        }
    }
}

/// See the header.
///
/// # Safety
/// `options` is null or as the header says; `disk` is null or valid for a write.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_open(options: *const Options, disk: *mut *mut OpenDisk) -> c_int {
    guarded(|| {
        if disk.is_null() {
            return Err(null("disk"));
        }
        // SAFETY: promised by the caller.
        let wanted = unsafe { options::read(options) }?;
        let open = Box::into_raw(Box::new(OpenDisk::open(wanted)?));
        // SAFETY: not null, the rest was promised.
        unsafe { disk.write(open) };
        Ok(0)
    })
}

/// See the header.
///
/// # Safety
/// `disk` is null or open, and neither it nor its queues or memory are still in use.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_close(disk: *mut OpenDisk) -> c_int {
    guarded(|| {
        if disk.is_null() {
            return Ok(0);
        }
        // SAFETY: promised by the caller.
        unsafe { OpenDisk::from_c(disk) }?;
        // SAFETY: it came from a box in `fipsee_open`, and it is the caller's to give.
        let open = unsafe { Box::from_raw(disk) };
        // SAFETY: promised by the caller.
        unsafe { open.close() }?;
        Ok(0)
    })
}

functions! {
    "`disk` is null or open, and no other thread uses what the call changes."

    fn fipsee_get_info(disk: OpenDisk, info: *mut Info) {
        // SAFETY: promised by the caller.
        unsafe { disk.describe().give(info) }?;
        Ok(0)
    }
}

/// See the header.
///
/// # Safety
/// `disk` is null or open.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fipsee_get_queue(disk: *const OpenDisk, index: u32) -> *mut OpenQueue {
    let mut queue = std::ptr::null_mut();
    guarded(|| {
        // SAFETY: promised by the caller.
        let disk = unsafe { OpenDisk::from_c(disk) }?;
        let index = index as usize;
        disk.check_queue(index)?;
        // Address only: another thread may be using the queue.
        queue = disk.queues.cast::<OpenQueue>().wrapping_add(index);
        Ok(0)
    });
    queue
}

functions! {
    "`disk` is null or open, and no other thread uses what the call changes."

    fn fipsee_place_thread(disk: OpenDisk, queue: u32) {
        disk.check_queue(queue as usize)?;
        disk.near.place_thread(queue as usize).map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
            Failure::new(errno, format!("this thread cannot be bound near the worker of queue {queue}: {error}; it runs where it did"))
        })?;
        Ok(0)
    }

    fn fipsee_reconnect(disk: OpenDisk, give_up_after_ns: u64) {
        // SAFETY: the queues are ours alone meanwhile, and exist as long as the disk.
        let queues = unsafe { &mut *disk.queues };
        let policy = ReconnectPolicy::within(Duration::from_nanos(give_up_after_ns));
        disk.common.disk.reconnect(queues, &policy, &mut |_| {})?;
        Ok(0)
    }
}
