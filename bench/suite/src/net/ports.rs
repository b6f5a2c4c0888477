//! Two ports of a network of ours, both polled by one thread.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fipsee_measure::cpus::Cpus;
use fipsee_measure::statistics::to_f64;
use fipsee_net::frame::Mac;
use fipsee_net::{AttachOptions, Error, Port};
use fipsee_ring::clock;
use fipsee_testkit::Scratch;

use super::exchange::{ACKNOWLEDGEMENT, BURST, Exchange, Measured, time};
use super::paths::Way;
use crate::daemon::Daemon;
use crate::place::on;

pub(super) const MTU: usize = 9000;
/// IEEE 802 "local experimental".
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
const HEADER_BYTES: usize = 14;
/// Longer than this no frame is waited for.
const TIMEOUT: Duration = Duration::from_secs(20);
const LOOKS_PER_CHECK: u32 = 1 << 20;

/// A daemon with one worker on the server's CPU, the disk `n` (null), and the network `lan` with ports of these names.
pub(super) fn daemon(cpus: Cpus, ports: impl IntoIterator<Item = String>) -> Result<Daemon, String> {
    let mut text = format!("[[network]]\nname = \"lan\"\nmtu = {MTU}\n");
    for (number, name) in ports.into_iter().enumerate() {
        text += &format!("[[network.port]]\nname = \"{name}\"\nmac = \"{}\"\n", mac(number));
    }
    let configuration = Scratch::new();
    let path = configuration.file("fipseed.toml", text);
    let more = ["--workers", "1", "--cpus", &cpus.server.to_string(), "--config", &path.to_string_lossy()];
    Daemon::start_program(&Daemon::shipped()?, &["n=null:1G".to_owned()], &more)
}

/// Of the port of this number.
fn mac(number: usize) -> Mac {
    let [.., high, low] = number.to_be_bytes();
    Mac([2, 0, 0, 0, high, low])
}

pub(super) fn attach(socket: &Path, name: &str, depth: u32) -> Result<Port, String> {
    let options = AttachOptions { depth, ..AttachOptions::new(&format!("lan/{name}")) };
    Port::attach(socket, &options).map_err(|error| format!("cannot attach to port {name}: {error}"))
}

/// A frame of the longest length from one address to another.
pub(super) fn frame(from: Mac, to: Mac) -> Vec<u8> {
    let mut frame = [&to.0[..], &from.0, &ETHER_TYPE].concat();
    frame.extend((HEADER_BYTES..HEADER_BYTES + MTU).map(|index| u8::try_from(index % 251).unwrap_or(0)));
    frame.truncate(HEADER_BYTES + MTU);
    frame
}

/// Two ports, and what each sends to the other.
pub(super) struct Pair {
    pub(super) ends: [Port; 2],
    frames: [Vec<u8>; 2],
    receive_buffer: Vec<u8>,
}

impl Pair {
    pub(super) fn attach(socket: &Path, names: [&str; 2], depth: u32) -> Result<Self, String> {
        let ends = [attach(socket, names[0], depth)?, attach(socket, names[1], depth)?];
        let frames = [frame(ends[0].mac(), ends[1].mac()), frame(ends[1].mac(), ends[0].mac())];
        Ok(Self { ends, frames, receive_buffer: Vec::with_capacity(MTU + HEADER_BYTES) })
    }

    /// Send a message, in as many frames as it needs, and wait until all of it is at the other end.
    #[inline(always)]
    fn pass(&mut self, from: usize, bytes: usize) -> Result<(), String> {
        let ([first, second], frame) = (&mut self.ends, &self.frames[from]);
        let (sender, receiver) = if from == 0 { (first, second) } else { (second, first) };
        let (mut unsent, mut unreceived, mut timeout) = (bytes, bytes, Timeout::default());
        while unreceived > 0 {
            while unsent > 0 && stage(sender, &frame[..unsent.min(frame.len())])? {
                unsent -= unsent.min(frame.len());
            }
            sender.submit();
            if receiver.receive(&mut self.receive_buffer).map_err(|error| error.to_string())? {
                unreceived = unreceived.checked_sub(self.receive_buffer.len()).ok_or("more came than was sent")?;
            } else if !timeout.lasts() {
                return Err(format!(
                    "{unreceived} of {bytes} bytes did not come; the sender's frames were refused: {:?}",
                    sender.refused()
                ));
            }
        }
        Ok(())
    }

