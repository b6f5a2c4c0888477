//! What the client of a port can do to a network. Each fault goes on until it is stopped; none may cost any port but its own. Each has a
//! baseline: a correct client of a port that does as much.

use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use fipsee_ring::Message;
use fipsee_ring::channel::Profile;
use fipsee_ring::control::Wanted;
use fipsee_ring::handshake::{self, AttachedChannel};
use fipsee_ring::ring::{Cursor, Writer};

use super::fault::{Until, beside};
use super::faults::ask;
use crate::Random;

/// Networks (docs/protocol.md section 10).
const SERVICE: u16 = 3;
const PROFILE: Profile = Profile { features: 0, event_credits: 2, flags: &[] };
const DEPTH: u32 = 16;
const POOL_BYTES: u32 = 64 << 10;

/// A fault of a port's client.
#[derive(Debug)]
pub struct PortFault {
    pub name: &'static str,
    /// What the faulty client gets, in a few words.
    pub gets: &'static str,
    /// How often a test injects it.
    pub times: u64,
    /// Under which name its port's `refused` counts it; none: no frame of it is refused.
    pub refused: Option<&'static str>,
    /// Offloads that its client asks for.
    offloads: u32,
    kind: Kind,
    /// The correct client that does as much; a baseline has none.
    pub baseline: Option<&'static Self>,
}

#[derive(Debug)]
enum Kind {
    /// Frames that are refused with this status.
    Frames(fn(&mut Frame, &mut Random), u16),
    /// Broadcasts, of which some are refused.
    Flood,
    /// Messages that post buffers, or do not.
    Buffers,
    /// It posts buffers and takes no frame.
    Deaf,
    /// It posts buffers and takes what comes, and sends to itself if that is set.
    Takes { sends: bool },
}

/// A correct frame in a message that sends it; a fault changes that.
struct Frame {
    message: [u8; 60],
    /// An address of another port.
    other: [u8; 6],
}

const fn frames(name: &'static str, refused: &'static str, status: u16, change: fn(&mut Frame, &mut Random)) -> PortFault {
    PortFault {
        name,
        gets: "a status for each",
        times: 2_000,
        refused: Some(refused),
        offloads: 0,
        kind: Kind::Frames(change, status),
        baseline: Some(&FRAMES),
    }
}

const fn baseline(name: &'static str, offloads: u32, kind: Kind) -> PortFault {
    PortFault { name, gets: "what it asks for", times: 0, refused: None, offloads, kind, baseline: None }
}

/// Frames to a port without a client.
const FRAMES: PortFault = baseline("frames", 0, Kind::Frames(|_, _| {}, 0));
/// The same, whose checksum is left to be done.
const OFFLOADED: PortFault = baseline("frames without a checksum", 31, Kind::Frames(|frame, _| frame.leave_checksum(), 0));
/// Buffers for the frames that come.
const RECEIVER: PortFault = baseline("frames that are taken", 0, Kind::Takes { sends: false });
/// The same, and frames to itself.
const EXCHANGE: PortFault = baseline("frames that are sent and taken", 0, Kind::Takes { sends: true });

