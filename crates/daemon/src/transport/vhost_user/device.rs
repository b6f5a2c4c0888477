//! A device as its hypervisor has described it so far, and the queues that come of it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fipsee_block::wire::BlockInfo;
use fipsee_ring::handshake::HANDSHAKE_TIMEOUT;
use fipsee_virtio::blk::config;
use fipsee_virtio::blk::server::VirtqueueSetup;
use fipsee_virtio::blk::upgrade::desk::Desk;
use fipsee_virtio::core::DeviceQueueSetup;
use fipsee_virtio::core::inflight::InflightArea;
use fipsee_virtio::core::memory::{DirtyLog, GuestMemory};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_FLUSH};

use super::channel;
use super::queue::{Fill, MAX_SIZE, Queue, Serving, UserRings};
use super::table::{Extent, Table};

/// vhost-user's own bit among those of virtio: there are protocol features.
pub(super) const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Writes to memory are logged (VHOST_F_LOG_ALL).
pub(super) const LOG_ALL: u64 = 1 << 26;
/// Longest serial number of a virtio-blk device.
const SERIAL_BYTES: usize = 20;

/// A device, for as long as one connection lasts.
pub(super) struct Device {
    pub(super) serving: Serving,
    pub(super) queues: Vec<Queue>,
    /// Virtio features in force.
    pub(super) features: u64,
    /// Did the hypervisor ask for what is offered, and what did it set last? Crate `vhost` knows, and does not tell.
    pub(super) asked_features: bool,
    pub(super) acked_features: u64,
    pub(super) protocol_features: u64,
    pub(super) table: Table,
    pub(super) memory: Arc<GuestMemory>,
    /// Rings that the guest has gone over to.
    pub(super) desk: Desk,
    /// The cache mode that the guest sees and sets.
    pub(super) writeback: Arc<AtomicBool>,
    pub(super) inflight: Option<InflightArea>,
    pub(super) log: Option<Arc<DirtyLog>>,
    pub(super) channel: Option<UnixStream>,
}

impl Device {
    /// A device that knows nothing of its hypervisor yet.
    pub(super) fn new(serving: Serving, queues: u16) -> Self {
        Self {
            serving,
            queues: (0..queues).map(|_| Queue::default()).collect(),
            features: 0,
            asked_features: false,
            acked_features: 0,
            protocol_features: 0,
            table: Table::default(),
            memory: Arc::default(),
            desk: Desk::default(),
            writeback: Arc::new(AtomicBool::new(true)),
            inflight: None,
            log: None,
            channel: None,
        }
    }

    fn info(&self) -> BlockInfo {
        self.serving.export.info(false)
    }

    /// Virtio features that are offered.
    pub(super) fn offered(&self) -> u64 {
        config::features(&self.info(), self.serving.export.is_read_only()) | PROTOCOL_FEATURES
    }

    pub(super) fn queue_count(&self) -> u16 {
        u16::try_from(self.queues.len()).unwrap_or(u16::MAX)
    }

    /// The queue of that number.
    pub(super) fn queue(&mut self, index: u32) -> Result<&mut Queue, String> {
        let count = self.queues.len();
        let queue = usize::try_from(index).ok().and_then(|index| self.queues.get_mut(index));
        queue.ok_or_else(|| format!("there is no queue {index}: the device has {count} (max_queues)"))
    }

    /// Change something that a queue is started with.
    pub(super) fn change_queue(
        &mut self,
        index: u32,
        change: impl FnOnce(&mut Queue) -> Result<(), String>,
    ) -> Result<(), String> {
        self.stop(index)?;
        change(self.queue(index)?)?;
        self.start(index)
    }

    /// SET_FEATURES. While queues run, only logging can begin and end without their being stopped for a moment.
    pub(super) fn set_features(&mut self, features: u64) -> Result<(), String> {
        let unknown = features & !self.offered();
        if unknown != 0 {
            return Err(format!("virtio features {unknown:#x} are not offered"));
        }
        let changed = self.features ^ features;
        if changed & LOG_ALL != 0 {
            self.logging_changes(features);
        }
        self.features = features;
        if changed & !LOG_ALL != 0 {
            // Who cannot flush must not need to.
            let can_flush = features & (1 << VIRTIO_BLK_F_FLUSH | 1 << VIRTIO_BLK_F_CONFIG_WCE) != 0;
            self.writeback.store(can_flush, Ordering::Relaxed);
            self.stop_all();
        } else if changed != 0 {
            self.set_logs();
        }
        self.start_all()
    }

