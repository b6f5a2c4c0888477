//! The network of a machine whose hypervisor sends anything, with another port.

use std::cell::Cell;

use fipsee_daemon::transport::vhost_user::device::PortDescription;
use fipsee_net::server::{Outcome, ServedPort, Switches};
use fipsee_net::switch::Rules;
use fipsee_net::wire::Offload;
use fipsee_ring::region::Region;

use crate::guest::{NEXT, WRITE, descriptors};
use crate::lan::{self, Got, MTU, Side, mac};

/// The machine's port has number 0.
pub(super) struct Neighbour {
    switches: Switches,
    got: Got,
    came: Cell<usize>,
}

/// Where a correct driver has its queues: of frames to it, of those that it sends, of commands. And where they lead.
pub(super) const RINGS: [u64; 3] = [0, 4096, 8192];
const COMMAND: u64 = 12 << 10;
const SENT: u64 = 16 << 10;
const RECEIVED: u64 = 32 << 10;

fn frame(to: u8, from: u8, length: usize) -> Vec<u8> {
    let mut frame = [&mac(to).0[..], &mac(from).0, &[0x88, 0xb5]].concat();
    frame.resize(length, 7);
    frame
}

impl Neighbour {
    pub(super) fn new() -> Self {
        let switches = lan::network(&[0, 1].map(|number| Rules::new(mac(number))));
        let got = Side::serve(&lan::port(&switches, 1), 0);
        Self { switches, got, came: Cell::new(0) }
    }

    pub(super) fn machine(&self) -> ServedPort {
        lan::port(&self.switches, 0)
    }

    pub(super) fn described(&self, pairs: u16) -> PortDescription {
        PortDescription { name: self.machine().name(), mac: mac(0), mtu: MTU, pairs, is_up: true }
    }

    fn send_bytes(&self, length: usize) -> Outcome {
        lan::send(&lan::port(&self.switches, 1), &frame(0, 1, length), Offload::NONE)
    }

    /// Frames for the machine.
    pub(super) fn send(&self) {
        for length in [60, 1000] {
            let moved = self.send_bytes(length).bytes;
            assert!(moved == 0 || moved == length as u64, "{moved} of {length} bytes");
        }
    }

    /// Whatever came, an announcement or a frame of the guest, has the machine's address.
    pub(super) fn check(&self) {
        let all = self.got.take();
        self.came.set(self.came.get() + all.len());
        for (frame, offload) in all {
            assert!((14..=usize::from(MTU) + 18).contains(&frame.len()), "a frame of {} bytes", frame.len());
            assert!(frame[6..12] == mac(0).0 && offload == Offload::NONE, "{offload:?}: {frame:02x?}");
        }
    }

    /// The port of a machine that has gone is not looked at.
    pub(super) fn check_gone(&self) {
        assert_eq!(self.send_bytes(60).deliveries, 0, "frames come to a machine that has gone");
    }

    /// What a correct driver has in its memory: four buffers, a frame, and a command that it uses two pairs.
    pub(super) fn fill(memory: &Region) {
        let write = |address: u64, bytes: &[u8]| memory.write(address, bytes).expect("within");
        let offer = |rings: u64, parts: &[(u64, u32, u16)], heads: &[u16]| {
            let index = u16::try_from(heads.len()).expect("few");
            write(rings, &descriptors(parts));
            write(
                rings + 512,
                [&[0, index][..], heads].concat().iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>().as_slice(),
            );
        };
        let buffers = [0, 1, 2, 3].map(|number| (RECEIVED + 2048 * number, 2048, WRITE));
        offer(RINGS[0], &buffers, &[0, 1, 2, 3]);
        offer(RINGS[1], &[(SENT, 72, 0)], &[0]);
        offer(RINGS[2], &[(COMMAND, 4, NEXT), (COMMAND + 8, 1, WRITE)], &[0]);
        write(SENT + 12, &frame(1, 0, 60));
        write(COMMAND, &[4, 0, 2, 0]);
    }

    /// Frames that came from the machine.
    #[cfg(test)]
    pub(super) fn came(&self) -> usize {
        self.came.get()
    }
}