    /// A frame, one way: when that began, when it was encoded, and when it was at the other end.
    pub(super) fn pass_timed(&mut self, bytes: usize) -> Result<[u64; 3], String> {
        let ([sender, receiver], frame) = (&mut self.ends, &self.frames[0]);
        let begun = clock::ticks();
        if !stage(sender, &frame[..bytes])? {
            return Err("a port that was given all frames back has no room".to_owned());
        }
        let encoded = clock::ticks();
        sender.submit();
        let mut timeout = Timeout::default();
        while !receiver.receive(&mut self.receive_buffer).map_err(|error| error.to_string())? {
            if !timeout.lasts() {
                return Err("a frame did not come".to_owned());
            }
        }
        Ok([begun, encoded, clock::ticks()])
    }

    pub(super) fn exchange(&mut self, exchange: Exchange, bytes: usize) -> Result<(), String> {
        self.pass(0, bytes)?;
        if exchange == Exchange::FourSteps {
            self.pass(1, ACKNOWLEDGEMENT)?;
        }
        if exchange != Exchange::OneWay {
            self.pass(1, bytes)?;
        }
        if exchange == Exchange::FourSteps {
            self.pass(0, ACKNOWLEDGEMENT)?;
        }
        Ok(())
    }

    /// Send what there is room for, and take what has come: bytes.
    pub(super) fn turn(&mut self, bytes: usize) -> Result<u64, String> {
        let ([sender, receiver], frame) = (&mut self.ends, &self.frames[0]);
        let length = bytes.min(frame.len());
        let mut staged = 0;
        while staged < BURST && stage(sender, &frame[..length])? {
            staged += 1;
        }
        sender.submit();
        let mut received = 0;
        for _ in 0..2 * BURST {
            if !receiver.receive(&mut self.receive_buffer).map_err(|error| error.to_string())? {
                break;
            }
            received += self.receive_buffer.len() as u64;
        }
        Ok(received)
    }

    /// Messages per second, one way.
    pub(super) fn rate(&mut self, bytes: usize, seconds: f64) -> Result<f64, String> {
        let (begun, mut received) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_secs_f64(seconds) {
            for _ in 0..16 {
                received += self.turn(bytes)?;
            }
        }
        let elapsed = begun.elapsed().as_secs_f64();
        self.drain()?;
        Ok(to_f64(received) / to_f64(bytes as u64) / elapsed)
    }

    /// Until nothing is under way.
    pub(super) fn drain(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        let mut is_busy = true;
        while is_busy {
            is_busy = false;
            for end in &mut self.ends {
                end.submit();
                end.reap().map_err(|error| error.to_string())?;
                is_busy |= end.unsent() > 0 || end.receive(&mut self.receive_buffer).map_err(|error| error.to_string())?;
            }
            if begun.elapsed() > TIMEOUT {
                return Err("the daemon does not give all frames back".to_owned());
            }
        }
        Ok(())
    }

    /// What arrives is what was sent, in both directions.
    pub(super) fn check(&mut self) -> Result<(), String> {
        for from in 0..2 {
            self.drain()?;
            let length = self.frames[from].len();
            self.pass(from, length)?;
            if self.receive_buffer != self.frames[from] {
                return Err("a frame is not what was sent".to_owned());
            }
        }
        Ok(())
    }
}

/// Looks in vain, most of which read no clock.
#[derive(Default)]
struct Timeout {
    looks: u32,
    since: Option<Instant>,
}

impl Timeout {
    /// With a pause, as programs that poll make it (docs/net-performance.md says what it is worth).
    #[inline(always)]
    fn lasts(&mut self) -> bool {
        std::hint::spin_loop();
        self.looks = self.looks.wrapping_add(1);
        !self.looks.is_multiple_of(LOOKS_PER_CHECK) || self.since.get_or_insert_with(Instant::now).elapsed() < TIMEOUT
    }
}

/// `false`: there is no room.
#[inline(always)]
pub(super) fn stage(port: &mut Port, frame: &[u8]) -> Result<bool, String> {
    match port.stage(frame) {
        Ok(()) => Ok(true),
        Err(Error::Full) => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

/// The way.
pub(super) struct Ports {
    pair: Pair,
}

impl Ports {
    pub(super) const DEPTH: u32 = 256;

    pub(super) fn open(socket: PathBuf, cpus: Cpus) -> Result<Box<dyn Way>, String> {
        let pair = on(cpus.client, || {
            let mut pair = Pair::attach(&socket, ["a", "b"], Self::DEPTH)?;
            pair.check()?;
            Ok(pair)
        })?;
        Ok(Box::new(Self { pair }))
    }
}

impl Way for Ports {
    fn measure(&mut self, exchange: Exchange, bytes: usize, seconds: f64, cpus: Cpus) -> Result<Measured, String> {
        on(cpus.client, || match exchange {
            Exchange::Rate => self.pair.rate(bytes, seconds).map(Measured::Rate),
            _ => {
                self.pair.drain()?;
                time(seconds, || self.pair.exchange(exchange, bytes))
            }
        })
    }
}
