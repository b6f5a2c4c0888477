//! Receiving sides other than rings: frames that leave something to be done, and how much of that is done for them.

use std::sync::{Arc, Mutex};

use fipsee_net::checksum::Sum;
use fipsee_net::frame::Mac;
use fipsee_net::server::{Delivered, Frame, NetworkSetup, PortSetup, Receive, ServedPort, Switches};
use fipsee_net::switch::{Learning, Rules};
use fipsee_net::wire::{OFFLOAD_CHECKSUM, OFFLOAD_TSO4, Offload, Status};
use fipsee_ring::memory::Span;

/// What came: bytes, and what is left to be done.
type Received = Arc<Mutex<Vec<(Vec<u8>, Offload)>>>;

struct Side {
    received: Received,
    offloads: u32,
    links: Arc<Mutex<Vec<bool>>>,
}

impl Receive for Side {
    unsafe fn deliver(&mut self, frame: &Frame<'_>) -> Delivered {
        let mut bytes = frame.head.to_vec();
        for span in frame.rest {
            let mut piece = vec![0; span.length_bytes()];
            // SAFETY: by the caller.
            assert!(unsafe { fipsee_ring::memory::copy_from(&[*span], &mut piece) });
            bytes.extend(piece);
        }
        assert_eq!(bytes.len(), frame.length_bytes as usize);
        self.received.lock().expect("no panic").push((bytes, frame.offload));
        Delivered { is_taken: true, is_first: false, useless: 0 }
    }

    fn offloads(&self) -> u32 {
        self.offloads
    }

    fn set_link(&mut self, is_up: bool) {
        self.links.lock().expect("no panic").push(is_up);
    }

    fn flush(&mut self) {}
}

fn mac(port: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, u8::try_from(port).expect("few")])
}

/// So many ports that get frames to unknown addresses, with these offloads, and what each has received.
fn ports(offloads: &[u32]) -> (Vec<ServedPort>, Vec<Received>) {
    let port = |number| {
        let rules = Rules { any_source: true, ..Rules::new(mac(number)) };
        PortSetup { name: number.to_string(), rules, allow: Box::new(|_| true), reserved: None }
    };
    let (name, learning) = ("lan".to_owned(), Learning::default());
    let setup = NetworkSetup { name, mtu: 1500, learning, ports: (0..offloads.len()).map(port).collect() };
    let switches = Switches::new(vec![setup]);
    let served: Vec<ServedPort> = (0..offloads.len()).filter_map(|number| switches.port(&format!("lan/{number}"))).collect();
    let received: Vec<Received> = offloads.iter().map(|_| Received::default()).collect();
    for ((port, received), offloads) in served.iter().zip(&received).zip(offloads) {
        let side = Side { received: Arc::clone(received), offloads: *offloads, links: Arc::default() };
        port.add(0, Box::new(side));
    }
    (served, received)
}

/// A frame of TCP from port 0 with so many bytes of payload, and its offload.
fn tcp(destination: Mac, payload: usize, segment_bytes: u16) -> (Vec<u8>, Offload) {
    let mut frame = [&destination.0[..], &mac(0).0, &[8, 0, 0x45, 0]].concat();
    frame.extend(u16::try_from(40 + payload).expect("it fits").to_be_bytes());
    frame.extend([0, 7, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([3, 232, 7, 208, 0, 0, 1, 0, 0, 0, 0, 1, 0x50, 0x10, 2, 0, 0, 0, 0, 0]);
    frame.resize(54 + payload, 9);
    let segmentation = u8::from(segment_bytes > 0);
    (frame, Offload { flags: 1, segmentation, header_bytes: 0, segment_bytes, checksum_start: 34, checksum_offset: 16 })
}

fn send(port: &ServedPort, (frame, offload): &(Vec<u8>, Offload)) -> fipsee_net::server::Outcome {
    let (first, rest) = frame.split_at(36);
    let base = std::ptr::NonNull::from(rest).cast();
    // SAFETY: `rest` is borrowed for as long as the span is used, and only read.
    let span = unsafe { Span::new(base, rest.len()) };
    // SAFETY: likewise.
    unsafe { port.try_sending().expect("no other thread has it").send(first, &[span], *offload) }
}

/// checks: R-10.5-3
#[test]
fn each_side_gets_what_it_takes() {
    let (ports, received) = ports(&[0, OFFLOAD_CHECKSUM, OFFLOAD_CHECKSUM | OFFLOAD_TSO4, 0]);
    let unknown = Mac([2, 0, 0, 0, 9, 9]);
    let (whole, divided) = (tcp(unknown, 1000, 0), tcp(unknown, 3000, 1460));
    assert_eq!((send(&ports[0], &whole).status, send(&ports[0], &divided).status), (Status::Ok, Status::Ok));
    let of = |port: usize| received[port].lock().expect("no panic").clone();
    let lengths =
        |port| of(port).iter().map(|(bytes, offload)| (bytes.len(), offload.flags, offload.segmentation)).collect::<Vec<_>>();
    assert_eq!(lengths(0), []);
    assert_eq!(lengths(1), [(1054, 1, 0), (1514, 0, 0), (1514, 0, 0), (134, 0, 0)]);
    assert_eq!(lengths(2), [(1054, 1, 0), (3054, 1, 1)]);
    assert_eq!(lengths(3), [(1054, 0, 0), (1514, 0, 0), (1514, 0, 0), (134, 0, 0)]);
    assert_eq!((&of(1)[0].0, &of(2)[1].0), (&whole.0, &divided.0), "as it was sent");
    // What another side gets completed changes nothing for it.
    for (bytes, _) in &of(3)[1..] {
        let tcp_bytes = u16::try_from(bytes.len() - 34).expect("short");
        let sum = Sum::of(&bytes[26..34]).plus_number(6).plus_number(tcp_bytes).plus(&bytes[34..]);
        assert_eq!(sum.finish(), [0, 0]);
    }
}

/// checks: R-10.5-5
#[test]
fn what_is_done_for_one_frame_is_bounded_and_cost() {
    let (ports, received) = ports(&[0; 40]);
    let outcome = send(&ports[0], &tcp(Mac([2, 0, 0, 0, 9, 9]), 65_495, 256));
    let all: usize = received.iter().map(|received| received.lock().expect("no panic").len()).sum();
    assert_eq!(outcome.status, Status::Ok);
    assert!((4000..=4096).contains(&all) && outcome.deliveries >= all as u64, "{all} segments, {outcome:?}");
    let outcome = send(&ports[0], &tcp(mac(1), 65_495, 255));
    assert_eq!((outcome.status, outcome.deliveries), (Status::BadOffload, 0), "257 segments");
}

/// checks: R-10.8-1
#[test]
fn link_is_reported_to_a_side() {
    let (ports, _) = ports(&[0]);
    let links = Arc::default();
    ports[0].set_down(true);
    ports[0].add(0, Box::new(Side { received: Received::default(), offloads: 0, links: Arc::clone(&links) }));
    ports[0].set_down(false);
    assert_eq!(*links.lock().expect("no panic"), [false, true]);
}
