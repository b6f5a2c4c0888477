//! What a reload may replace while the daemon serves: the disks, and the limits of new clients.

use std::sync::{Arc, Mutex, PoisonError};

use crate::export::Export;
use crate::front::local::FrontSettings;

/// Descriptors that a file disk holds: with and without the page cache.
const DESCRIPTORS_PER_DISK: u64 = 2;

/// One state of what is served; never changed, only replaced.
#[derive(Clone)]
pub struct Served {
    /// The disks.
    pub exports: Vec<Arc<Export>>,
    /// Limits.
    pub settings: FrontSettings,
    /// Descriptors of disks that came after the start, at most.
    pub added_descriptors: u64,
}

/// The state that is in force, shared by the front and the admin thread.
pub struct Live(Mutex<Arc<Served>>);

impl Live {
    /// What is served from the start.
    #[must_use]
    pub fn new(exports: Vec<Arc<Export>>, settings: FrontSettings) -> Self {
        Self(Mutex::new(Arc::new(Served { exports, settings, added_descriptors: 0 })))
    }

    /// The state in force. Hold it for the time of one decision, not longer: it keeps removed disks open.
    #[must_use]
    pub fn now(&self) -> Arc<Served> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Put another in force, all of it at once. Only the admin thread does that.
    pub fn replace(&self, exports: Vec<Arc<Export>>, settings: FrontSettings, added_disks: usize) {
        let mut served = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let added_descriptors = served.added_descriptors + DESCRIPTORS_PER_DISK * added_disks as u64;
        *served = Arc::new(Served { exports, settings, added_descriptors });
    }
}
