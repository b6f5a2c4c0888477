//! Frames that share a message.

use fipsee_ring::control::ACCESS_READ;
use fipsee_ring::memory::{Extent, RegionTable, Span};

use super::copy::copy_first;
use super::endpoint::Frame;
use super::flow::Flow;
use super::network::{Data, Network, Outcome};
use super::queue::Sender;
use super::stages::{self, Stage};
use crate::frame::{HEADER_BYTES, MAX_FIRST_COPIED_BYTES};
use crate::wire::{Offload, SendPacked, Status};

impl Data {
    /// Send the frames of a message, and report for each tag what came of it.
    #[inline(always)]
    pub(super) fn transmit_packed(
        &mut self,
        network: &Network,
        sender: Sender,
        packed: &SendPacked,
        memory: &RegionTable,
        now_ns: impl Fn() -> u64,
        mut report: impl FnMut(u16, Outcome),
    ) {
        let Some(frames) = packed.named() else {
            return report(packed.frames[0].tag, self.outputs.port(sender.port).counted(Err(Status::Invalid), 0));
        };
        self.outputs.is_burst = frames.len() > 1;
        let mut first = [0; MAX_FIRST_COPIED_BYTES];
        for frame in frames {
            self.outputs.deliveries = 0;
            let extent = frame.extent(packed.memory);
            let sent = self.send_whole(network, sender, (&extent, &mut first), memory, &now_ns);
            report(frame.tag, self.outputs.port(sender.port).counted(sent, self.deliveries()));
        }
        self.outputs.is_burst = false;
    }

    /// As [`send`](Self::send), of a frame in memory, whose first bytes are copied here.
    #[inline(always)]
    fn send_whole(
        &mut self,
        network: &Network,
        sender: Sender,
        (extent, first): (&Extent, &mut [u8; MAX_FIRST_COPIED_BYTES]),
        memory: &RegionTable,
        now_ns: impl Fn() -> u64,
    ) -> Result<(u64, u64), Status> {
        if extent.length_bytes < HEADER_BYTES.into() {
            return Err(Status::TooShort);
        }
        let whole = memory.span(*extent, ACCESS_READ).map_err(|_| Status::BadMemory)?;
        // SAFETY: found just now in memory that the sender's queue keeps mapped.
        let first = unsafe { copy_first(&whole, first) };
        let (rest, key) = (whole.without_first(first.len()), Flow::key(first));
        if let Some(port) = self.flows[usize::from(sender.port)].find(key, self.switch.changes())
            && extent.length_bytes <= u64::from(network.mtu_now()) + u64::from(HEADER_BYTES)
        {
            stages::stamp(Stage::Decided);
            let length_bytes = u32::try_from(extent.length_bytes).unwrap_or(u32::MAX);
            let rest = if rest.length_bytes() > 0 { std::slice::from_ref(&rest) } else { &[] };
            let frame = Frame { head: first, rest, length_bytes, offload: Offload::NONE };
            // SAFETY: as above.
            return Ok((extent.length_bytes, unsafe { self.outputs.deliver(port, &frame) }));
        }
        let rest_bytes = u32::try_from(rest.length_bytes()).unwrap_or(u32::MAX);
        let find = |spans: &mut Vec<Span>| {
            spans.push(rest);
            Ok(())
        };
        self.send(network, (sender.port, sender.offloads), (first, Offload::NONE), (rest_bytes, find), now_ns)
    }
}
