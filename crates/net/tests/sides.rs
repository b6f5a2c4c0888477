//! Receiving sides other than rings: frames that leave something to be done, how much of that is done for them, and ports that come and go.

use std::sync::{Arc, Mutex};

use fipsee_net::checksum::Sum;
use fipsee_net::frame::Mac;
use fipsee_net::server::{Delivered, Frame, Holder, NetworkSetup, PortSetup, Receive, ServedPort, Switches};
use fipsee_net::switch::{Learning, Link, Rules};
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
        Delivered { is_taken: true, is_first: false, extra_work: 0 }
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

fn setup(number: usize) -> PortSetup {
    let rules = Rules { any_source: true, ..Rules::new(mac(number)) };
    PortSetup { name: number.to_string(), rules, allow: Box::new(|_| true), reserved: None }
}

/// So many ports that get frames to unknown addresses.
fn lan(ports: usize) -> (Switches, Vec<ServedPort>) {
    let (name, learning) = ("lan".to_owned(), Learning::default());
    let network = NetworkSetup { name, mtu: 1500, learning, ports: (0..ports).map(setup).collect() };
    let switches = Switches::new(vec![network]);
    let served = (0..ports).filter_map(|number| switches.port(&format!("lan/{number}"))).collect();
    (switches, served)
}

/// Likewise, with these offloads, and what each has received.
fn ports(offloads: &[u32]) -> (Vec<ServedPort>, Vec<Received>) {
    let (_, served) = lan(offloads.len());
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

/// checks: R-10.7-7
#[test]
fn detection_frame_leaves_through_the_port_that_addresses_come_back_to() {
    let (ports, received) = ports(&[0, 0, 0]);
    let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 9, 9], &[8, 0], &[7; 30]].concat();
    let plain = (frame.clone(), Offload::NONE);
    let mut sent = None;
    for _ in 0..10_000 {
        for from in [1, 2] {
            assert_eq!(send(&ports[from], &plain).status, Status::Ok);
            let came = std::mem::take(&mut *received[from].lock().expect("no panic"));
            sent = sent.or(came.into_iter().map(|(bytes, _)| (from, bytes)).find(|(_, bytes)| *bytes != frame));
        }
        if sent.is_some() {
            break;
        }
    }
    let (from, bytes) = sent.expect("addresses came back");
    assert_eq!(bytes, [&[0xff; 6][..], &mac(from).0, &[0x90, 0, 0, 0, 1, 0], &[0; 38]].concat());
    assert!(received[0].lock().expect("no panic").iter().all(|(bytes, _)| *bytes == frame), "it is for that port alone");
    // It comes in at the other one.
    let other = &ports[3 - from];
    assert_eq!(send(other, &(bytes, Offload::NONE)).status, Status::Down);
    assert_eq!((other.link(), ports[from].link()), (Link::Blocked, Link::Up));
}

/// A frame without an offload, whose flow its number determines.
fn plain(destination: Mac, number: u8) -> (Vec<u8>, Offload) {
    let frame = [&destination.0[..], &[2, 0, 0, 0, 1, number], &[0x88, 0xb5], &[number; 30]].concat();
    (frame, Offload::NONE)
}

#[test]
fn frames_of_a_pair_that_is_gone_come_by_those_that_are_left() {
    let (_, ports) = lan(2);
    let received = Received::default();
    let side = || Box::new(Side { received: Arc::clone(&received), offloads: 0, links: Arc::default() });
    (0..3).for_each(|pair| ports[1].add(pair, side()));
    for left in (1..=3).rev() {
        (0..60).for_each(|number| assert_eq!(send(&ports[0], &plain(mac(1), number)).status, Status::Ok));
        assert_eq!(received.lock().expect("no panic").drain(..).count(), 60, "by {left} pairs");
        assert!(ports[1].remove(left - 1).is_some());
    }
}

#[test]
fn port_that_is_added_for_a_holder_is_had_by_no_other() {
    let (switches, _) = lan(1);
    let device = Holder::Device("fip0".into());
    let added = switches.add("lan", setup(1), Some(device.clone())).expect("added");
    let found = switches.port("lan/1").expect("it is there");
    assert_eq!(
        found.claim(Holder::Client(1)).map_err(|held| held.to_string()).expect_err("held"),
        "port 'lan/1' is the device 'fip0' of the host; attach to another port"
    );
    // Its number is not given to another before it is free.
    assert_eq!(switches.remove(&["lan/1".to_owned()]).map(|removed| removed.len()), Ok(1));
    let other = switches.add("lan", setup(2), None).expect("added");
    other.claim(Holder::Client(2)).expect("it is free");
    added.release();
    assert!(added.claim(device).is_err(), "it has been removed");
    assert!(other.claim(Holder::Client(3)).is_err(), "it has its client");
}

#[test]
fn port_that_is_put_back_is_as_it_was() {
    let (switches, ports) = lan(3);
    let received: Vec<Received> = ports.iter().map(|_| Received::default()).collect();
    for (port, received) in ports.iter().zip(&received) {
        port.add(0, Box::new(Side { received: Arc::clone(received), offloads: 0, links: Arc::default() }));
    }
    ports[2].set_down(true);
    let names = ["lan/1", "lan/2"].map(str::to_owned);
    let counts = || received.iter().map(|received| received.lock().expect("no panic").len()).collect::<Vec<_>>();
    let removed = switches.remove(&names).expect("they are free");
    assert_eq!(send(&ports[0], &plain(Mac::BROADCAST, 1)).status, Status::Ok);
    assert_eq!((counts(), switches.port("lan/1").is_some()), (vec![0, 0, 0], false));
    switches.put_back(removed);
    assert_eq!(send(&ports[0], &plain(Mac::BROADCAST, 1)).status, Status::Ok);
    assert_eq!(send(&ports[0], &plain(mac(1), 1)).status, Status::Ok);
    assert_eq!((counts(), switches.port("lan/2").map(|port| port.link())), (vec![0, 2, 0], Some(Link::Down)));
}