    /// SET_LOG_BASE.
    pub(super) fn set_log(&mut self, file: File, length_bytes: u64, offset_bytes: u64) -> Result<(), String> {
        let log = DirtyLog::map(file.into(), length_bytes, offset_bytes);
        self.log = Some(Arc::new(log.map_err(|error| format!("the log of writes cannot be mapped: {error}"))?));
        self.set_logs();
        Ok(())
    }

    fn log_in_force(&self) -> Option<Arc<DirtyLog>> {
        self.log.clone().filter(|_| self.features & LOG_ALL != 0)
    }

    fn set_logs(&self) {
        for (index, queue) in (0..).zip(&self.queues) {
            queue.set_log(index, &self.serving, self.log_in_force());
        }
    }

    /// SET_VRING_ADDR. When migration begins it comes again for running queues, with the address of their log.
    pub(super) fn set_rings(&mut self, index: u32, rings: UserRings) -> Result<(), String> {
        let log = self.log_in_force();
        let queue = self.queue(index)?;
        let old = queue.rings.replace(rings);
        if queue.is_served() {
            let moved = old.is_none_or(|old| UserRings { log: None, ..old } != UserRings { log: None, ..rings });
            if moved {
                self.stop(index)?;
            } else {
                let number = number_of(index);
                self.queues[usize::from(number)].set_log(number, &self.serving, log);
            }
        }
        self.start(index)
    }

    /// SET_MEM_TABLE.
    pub(super) fn set_memory(&mut self, regions: Vec<(Extent, u64, OwnedFd)>) -> Result<(), String> {
        let mut table = Table::default();
        for (extent, file_offset_bytes, file) in regions {
            table.add(extent, file_offset_bytes, file)?;
        }
        self.change_memory(table)
    }

    /// ADD_MEM_REG.
    pub(super) fn add_region(&mut self, extent: Extent, file_offset_bytes: u64, file: File) -> Result<(), String> {
        let mut table = self.table.clone();
        table.add(extent, file_offset_bytes, file.into())?;
        self.change_memory(table)
    }

    /// REM_MEM_REG.
    pub(super) fn remove_region(&mut self, extent: Extent) -> Result<(), String> {
        let mut table = self.table.clone();
        table.remove(extent)?;
        self.change_memory(table)
    }

    /// Serve in other memory. Nothing is in flight in the old one, and nothing of it is mapped, when this returns.
    fn change_memory(&mut self, table: Table) -> Result<(), String> {
        let memory = table.memory()?;
        self.memory_changes(&memory);
        // All are asked before one is awaited: they finish what is in flight side by side.
        let asked: Vec<_> =
            (0..).zip(&self.queues).map(|(index, queue)| queue.begin_memory(index, &self.serving, &memory)).collect();
        for (index, asked) in (0..).zip(asked) {
            let moved = match asked {
                Ok(None) => continue,
                Ok(Some(moved)) => moved.recv().unwrap_or_else(|_| Err("its worker is gone".to_owned())),
                Err(problem) => Err(problem),
            };
            if let Err(problem) = moved {
                tracing::warn!(disk = self.serving.export.name(), queue = index, problem, "a queue stops with its memory");
                self.stop(index)?;
            }
        }
        self.table = table;
        self.memory = memory;
        self.start_all()
    }

    fn start_all(&mut self) -> Result<(), String> {
        (0..u32::from(self.queue_count())).try_for_each(|index| self.start(index))
    }

    /// Serve a queue, if all is known that it needs and nobody does. One whose rings do not lie in the guest's memory waits for other
    /// memory or other rings.
    pub(super) fn start(&mut self, index: u32) -> Result<(), String> {
        let number = number_of(index);
        let is_on = self.features & PROTOCOL_FEATURES == 0 || self.queue(index)?.enabled;
        if self.features == 0 || !is_on || self.queue(index)?.is_served() {
            return Ok(());
        }
        if !self.queues[usize::from(number)].is_described() {
            return Ok(());
        }
        self.serving.export.claim(self.serving.client, HANDSHAKE_TIMEOUT)?;
        let fill = self.fill(number);
        let memory = Arc::clone(&self.memory);
        let queue = &mut self.queues[usize::from(number)];
        let started = queue.start(number, &self.serving, &memory, fill).inspect_err(|problem| {
            tracing::warn!(disk = self.serving.export.name(), queue = number, problem, "a queue cannot be served");
        });
        if let Ok(true) = started {
            self.publish_queues();
        }
        Ok(())
    }

