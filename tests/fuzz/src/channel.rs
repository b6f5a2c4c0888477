//! A channel with bytes as its other end: made once, because that costs more than using it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use fipsee_block::wire::PROFILE;
use fipsee_ring::channel::{ClientQueue, Profile, QueueGeometry, RegionLayout, ServerQueue};
use fipsee_ring::doorbell::{EventDoorbell, SocketDoorbell};
use fipsee_ring::handshake::AttachedChannel;
use fipsee_ring::region::Region;
use fipsee_ring::seqpacket::Seqpacket;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Region, doorbells, which all queues share, and control socket of a channel.
pub(crate) struct TestChannel {
    pub(crate) region: Arc<Region>,
    pub(crate) layout: RegionLayout,
    doorbell: EventDoorbell,
    server_end: SocketDoorbell,
    client_end: SocketDoorbell,
    control: (OwnedFd, OwnedFd),
}

impl TestChannel {
    /// Of one queue of a disk.
    pub(crate) fn new(depth: u32, pool_bytes: u64) -> Self {
        Self::of(&PROFILE, 1, depth, pool_bytes)
    }

    pub(crate) fn of(profile: &Profile, queues: u16, depth: u32, pool_bytes: u64) -> Self {
        let layout = RegionLayout::plan(profile, queues, depth, pool_bytes, 0);
        let region = Arc::new(Region::create("fuzz-channel", layout.region_bytes).expect("memory"));
        Self::over(region, layout)
    }

    /// Of memory that is there.
    pub(crate) fn over(region: Arc<Region>, layout: RegionLayout) -> Self {
        let (server_end, client_end) = SocketDoorbell::pair().expect("descriptors");
        let control = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let doorbell = EventDoorbell::new().expect("a descriptor");
        Self { region, layout, doorbell, server_end, client_end, control: control.expect("descriptors") }
    }

    /// Rings and pool as they are at the beginning.
    pub(crate) fn clear(&self) {
        let zeroes = vec![0; usize::try_from(self.layout.region_bytes).expect("small")];
        self.region.write(0, &zeroes).expect("all of it");
        let _ = self.client_end.drain();
    }

    pub(crate) fn server(&self) -> ServerQueue {
        let (doorbell, end) = (EventDoorbell::from_fd(copy(&self.doorbell)), SocketDoorbell::from_fd(copy(&self.server_end)));
        ServerQueue::open(&self.region, &self.layout.queues[0], doorbell, end, &self.layout.queues[0].tuning())
            .expect("a good queue")
    }

    pub(crate) fn attached(&self, service_info: [u8; 64]) -> AttachedChannel {
        let open = |geometry| {
            let (doorbell, end) = (EventDoorbell::from_fd(copy(&self.doorbell)), SocketDoorbell::from_fd(copy(&self.client_end)));
            ClientQueue::open(&self.region, geometry, doorbell, end, &QueueGeometry::tuning(geometry)).expect("a good queue")
        };
        AttachedChannel {
            control: Seqpacket::from_fd(copy(&self.control.0)),
            region: Arc::clone(&self.region),
            layout: self.layout.clone(),
            service_info,
            queues: self.layout.queues.iter().map(open).collect(),
        }
    }
}

pub(crate) fn copy(fd: &impl AsFd) -> OwnedFd {
    fd.as_fd().try_clone_to_owned().expect("a descriptor")
}