/// All of them.
pub const FAULTS: &[PortFault] = &[
    frames("frames without a whole header", "too_short", 4, |frame, random| {
        frame.message[1] = byte(random, 14);
    }),
    frames("frames longer than the network's", "too_long", 5, |frame, random| {
        frame.put_u32(8, 1479 + (number32(random) >> 1));
    }),
    frames("more first bytes than there are", "invalid", 1, |frame, random| {
        frame.message[1] = 37 + byte(random, 219);
    }),
    frames("offloads that are not in force", "unsupported", 2, |frame, random| {
        frame.message[14 + usize::from(byte(random, 10))] = 1 + byte(random, 255);
    }),
    PortFault {
        offloads: 31,
        baseline: Some(&OFFLOADED),
        ..frames("offloads that are not true", "bad_offload", 10, |frame, random| match random.below(4) {
            // A checksum behind the end, of TCP in a frame that has none, checked and not, and segments without a checksum.
            0 => frame.message[14..24].copy_from_slice(&[1, 0, 0, 0, 0, 0, byte(random, 255), 1, 16, 0]),
            1 => frame.message[14..24].copy_from_slice(&[1, 1, 54, 0, byte(random, 255), 0, 34, 0, 16, 0]),
            2 => frame.message[14..24].copy_from_slice(&[3, 0, 0, 0, 0, 0, 34, 0, 16, 0]),
            _ => {
                frame.message[14..24].copy_from_slice(&[0, [1, 4, 5][usize::from(byte(random, 3))], 54, 0, 100, 0, 34, 0, 16, 0])
            }
        })
    },
    frames("frames outside of the memory", "bad_memory", 3, |frame, random| match random.below(3) {
        0 => frame.put_u32(4, POOL_BYTES - 63),
        1 => frame.put_u32(4, u32::MAX - byte(random, 128) as u32),
        _ => frame.message[12] = 1 + byte(random, 255),
    }),
    frames("addresses of others", "wrong_source", 6, |frame, random| match random.below(3) {
        0 => frame.message[30..36].copy_from_slice(&frame.other),
        1 => frame.message[30] |= 1,
        _ => frame.message[31] = 1 + byte(random, 255),
    }),
    frames("VLANs of others", "wrong_vlan", 7, |frame, random| {
        let tag = [[0x81, 0], [0x88, 0xa8], [0x91, 0]][usize::from(byte(random, 3))];
        // Alone, or with another behind it.
        frame.message[36..38].copy_from_slice(&tag);
        frame.message[38..40].copy_from_slice(&[0, byte(random, 255)]);
        frame.message[40..42].copy_from_slice(&if random.percent(50) { [0x81, 0] } else { [8, 0] });
    }),
    PortFault {
        name: "broadcasts without end",
        gets: "a status for each",
        times: 3_000,
        refused: Some("limited"),
        offloads: 0,
        kind: Kind::Flood,
        baseline: Some(&FRAMES),
    },
    PortFault {
        name: "buffers that are none, are elsewhere, or are posted twice",
        gets: "its own buffers back, or overwritten",
        times: 3_000,
        refused: None,
        offloads: 0,
        kind: Kind::Buffers,
        baseline: Some(&RECEIVER),
    },
    PortFault {
        name: "frames that are never taken",
        gets: "no more frames",
        times: 3_000,
        refused: None,
        offloads: 0,
        kind: Kind::Deaf,
        baseline: Some(&EXCHANGE),
    },
];

fn byte(random: &mut Random, below: u64) -> u8 {
    u8::try_from(random.below(below)).unwrap_or(0)
}

fn number32(random: &mut Random) -> u32 {
    u32::try_from(random.number() >> 32).unwrap_or(0)
}

impl Frame {
    /// 100 bytes to another port: 36 in the message, the rest in memory.
    fn new(own: [u8; 6], other: [u8; 6]) -> Self {
        let mut message = [0; 60];
        (message[0], message[1], message[2]) = (1, 36, 7);
        message[24..30].copy_from_slice(&other);
        message[30..36].copy_from_slice(&own);
        message[36..38].copy_from_slice(&[0x88, 0xb5]);
        let mut frame = Self { message, other };
        frame.put_u32(8, 64);
        frame
    }

