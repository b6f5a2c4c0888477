//! Frames that come in a message without their addresses, and leave so.

use fipsee_ring::Message;

use super::endpoint::{Delivered, Endpoint};
use super::flow::Flow;
use super::network::{Data, Network};
use super::outputs::Outputs;
use super::queue::Sender;
use super::receiver::Receiver;
use super::stages::{self, Stage};
use crate::switch::PortNumber;
use crate::wire::{
    Addresses, KIND_RECEIVED_COMPRESSED, MAX_COMPRESSED_BYTES, MIN_MTU, Offload, Small, Status, expanded_bytes, is_compressible,
    readdressed,
};

impl Data {
    /// Carry out a message with a frame that has these addresses. Returns what [`send`](Self::send) does.
    #[inline(always)]
    pub(super) fn transmit_compressed(
        &mut self,
        network: &Network,
        sender: Sender,
        addresses: Option<Addresses>,
        message: &Message,
        now_ns: impl Fn() -> u64,
    ) -> Result<(u64, u64), Status> {
        let known = addresses.ok_or(Status::Invalid)?;
        if let Some(bytes) = self.pass_on(sender.port, known, message) {
            return Ok((bytes, bytes));
        }
        let (bytes, length) = (expanded_bytes(&known.expand(message)), Small::within(message).length_bytes.into());
        let whole = bytes[..MAX_COMPRESSED_BYTES].get(..length).ok_or(Status::Invalid)?;
        self.send(network, (sender.port, sender.offloads), (whole, Offload::NONE), (0, |_| Ok(())), now_ns)
    }

    /// Give the message to the one receiver that its frame goes to, if that knows the addresses, too: then nothing of the frame is looked at but its type.
    /// Returns its bytes. `None`: it is to be sent as any other.
    #[inline(always)]
    fn pass_on(&mut self, sender: PortNumber, addresses: Addresses, message: &Message) -> Option<u64> {
        const { assert!(MAX_COMPRESSED_BYTES <= MIN_MTU as usize, "none is too long for a network") };
        let key = Flow::key_of(addresses.first_words(message));
        let port = self.flows[usize::from(sender)].find(Some(key), self.switch.changes())?;
        self.outputs.pass_on(port, addresses, message)
    }
}

impl Outputs {
    #[inline(always)]
    fn pass_on(&mut self, port: PortNumber, addresses: Addresses, message: &Message) -> Option<u64> {
        let [Some(Endpoint::Rings(receiver))] = &mut self.receivers[usize::from(port)][..] else { return None };
        let length_bytes = Small::within(message).length_bytes;
        if receiver.touched {
            return None;
        }
        let Some(delivered) = receiver.pass_on(addresses, message, length_bytes) else {
            // It may have given buffers back that cannot be used.
            if receiver.touched {
                self.touched.push((port, 0));
            }
            return None;
        };
        Some(self.delivered((port, 0), delivered, length_bytes.into()))
    }
}

impl Receiver {
    /// Nothing is to be published with others.
    #[inline(always)]
    fn pass_on(&mut self, addresses: Addresses, message: &Message, length_bytes: u8) -> Option<Delivered> {
        let knows_them = self.addresses == Some(addresses);
        if !knows_them || !is_compressible(length_bytes.into()) || !self.gather(length_bytes.into()) {
            return None;
        }
        self.ready.front().filter(|(buffer, _)| buffer.length_bytes >= length_bytes.into())?;
        let (buffer, _) = self.take()?;
        stages::stamp(Stage::Decided);
        self.publish(&readdressed(message, KIND_RECEIVED_COMPRESSED, buffer.tag));
        Some(Delivered { is_taken: true, is_first: true, extra_work: std::mem::take(&mut self.extra_work) })
    }
}
