//! The requests of the vhost-user protocol, as crate `vhost` hands them over. Sizes of messages, counts of descriptors and flags are
//! checked there, numbers and addresses here and where they are used.

use std::fs::File;
use std::io;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg, VhostUserSingleMemoryRegion,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use super::device::Device;
use super::queue::{Queue, UserRings};
use super::table::{Extent, MAX_REGIONS};

/// Protocol features that are offered; the crate adds REPLY_ACK, which it does itself.
const OFFERED: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    .union(VhostUserProtocolFeatures::BACKEND_REQ)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    .union(VhostUserProtocolFeatures::LOG_SHMFD)
    .union(VhostUserProtocolFeatures::RESET_DEVICE);

/// A refusal, in words.
fn refuse(problem: impl Into<String>) -> Error {
    Error::ReqHandlerError(io::Error::other(problem.into()))
}

fn not_offered<T>() -> Result<T> {
    Err(refuse("it is not offered"))
}

fn extent(region: &VhostUserMemoryRegion) -> Extent {
    Extent { guest_address: region.guest_phys_addr, length_bytes: region.memory_size, user_address: region.user_addr }
}

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        self.begin_session().map_err(refuse)
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        self.asked_features = true;
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        self.acked_features = features;
        self.set_features(features).map_err(refuse)
    }

    fn set_mem_table(
        &mut self,
        _regions: &[VhostUserMemoryRegion],
        _files: Vec<File>,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        // `channel` takes this request before the crate can refuse one that is longer than need be.
        not_offered()
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.change_queue(index, |queue| queue.set_size(num)).map_err(refuse)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let log = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG).then_some(log);
        self.set_rings(index, UserRings { descriptor, available, used, log }).map_err(refuse)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.change_queue(index, |queue| queue.set_next_available(base)).map_err(refuse)
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let next_available = self.give_back(index).map_err(refuse)?;
        Ok(VhostUserVringState::new(index, next_available.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = fd.ok_or_else(|| refuse("a queue without a kick descriptor is not supported; let the driver kick"))?;
        let set = |queue: &mut Queue| {
            queue.kick = Some(kick.into());
            Ok(())
        };
        self.change_queue(index.into(), set).map_err(refuse)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.set_call(index.into(), fd).map_err(refuse)
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        self.queue(index.into()).map_err(refuse)?.error = fd.map(Into::into);
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(OFFERED)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !OFFERED.bits();
        if unknown != 0 {
            return Err(refuse(format!("protocol features {unknown:#x} are not offered")));
        }
        self.protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.queue(index).map_err(refuse)?.enabled = enable;
        if enable { self.start(index) } else { self.stop(index) }.map_err(refuse)
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        Ok(self.read_space(offset, size))
    }

    fn set_config(&mut self, offset: u32, buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        self.write_space(offset, buf).map_err(refuse)
    }

    fn get_inflight_fd(&mut self, inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let VhostUserInflight { num_queues, queue_size, .. } = *inflight;
        let (file, length_bytes) = self.create_inflight(num_queues, queue_size).map_err(refuse)?;
        Ok((VhostUserInflight::new(length_bytes, 0, num_queues, queue_size), file))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *inflight;
        self.set_inflight(file, (mmap_size, mmap_offset), (num_queues, queue_size)).map_err(refuse)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy_listening: Option<bool>,
    ) -> Result<Option<u64>> {
        // The crate checks the regions of a table for overflow, and this one not; mapping it does.
        self.add_region(extent(region), region.mmap_offset, fd).map_err(refuse)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        self.remove_region(extent(region)).map_err(refuse)
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        self.set_log(file, log.mmap_size, log.mmap_offset).map_err(refuse)
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        not_offered()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        not_offered()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        not_offered()
    }

    fn check_device_state(&mut self) -> Result<()> {
        not_offered()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        not_offered()
    }
}
