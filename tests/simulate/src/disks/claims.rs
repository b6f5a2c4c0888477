//! The attached clients, and those that they exclude (docs/protocol.md 4.5).

use fipsee_block::wire::{ATTACH_EXCLUSIVE, ATTACH_IGNORE_CLAIM, ATTACH_READ_ONLY, ATTACH_SOLE_WRITER};

/// As what a client attaches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Is no other client to be attached?
    pub exclusive: bool,
    /// Does it never write?
    pub reads_only: bool,
    /// Is no other client to write?
    pub claims: bool,
    /// Does it write beside a client that claims that?
    pub forces: bool,
}

/// A client that is attached, until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) client: u64,
    pub(crate) uid: u32,
    pub(crate) terms: Terms,
    /// It has hung up, and its last requests are not finished.
    pub(crate) is_leaving: bool,
}

impl Terms {
    /// As ATTACH has them.
    pub(crate) fn flags(self) -> u32 {
        let flag = |set, flag| if set { flag } else { 0 };
        flag(self.exclusive, ATTACH_EXCLUSIVE)
            | flag(self.reads_only, ATTACH_READ_ONLY)
            | flag(self.claims, ATTACH_SOLE_WRITER)
            | flag(self.forces, ATTACH_IGNORE_CLAIM)
    }

    /// As they are in ATTACH.
    pub(crate) const fn of(flags: u32) -> Self {
        Self {
            exclusive: flags & ATTACH_EXCLUSIVE != 0,
            reads_only: flags & ATTACH_READ_ONLY != 0,
            claims: flags & ATTACH_SOLE_WRITER != 0,
            forces: flags & ATTACH_IGNORE_CLAIM != 0,
        }
    }

    /// Is this one in the way of one that attaches now? On a disk that is `shared` claims refuse no client.
    pub(crate) const fn is_kept_out_by(self, other: Self, shared: bool) -> bool {
        let (writes, other_writes) = (!self.reads_only, !other.reads_only);
        let by_claim = writes && other_writes && (self.claims || other.claims) && !self.forces && !shared;
        self.exclusive || other.exclusive || by_claim
    }
}
