//! The host's network stack behind a device that is a port of a network, and datagrams of UDP between it and a station at another port.

use std::net::UdpSocket;
use std::sync::mpsc::channel;

use crate::TIMEOUT;
use crate::netns::Namespace;

/// Addresses of the stack and of the station.
const STACK: [u8; 4] = [10, 9, 0, 1];
const STATION: [u8; 4] = [10, 9, 0, 2];
/// Where the stack sends back what comes.
const ECHO: u16 = 7;
/// The first port of the station.
const FIRST: u16 = 5000;
/// What each flow sends.
const ROUNDS: u16 = 8;

const HEADERS_BYTES: usize = 42;
const PAYLOAD_BYTES: usize = 100;
const IPV4: [u8; 2] = [8, 0];
const UDP: u8 = 17;

/// A device of a namespace.
#[derive(Debug)]
pub struct Stack<'a> {
    space: &'a Namespace,
    device: &'a str,
    mac: [u8; 6],
    station: [u8; 6],
}

impl<'a> Stack<'a> {
    /// The device is up and has an address; the stack knows the station by its address of Ethernet.
    pub fn new(space: &'a Namespace, device: &'a str, (mac, station): ([u8; 6], [u8; 6])) -> Self {
        space.up(device, "10.9.0.1/24");
        let lladdr = station.map(|byte| format!("{byte:02x}")).join(":");
        space.run(&format!("ip neigh replace 10.9.0.2 lladdr {lladdr} dev {device}"));
        Self { space, device, mac, station }
    }

    /// Have the stack send back what the station sends: several datagrams of each of so many flows, each of which must come.
    #[track_caller]
    pub fn exchange(&self, flows: u16, mut send: impl FnMut(&[u8]), mut next: impl FnMut() -> Vec<u8>) {
        let (ready, is_ready) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                self.space.enter().expect("a namespace");
                let socket = UdpSocket::bind((std::net::Ipv4Addr::from(STACK), ECHO)).expect("the address");
                socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
                ready.send(()).expect("it is waited for");
                let mut bytes = [0; PAYLOAD_BYTES];
                for _ in 0..flows * ROUNDS {
                    let (length, from) = socket.recv_from(&mut bytes).expect("a datagram");
                    socket.send_to(&bytes[..length], from).expect("sent");
                }
            });
            is_ready.recv().expect("it listens");
            for round in 0..ROUNDS {
                (0..flows).for_each(|flow| send(&self.datagram(flow, round)));
                let mut missing: Vec<u16> = (0..flows).collect();
                while !missing.is_empty() {
                    let flow = returned(&next(), round);
                    missing.retain(|other| Some(*other) != flow);
                }
            }
        });
    }

    /// From the station.
    fn datagram(&self, flow: u16, round: u16) -> Vec<u8> {
        let length = |bytes: usize| u16::try_from(bytes).expect("short").to_be_bytes();
        let ip_bytes = length(HEADERS_BYTES - 14 + PAYLOAD_BYTES);
        let mut ip = [&[0x45, 0][..], &ip_bytes, &[0, 0, 0x40, 0, 64, UDP, 0, 0], &STATION, &STACK].concat();
        let sum: u32 = ip.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        let checksum = !u16::try_from(folded).expect("of ten words");
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        // Over IPv4 the checksum of UDP may be left out.
        let udp = [(FIRST + flow).to_be_bytes(), ECHO.to_be_bytes(), length(8 + PAYLOAD_BYTES), [0, 0]].concat();
        [&self.mac[..], &self.station, &IPV4, &ip, &udp, &payload(flow, round)].concat()
    }

    /// Frames that the stack has given to each of the first queues of the device, of which the kernel lists as many as it could have.
    pub fn sent_by_queue<const QUEUES: usize>(&self) -> [u64; QUEUES] {
        let said = self.space.run(&format!("tc -s class show dev {}", self.device));
        let count = |line: &str| {
            let (_, counts) = line.split_once("Sent ")?;
            counts.split_whitespace().nth(2)?.parse().ok()
        };
        let mut counts = said.lines().filter_map(count);
        std::array::from_fn(|_| counts.next().unwrap_or_else(|| panic!("too few queues: {said}")))
    }
}

fn payload(flow: u16, round: u16) -> Vec<u8> {
    [flow.to_le_bytes(), round.to_le_bytes()].concat().repeat(PAYLOAD_BYTES / 4)
}

/// The flow of a datagram of this round that came back. Other frames are the stack's own.
#[track_caller]
fn returned(frame: &[u8], round: u16) -> Option<u16> {
    if frame.len() < HEADERS_BYTES || frame[12..14] != IPV4 || frame[23] != UDP || frame[26..34] != [STACK, STATION].concat() {
        return None;
    }
    let [from, to] = [34, 36].map(|at| u16::from_be_bytes([frame[at], frame[at + 1]]));
    let flow = to - FIRST;
    assert_eq!((from, &frame[HEADERS_BYTES..]), (ECHO, &payload(flow, round)[..]), "it came back changed");
    Some(flow)
}
