//! Attaching again after the daemon was lost.

use std::borrow::BorrowMut;
use std::sync::Arc;

use fipsee_ring::port::ReconnectPolicy;

use super::{AttachOptions, Counters, Port};
use crate::error::{Error, NetError};

/// A step of a reconnection.
pub type ReconnectEvent<'a> = fipsee_ring::port::ReconnectEvent<'a, Error>;

impl Port {
    /// After [`Error::Disconnected`]: attach again as `policy` says, with all pairs of the attachment, in their order. Their receive
    /// buffers are posted again. Frames that were in flight [are lost](Counters::lost), as on any network; buffers and frames that the
    /// program has are of the attachment before, and are not taken back. `hook` is called for each step.
    ///
    /// # Errors
    /// The last attempt's error when the time is up; at once when the port has another MAC address or MTU, or the daemon refuses for good.
    pub fn reconnect<P: BorrowMut<Self>>(
        pairs: &mut [P],
        policy: &ReconnectPolicy,
        hook: &mut dyn FnMut(ReconnectEvent<'_>),
    ) -> Result<(), Error> {
        policy.keep_trying(|| Self::attach_again(pairs), Error::is_transient, hook)
    }

    /// One attempt of [`reconnect`](Self::reconnect).
    ///
    /// # Errors
    /// The attempt failed; another may succeed if the error [is transient](Error::is_transient).
    pub fn attach_again<P: BorrowMut<Self>>(pairs: &mut [P]) -> Result<(), Error> {
        let Some(first) = pairs.first() else { return Ok(()) };
        // An administrator may have given the port another address since.
        let attachment = Arc::clone(&first.borrow().attachment);
        let (known, last) = (attachment.info, first.borrow().info);
        // A daemon that is there would refuse a second client.
        first.borrow().hang_up();
        let options = AttachOptions { pairs: u16::try_from(pairs.len()).unwrap_or(u16::MAX), ..attachment.options.clone() };
        let fresh = Self::attach_pairs(&attachment.socket_path, &options)?;
        let info = fresh.first().ok_or(Error::Disconnected)?.info;
        let checks = [
            ("MAC address", [known.mac, last.mac].contains(&info.mac)),
            ("MTU", info.mtu == known.mtu),
            ("set of offloads", known.offloads & !info.offloads == 0),
            ("number of pairs of queues", fresh.len() == pairs.len()),
        ];
        if let Some((what, _)) = checks.iter().find(|(_, same)| !same) {
            return Err(Error::Service(NetError::Different(what)));
        }
        for (pair, fresh) in pairs.iter_mut().zip(fresh) {
            let pair = pair.borrow_mut();
            let counters = Counters { lost: pair.counters.lost + u64::from(pair.unsent()), ..pair.counters };
            let (sent, received) = (pair.transmit.counts, pair.receive.counts);
            *pair = Self { counters, ..fresh };
            // The new queues have woken the daemon already, when their buffers were posted.
            pair.transmit.counts += sent;
            pair.receive.counts += received;
        }
        Ok(())
    }
}
