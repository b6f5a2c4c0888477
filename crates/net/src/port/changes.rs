//! What is asked of a port beside frames, and what its daemon reports of it.

use fipsee_ring::Message;
use fipsee_ring::fault::expect;

use super::Port;
use crate::error::Error;
use crate::frame::Mac;
use crate::wire::{
    Event, OPERATION_ACKNOWLEDGE, OPERATION_ALL_GROUPS, OPERATION_JOIN, OPERATION_LEAVE, OPERATION_NO_GROUP, Request,
};

/// What the daemon has reported of the port.
#[derive(Debug, Default)]
pub(super) struct Changes {
    is_down: bool,
    /// An event that is to be acknowledged once a transmit buffer's tag is free.
    unacknowledged: bool,
    count: u64,
    /// As of the last event.
    mtu: Option<u16>,
}

impl Port {
    /// Is the port up? Not if an administrator took it down. Looked at by [`receive`](Self::receive).
    pub const fn is_up(&self) -> bool {
        !self.changes.is_down
    }

    /// The MTU of now, which is never greater than that of [`info`](Self::info), for which the buffers are.
    pub fn mtu(&self) -> u16 {
        self.changes.mtu.unwrap_or(self.info.mtu)
    }

    /// How often the daemon has reported a change.
    pub const fn changes(&self) -> u64 {
        self.changes.count
    }

    /// Get frames to this group. With the first one that is named, frames to others do not come any more, but broadcasts do. Whether the daemon
    /// agrees is found by [`refused`](Self::refused).
    ///
    /// # Errors
    /// [`Error::Full`] when all transmit buffers are on their way.
    pub fn join(&mut self, group: Mac) -> Result<(), Error> {
        self.request(OPERATION_JOIN, Some(group))
    }

    /// Get no frames to this group any more.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn leave(&mut self, group: Mac) -> Result<(), Error> {
        self.request(OPERATION_LEAVE, Some(group))
    }

    /// Get frames to all groups, as in the beginning, or to none; either way none is named any more.
    ///
    /// # Errors
    /// As [`join`](Self::join).
    pub fn all_groups(&mut self, all: bool) -> Result<(), Error> {
        self.request(if all { OPERATION_ALL_GROUPS } else { OPERATION_NO_GROUP }, None)
    }

    fn request(&mut self, operation: u8, group: Option<Mac>) -> Result<(), Error> {
        let tag = self.free_tag()?;
        self.publish_alone(tag, &Request::new(operation, tag, group).to_message());
        self.submit();
        Ok(())
    }

    /// The port has changed.
    pub(super) fn take_event(&mut self, message: &Message) -> Result<(), Error> {
        let Event { link, mtu, mac, .. } = Event::checked(message)?;
        expect("an event before the last was acknowledged", link, !self.changes.unacknowledged)?;
        // Its buffers are as long as the MTU of the beginning needs.
        expect("the MTU of a port that has been attached to", mtu, mtu <= self.info.mtu)?;
        self.info.mac = mac;
        self.changes.mtu = Some(mtu);
        self.changes.is_down = link == 0;
        self.changes.count += 1;
        self.changes.unacknowledged = true;
        self.acknowledge()
    }

    /// Acknowledge an event, if there is one and a tag is free.
    pub(super) fn acknowledge(&mut self) -> Result<(), Error> {
        if self.changes.unacknowledged {
            match self.request(OPERATION_ACKNOWLEDGE, None) {
                Ok(()) => self.changes.unacknowledged = false,
                // With the next look.
                Err(Error::Full) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
