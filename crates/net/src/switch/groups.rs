//! The groups of which a port gets the frames.

use crate::frame::Mac;
use crate::wire::{MAX_GROUPS, Status};

#[derive(Debug)]
pub(super) struct Groups {
    /// It has named none: it gets the frames of all.
    all: bool,
    /// In their order.
    named: Vec<Mac>,
}

impl Default for Groups {
    fn default() -> Self {
        // All of it now: a worker that serves allocates nothing.
        Self { all: true, named: Vec::with_capacity(MAX_GROUPS) }
    }
}

impl Groups {
    pub(super) fn has(&self, group: Mac) -> bool {
        self.all || self.named.binary_search(&group).is_ok()
    }

    /// `None`: all.
    pub(super) fn named(&self) -> Option<&[Mac]> {
        (!self.all).then_some(self.named.as_slice())
    }

    pub(super) fn add(&mut self, group: Mac) -> Result<(), Status> {
        if let Err(place) = self.named.binary_search(&group) {
            if self.named.len() == MAX_GROUPS {
                return Err(Status::Limited);
            }
            self.named.insert(place, group);
        }
        self.all = false;
        Ok(())
    }

    pub(super) fn remove(&mut self, group: Mac) {
        self.named.retain(|other| *other != group);
    }

    /// None is named any more.
    pub(super) fn set_all(&mut self, all: bool) {
        self.all = all;
        self.named.clear();
    }

    pub(super) fn clear(&mut self) {
        self.set_all(true);
    }
}