    fn put_u32(&mut self, at: usize, value: u32) {
        self.message[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Of all behind the first 34 bytes.
    fn leave_checksum(&mut self) {
        self.message[14..24].copy_from_slice(&[1, 0, 0, 0, 0, 0, 34, 0, 16, 0]);
    }
}

fn attach(socket: &Path, port: &str, offloads: u32) -> io::Result<AttachedChannel> {
    let (name, pool_bytes) = (port.to_owned(), POOL_BYTES.into());
    let wanted = Wanted { service: SERVICE, queue_count: 2, depth: DEPTH, flags: offloads, pool_bytes, name };
    let attached = handshake::attach::<Infallible>(socket, 0, &PROFILE, wanted);
    attached.map_err(|error| io::Error::other(format!("{error:?}")))
}

impl PortFault {
    /// Inject it into the daemon at `socket`, at a port that has the first of these addresses; the second is another port's.
    pub fn inject(&self, socket: &Path, port: &str, [own, other]: [[u8; 6]; 2], until: &mut Until<'_>) -> io::Result<()> {
        let (mut attached, mut random) = (attach(socket, port, self.offloads)?, Random(3));
        match self.kind {
            Kind::Frames(change, status) => {
                while until.more() {
                    let mut frame = Frame::new(own, other);
                    change(&mut frame, &mut random);
                    let found = send(&mut attached, &frame)?;
                    if found != status {
                        return Err(io::Error::other(format!("status {found} instead of {status}: {:02x?}", frame.message)));
                    }
                }
            }
            Kind::Flood => {
                while until.more() {
                    let found = send(&mut attached, &Frame::new(own, [0xff; 6]))?;
                    if found != 0 && found != 8 {
                        return Err(io::Error::other(format!("status {found} of a broadcast")));
                    }
                }
            }
            Kind::Buffers => post_anything(&mut attached, &mut random, until),
            Kind::Deaf => {
                (0..4).try_for_each(|tag| post(&mut attached, tag))?;
                // To itself, which no port receives: no other has to take what it sends.
                while until.more() {
                    send(&mut attached, &Frame::new(own, own))?;
                }
            }
            Kind::Takes { sends } => {
                (0..4).try_for_each(|tag| post(&mut attached, tag))?;
                let mut taken = 0;
                // Not over before the other thread has sent something.
                while until.more() || taken == 0 && !until.is_stopped() {
                    if sends {
                        send(&mut attached, &Frame::new(own, own))?;
                    } else {
                        std::thread::yield_now();
                    }
                    taken += take(&mut attached)?;
                }
            }
        }
        Ok(())
    }

    /// As [`inject`](Self::inject), while a correct client of the port `sender`, which has the second address, sends frames to it, if frames
    /// that come are what it is about.
    pub fn inject_beside(
        &self,
        socket: &Path,
        [port, sender]: [&str; 2],
        [own, other]: [[u8; 6]; 2],
        until: &mut Until<'_>,
    ) -> io::Result<()> {
        if !matches!(self.kind, Kind::Buffers | Kind::Deaf | Kind::Takes { .. }) {
            return self.inject(socket, port, [own, other], until);
        }
        let sender = Mutex::new(attach(socket, sender, 0)?);
        let feed = || {
            let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
            // An error: the daemon is gone, which the faulty client finds, too.
            let _ = send(&mut sender, &Frame::new(other, own));
        };
        beside(feed, || self.inject(socket, port, [own, other], until))
    }
}

/// Post a buffer of 2 KiB.
fn post(attached: &mut AttachedChannel, tag: u8) -> io::Result<()> {
    let mut message = [0; 60];
    (message[0], message[1], message[4]) = (3, 1, tag);
    message[8..12].copy_from_slice(&(4096 + 2048 * u32::from(tag)).to_le_bytes());
    message[12..16].copy_from_slice(&2048_u32.to_le_bytes());
    let published = attached.queues[1].requests.publish(&Message::from_payload(&message));
    published.map_err(|_| io::Error::other("no room for a buffer"))
}

/// Take the frames that are there, and post their buffers again: how many.
fn take(attached: &mut AttachedChannel) -> io::Result<u64> {
    let (mut message, mut taken) = (Message::ZERO, 0);
    while attached.queues[1].completions.receive(&mut message) {
        let bytes = message.to_bytes();
        if bytes[..2] != [1, 1] || bytes[20] > 3 {
            return Err(io::Error::other(format!("{bytes:02x?} is no frame in one of the buffers")));
        }
        attached.queues[1].requests.answered();
        post(attached, bytes[20])?;
        taken += 1;
    }
    Ok(taken)
}

/// The status of a frame.
fn send(attached: &mut AttachedChannel, frame: &Frame) -> io::Result<u16> {
    let answer = ask(attached, &Message::from_payload(&frame.message), |_| {})?.to_bytes();
    if answer[..6] != [0, 1, 0, 0, 7, 0] {
        return Err(io::Error::other(format!("{answer:02x?} answers no frame")));
    }
    Ok(u16::from_le_bytes([answer[6], answer[7]]))
}

/// In a ring of which nothing is taken: the depth means nothing to it.
fn post_anything(attached: &mut AttachedChannel, random: &mut Random, until: &mut Until<'_>) {
    let geometry = &attached.layout.queues[1];
    let tuning = geometry.tuning();
    let ring = geometry.request_ring(&attached.region, &tuning).expect("it was checked");
    let mut writer = Writer::new(ring, Cursor::at_start(geometry.request_start), &tuning);
    while until.more() {
        let mut message = [0; 60];
        random.fill(&mut message);
        let kind = random.below(4);
        (message[0], message[1]) = if kind == 0 { (message[0], message[1]) } else { (3, 1 + byte(random, 4)) };
        if kind > 1 {
            message[2..4].fill(0);
            message[52..].fill(0);
            // In the memory or beyond it, the same ones again and again.
            for buffer in message[4..52].chunks_mut(12) {
                buffer[2..4].fill(0);
                buffer[4..8].copy_from_slice(&(2048 * (number32(random) % 33)).to_le_bytes());
                buffer[8..].copy_from_slice(&(number32(random) % 2049).to_le_bytes());
            }
        }
        writer.publish(&Message::from_payload(&message));
        std::thread::yield_now();
    }
}
