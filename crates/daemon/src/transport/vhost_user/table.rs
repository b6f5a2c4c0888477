//! The memory of a guest, as the hypervisor hands it over.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use fipsee_virtio::core::memory::{GuestMemory, GuestRegion, RegionDescription, Source};

/// Regions of one guest at most: what Linux gives a virtual machine, so that every slot can be filled by hot-plug.
pub(super) const MAX_REGIONS: usize = 509;

/// Where a region lies, for who takes it away again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) guest_address: u64,
    pub(super) length_bytes: u64,
    pub(super) user_address: u64,
}

/// All regions that are in force.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    regions: Vec<(Extent, Arc<GuestRegion>)>,
}

impl Table {
    /// The table with one more region.
    ///
    /// # Errors
    /// In words: too many, or it cannot be mapped.
    pub(super) fn add(&mut self, extent: Extent, file_offset_bytes: u64, file: OwnedFd) -> Result<(), String> {
        if self.regions.len() >= MAX_REGIONS {
            return Err(format!("there are {MAX_REGIONS} regions of memory already, which is the most; remove one"));
        }
        let Extent { guest_address, length_bytes, user_address } = extent;
        let description = RegionDescription { guest_address, length_bytes, user_address, file_offset_bytes, file };
        let region = GuestRegion::map(description).map_err(|error| {
            format!(
                "the guest's memory of {length_bytes} bytes at {guest_address:#x} cannot be used: {error}; share it (share=on)"
            )
        })?;
        self.regions.push((extent, region));
        Ok(())
    }

    /// The table without a region.
    ///
    /// # Errors
    /// There is none like that.
    pub(super) fn remove(&mut self, extent: Extent) -> Result<(), String> {
        let place = self.regions.iter().position(|(other, _)| *other == extent).ok_or_else(|| {
            format!("there is no region of memory of {} bytes at {:#x} to be removed", extent.length_bytes, extent.guest_address)
        })?;
        self.regions.remove(place);
        Ok(())
    }

    /// All regions, in the order in which they came.
    pub(super) fn regions(&self) -> impl Iterator<Item = (Extent, Source<'_>)> {
        self.regions.iter().map(|(extent, region)| (*extent, region.source()))
    }

    /// How many there are; each holds a descriptor.
    pub(super) const fn len(&self) -> usize {
        self.regions.len()
    }

    /// What queues are served with.
    ///
    /// # Errors
    /// Regions overlap.
    pub(super) fn memory(&self) -> Result<Arc<GuestMemory>, String> {
        let regions = self.regions.iter().map(|(_, region)| Arc::clone(region)).collect();
        GuestMemory::new(regions).map(Arc::new).map_err(|error| format!("the guest's memory cannot be used: {error}"))
    }
}