    pub(super) fn fill(&self, index: u16) -> Fill {
        let (memory, features, log) = (Arc::clone(&self.memory), self.features, self.log_in_force());
        let (info, read_only) = (self.info(), self.serving.export.is_read_only());
        let (writeback, serial) = (Arc::clone(&self.writeback), serial(self.serving.export.name(), &info));
        let inflight = self.inflight.as_ref().and_then(|area| area.queue(index));
        Box::new(move |parts| VirtqueueSetup {
            queue: DeviceQueueSetup {
                memory,
                size: parts.size,
                descriptor_address: parts.rings.descriptor,
                available_address: parts.rings.available,
                used_address: parts.rings.used,
                next_available: parts.next_available,
                features,
                kick: parts.kick,
                call: parts.call,
                error: parts.error,
                inflight,
                used_log_address: parts.used_log_address.filter(|_| log.is_some()),
                log,
            },
            info,
            read_only,
            writeback,
            serial,
            counters: parts.counters,
            takes_questions: true,
        })
    }

    /// Let a queue go, once nothing of it is in flight.
    pub(super) fn stop(&mut self, index: u32) -> Result<(), String> {
        let number = number_of(index);
        self.doorbell_stops(index);
        let stopped =
            self.queue(index)?.worker().and_then(|_| self.queues[usize::from(number)].begin_stop(number, &self.serving));
        self.queues[usize::from(number)].finish_stop(stopped.as_ref());
        Ok(())
    }

    /// GET_VRING_BASE. Nothing of the queue is in flight any more; of the device neither, if it was the last.
    pub(super) fn give_back(&mut self, index: u32) -> Result<u16, String> {
        self.stop(index)?;
        let queue = self.queue(index)?;
        (queue.kick, queue.call) = (None, None);
        let next_available = queue.next_available;
        self.end_claim();
        Ok(next_available)
    }

    /// If no queue is served, others may write.
    fn end_claim(&self) {
        if !self.queues.iter().any(Queue::is_served) {
            self.serving.export.end_claim(self.serving.client);
        }
    }

    /// Let all queues go.
    pub(super) fn stop_all(&mut self) {
        self.end_attachment();
        let stopping: Vec<_> = (0..).zip(&self.queues).map(|(index, queue)| queue.begin_stop(index, &self.serving)).collect();
        for (queue, stopped) in self.queues.iter_mut().zip(stopping) {
            queue.finish_stop(stopped.as_ref());
        }
    }

    /// The device is reset: what the hypervisor said of queues and features holds no more; its memory does.
    pub(super) fn reset(&mut self) {
        self.stop_all();
        self.features = 0;
        self.desk.set_migrating(false);
        self.queues.iter_mut().for_each(Queue::forget);
        self.end_claim();
    }

    /// SET_OWNER. QEMU does not hang up when a device is taken out of a running machine: the one that is put in speaks on the same
    /// connection, and tells of its memory from the beginning.
    pub(super) fn begin_session(&mut self) -> Result<(), String> {
        self.reset();
        (self.inflight, self.log) = (None, None);
        self.change_memory(Table::default())
    }

    /// An area for requests in flight, for the hypervisor to keep, and its length.
    pub(super) fn create_inflight(&self, queues: u16, size: u16) -> Result<(File, u64), String> {
        if queues > self.queue_count() || u32::from(size) > MAX_SIZE {
            return Err(format!("requests in flight of {queues} queues of {size} are more than the device can have"));
        }
        let (area, file) =
            InflightArea::create(queues, size).map_err(|error| format!("no area for requests in flight: {error}"))?;
        Ok((File::from(file), area.length_bytes()))
    }

    /// SET_INFLIGHT_FD.
    pub(super) fn set_inflight(
        &mut self,
        file: File,
        (length_bytes, offset_bytes): (u64, u64),
        (queues, size): (u16, u16),
    ) -> Result<(), String> {
        if self.queues.iter().any(Queue::is_served) {
            return Err("the area for requests in flight cannot change while queues run; stop them first".to_owned());
        }
        let area = InflightArea::from_peer(file.into(), length_bytes, offset_bytes, queues, size);
        self.inflight = Some(area.map_err(|error| format!("the area for requests in flight cannot be used: {error}"))?);
        Ok(())
    }

