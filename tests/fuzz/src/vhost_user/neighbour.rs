//! The network of a machine whose hypervisor sends anything, with another port.

use fipsee_daemon::transport::vhost_user::device::PortDescription;
use fipsee_net::server::{ServedPort, Switches};
use fipsee_net::switch::Rules;
use fipsee_net::wire::Offload;

use crate::lan::{self, Got, MTU, Side, mac};

/// The machine's port has number 0.
pub(super) struct Neighbour {
    switches: Switches,
    got: Got,
}

impl Neighbour {
    pub(super) fn new() -> Self {
        let switches = lan::network(&[0, 1].map(|number| Rules::new(mac(number))));
        let got = Side::serve(&lan::port(&switches, 1), 0);
        Self { switches, got }
    }

    pub(super) fn machine(&self) -> ServedPort {
        lan::port(&self.switches, 0)
    }

    pub(super) fn described(&self, pairs: u16) -> PortDescription {
        PortDescription { name: self.machine().name(), mac: mac(0), mtu: MTU, pairs, is_up: true }
    }

    fn send_bytes(&self, length: usize) -> u64 {
        let mut frame = [&mac(0).0[..], &mac(1).0, &[0x88, 0xb5]].concat();
        frame.resize(length, 7);
        lan::send(&lan::port(&self.switches, 1), &frame, Offload::NONE).bytes
    }

    /// Frames for the machine.
    pub(super) fn send(&self) {
        for length in [60, 1000] {
            let moved = self.send_bytes(length);
            assert!(moved == 0 || moved == length as u64, "{moved} of {length} bytes");
        }
    }

    /// Whatever came, an announcement or a frame of the guest, has the machine's address.
    pub(super) fn check(&self) {
        for (frame, offload) in self.got.take() {
            assert!((14..=usize::from(MTU) + 18).contains(&frame.len()), "a frame of {} bytes", frame.len());
            assert!(frame[6..12] == mac(0).0 && offload == Offload::NONE, "{offload:?}: {frame:02x?}");
        }
    }

    /// The port of a machine that has gone gets nothing.
    pub(super) fn check_gone(&self) {
        assert_eq!(self.send_bytes(60), 0, "frames come to a machine that has gone");
    }
}