    /// The configuration space as it is now.
    fn space(&self) -> Vec<u8> {
        config::space(&self.info(), self.queue_count(), self.writeback.load(Ordering::Relaxed)).to_vec()
    }

    /// A part of the configuration space; zeroes beyond its end, for drivers that know more fields than we have.
    pub(super) fn read_space(&self, offset: u32, length_bytes: u32) -> Vec<u8> {
        let [offset, length_bytes] = [offset, length_bytes].map(|value| usize::try_from(value).unwrap_or(0));
        let space = self.space();
        let known = space.into_iter().skip(offset).chain(std::iter::repeat(0));
        known.take(length_bytes).collect()
    }

    /// A part of the configuration space is written: only the cache mode can change.
    pub(super) fn write_space(&mut self, offset: u32, bytes: &[u8]) -> Result<(), String> {
        let mut wanted = self.read_space(offset, u32::try_from(bytes.len()).unwrap_or(0));
        let place = usize::try_from(offset).ok().and_then(|offset| config::WRITEBACK_OFFSET.checked_sub(offset));
        let mode = place.and_then(|place| bytes.get(place).map(|mode| (place, *mode)));
        if let Some((place, mode)) = mode {
            wanted[place] = mode;
        }
        match mode {
            _ if wanted != bytes => Err("only the cache mode of the configuration space can be written".to_owned()),
            Some((_, mode)) if self.features & 1 << VIRTIO_BLK_F_CONFIG_WCE != 0 => {
                self.writeback.store(mode != 0, Ordering::Relaxed);
                Ok(())
            }
            Some(_) => Err("the cache mode cannot be written: VIRTIO_BLK_F_CONFIG_WCE is not in force".to_owned()),
            None => Ok(()),
        }
    }

    /// SET_BACKEND_REQ_FD.
    pub(super) fn set_channel(&mut self, channel: UnixStream) {
        self.channel = Some(channel);
    }

    /// The disk's size changed: have the guest read the configuration space again.
    pub(super) fn announce_resize(&mut self) {
        // First the workers: what the guest is told, it may ask for at once.
        let info = self.info();
        for (index, queue) in (0..).zip(&self.queues) {
            queue.set(index, &self.serving, move |server| server.set_info(&info));
        }
        let Some(channel) = &self.channel else { return };
        if let Err(error) = channel::tell_config_changed(channel) {
            tracing::warn!(disk = self.serving.export.name(), %error, "the hypervisor cannot be told of the disk's new size");
            self.channel = None;
        }
    }

    /// SET_VRING_CALL.
    pub(super) fn set_call(&mut self, index: u32, call: Option<File>) -> Result<(), String> {
        let queue = self.queue(index)?;
        queue.call = call.map(Into::into);
        let copied = queue.call.as_ref().map(OwnedFd::try_clone).transpose();
        let copied = copied.map_err(|error| format!("no descriptor is left: {error}"))?;
        let number = number_of(index);
        let set = self.queues[usize::from(number)].set(number, &self.serving, move |server| server.set_call(copied));
        set.unwrap_or(Ok(()))
    }

    /// For `fipsee stat` and `info`: queues up to the last that is served.
    pub(super) fn publish_queues(&self) {
        let count = self.queues.iter().rposition(Queue::is_served).map_or(0, |last| last + 1);
        let served = &self.queues[..count];
        let counters = served.iter().map(|queue| Arc::clone(&queue.counters)).collect();
        let cpu = |queue: &Queue| queue.worker().and_then(|worker| self.serving.workers[worker].place.cpu);
        self.serving.export.set_queues(self.serving.client, counters, served.iter().map(cpu).collect());
    }
}

/// The number of a queue that was found by it.
fn number_of(index: u32) -> u16 {
    u16::try_from(index).unwrap_or(u16::MAX)
}

/// What the guest sees in /dev/disk/by-id: the disk's name, shortened if need be, and then told apart by its identity.
fn serial(name: &str, info: &BlockInfo) -> String {
    if name.len() <= SERIAL_BYTES {
        return name.to_owned();
    }
    let [a, b, c, d, ..] = info.identity;
    format!("{}-{a:02x}{b:02x}{c:02x}{d:02x}", name.get(..SERIAL_BYTES - 9).unwrap_or(""))
}
