//! TCP between a program in a guest of user-mode Linux and one on the host: through a port of ours, which the guest's virtio_net drives, and
//! through the guest's own vector driver on a TAP device.

mod idle;
mod machine;

use std::io::{Error, Read, Result as Outcome, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use fipsee_measure::claim::Claim;
use fipsee_measure::statistics::to_f64;

use self::idle::Polling;
use self::machine::Machine;
use super::exchange::{Measured, SMALLEST, time};
use crate::parts::Part;
use crate::table::{BANDWIDTH, P50, Results, Series};
use crate::{Settings, steady};

/// Of a write, and of a read.
const PIECE_BYTES: usize = 64 << 10;
/// Connections of each way in a round of round trips, by turns. All that a virtual CPU does was seen to take 1.4 times as long for a second or so: both
/// ways must meet that alike.
const ROUND_TRIP_TURNS: usize = 4;

/// How guest and host are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Vector,
    Port,
}

impl Way {
    const ALL: [Self; 2] = [Self::Vector, Self::Port];

    const fn name(self) -> &'static str {
        match self {
            Self::Vector => "vector TAP",
            Self::Port => "port",
        }
    }
}

/// Where the host's program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramCpu {
    /// On the CPU of the daemon's worker, which sleeps while the vector TAP is measured.
    BesideWorker,
    /// On the CPU that the guest has.
    BesideGuest,
}

impl ProgramCpu {
    const ALL: [Self; 2] = [Self::BesideWorker, Self::BesideGuest];

    const fn name(self) -> &'static str {
        match self {
            Self::BesideWorker => "beside the worker",
            Self::BesideGuest => "beside the guest",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    FromGuest,
    ToGuest,
    RoundTrip,
    /// Idle CPUs poll before they are halted, as they do unless a kernel is set not to.
    RoundTripPolling,
}

impl Load {
    const ALL: [Self; 4] = [Self::FromGuest, Self::ToGuest, Self::RoundTrip, Self::RoundTripPolling];

    const fn name(self) -> &'static str {
        match self {
            Self::FromGuest => "from the guest",
            Self::ToGuest => "to the guest",
            Self::RoundTrip => "round trip of 64 B",
            Self::RoundTripPolling => "round trip of 64 B, idle CPUs poll",
        }
    }

    const fn metric(self) -> &'static str {
        match self {
            Self::FromGuest | Self::ToGuest => BANDWIDTH,
            Self::RoundTrip | Self::RoundTripPolling => P50,
        }
    }

    const fn turns(self) -> usize {
        match self {
            Self::FromGuest | Self::ToGuest => 1,
            Self::RoundTrip | Self::RoundTripPolling => ROUND_TRIP_TURNS,
        }
    }

    fn measure(self, stream: TcpStream, seconds: f64) -> Outcome<Measured> {
        match self {
            Self::FromGuest => from_guest(stream, seconds),
            Self::ToGuest => to_guest(stream, seconds),
            Self::RoundTrip | Self::RoundTripPolling => round_trip(stream, seconds),
        }
    }
}

fn candidate(way: Way, load: Load, cpu: ProgramCpu) -> String {
    format!("guest's TCP, {}, {}, program {}", way.name(), load.name(), cpu.name())
}

/// All that come in a row: ways are the innermost, so that those that are compared are neighbours.
fn cells() -> impl Iterator<Item = (Load, ProgramCpu)> {
    Load::ALL.into_iter().flat_map(|load| ProgramCpu::ALL.map(|cpu| (load, cpu)))
}

/// Of so many bytes in this time.
fn rate(bytes: u64, elapsed: Duration) -> Measured {
    Measured::Rate(to_f64(bytes) / to_f64(PIECE_BYTES as u64) / elapsed.as_secs_f64())
}

/// The first tenth of the time is not counted.
fn from_guest(mut stream: TcpStream, seconds: f64) -> Outcome<Measured> {
    stream.write_all(b"g")?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut receive = |seconds: f64| {
        let (begun, mut bytes) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_secs_f64(seconds) {
            bytes += match stream.read(&mut piece)? {
                0 => return Err(Error::other("the guest has ended the connection")),
                more => more as u64,
            };
        }
        Ok(rate(bytes, begun.elapsed()))
    };
    receive(seconds / 10.0)?;
    receive(seconds)
}

/// Until the guest has all of it.
fn to_guest(mut stream: TcpStream, seconds: f64) -> Outcome<Measured> {
    stream.write_all(b"s")?;
    let (piece, begun, mut bytes) = (vec![0; PIECE_BYTES], Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs_f64(seconds) {
        stream.write_all(&piece)?;
        bytes += PIECE_BYTES as u64;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut taken = [0; 8];
    stream.read_exact(&mut taken)?;
    let elapsed = begun.elapsed();
    match u64::from_be_bytes(taken) {
        taken if taken == bytes => Ok(rate(bytes, elapsed)),
        taken => Err(Error::other(format!("the guest got {taken} of {bytes} bytes"))),
    }
}

fn round_trip(mut stream: TcpStream, seconds: f64) -> Outcome<Measured> {
    stream.write_all(b"e")?;
    let (mut sent, mut found) = ([0_u8; SMALLEST], [0; SMALLEST]);
    let exchange = || {
        sent[0] = sent[0].wrapping_add(1);
        let exchanged = stream.write_all(&sent).and_then(|()| stream.read_exact(&mut found));
        exchanged.map_err(|error| error.to_string())?;
        if found == sent { Ok(()) } else { Err("a message came back changed".to_owned()) }
    };
    time(seconds, exchange).map_err(Error::other)
}

/// The part.
pub(super) struct GuestTcp {
    machine: Option<Machine>,
    skips: Vec<(String, String)>,
}

impl GuestTcp {
    pub(super) fn is_chosen(settings: &Settings) -> bool {
        cells().any(|cell| Way::ALL.iter().any(|way| settings.chooses(&candidate(*way, cell.0, cell.1))))
    }

    pub(super) fn start(settings: &Settings) -> Self {
        let memory: &Path = &settings.memory_directory;
        match Machine::start(memory) {
            Ok(machine) => Self { machine: Some(machine), skips: Vec::new() },
            Err(reason) => Self { machine: None, skips: vec![("guest's TCP".to_owned(), reason)] },
        }
    }
}

impl Part for GuestTcp {
    fn measure(&mut self, settings: &Settings, round: usize, results: &mut Results) -> Result<(), String> {
        let Some(machine) = &self.machine else { return Ok(()) };
        for (load, cpu) in cells() {
            let _polling = (load == Load::RoundTripPolling).then(Polling::begin).transpose()?;
            steady::measure(results, |results| {
                for turn in 0..load.turns() * Way::ALL.len() {
                    let way = Way::ALL[(turn + round) % Way::ALL.len()];
                    let name = candidate(way, load, cpu);
                    if settings.chooses(&name) {
                        let seconds = settings.seconds / 2.0 / to_f64(load.turns() as u64);
                        let measured = machine.with_connection(way, cpu, |stream| load.measure(stream, seconds));
                        measured.map_err(|error| format!("{name}: {error}"))?.add_to(results, &name, PIECE_BYTES);
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn print(&self, results: &Results) {
        println!("\nTCP between a guest and a program of the host (MB/s; p50 of the round trip, us), medians\n");
        let cpus = ProgramCpu::ALL.map(|cpu| format!("{:>20}", cpu.name())).concat();
        println!("{:<48}{cpus}{:>14}", "", "over vector");
        for load in Load::ALL {
            for way in Way::ALL {
                let figure = |cpu| median(results, way, load, cpu).map(|median| in_unit(load, median));
                let figures = ProgramCpu::ALL.map(|cpu| figure(cpu).map_or_else(|| "-".to_owned(), |text| format!("{text:.1}")));
                let ratio = over_vector(results, load).filter(|_| way == Way::Port);
                let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:>14.3}"));
                println!("{:<48}{:>20}{:>20}{ratio}", format!("{}, {}", load.name(), way.name()), figures[0], figures[1]);
            }
        }
    }

    fn claims(&self, _settings: &Settings, results: &Results) -> Vec<Claim> {
        let over = |load| over_vector(results, load);
        vec![
            Claim::at_least(0.9, "TCP from a guest: bytes/s through a port over those of its vector TAP", over(Load::FromGuest)),
            Claim::at_least(0.9, "TCP to a guest: bytes/s through a port over those of its vector TAP", over(Load::ToGuest)),
            Claim::at_most(
                1.1,
                "TCP of a guest, round trip of 64 B, idle CPUs poll: p50 through a port over that of its vector TAP",
                over(Load::RoundTripPolling),
            ),
        ]
    }

    fn skips(&self) -> &[(String, String)] {
        &self.skips
    }
}

fn in_unit(load: Load, value: f64) -> f64 {
    if load.metric() == P50 { value / 1e3 } else { value / 1e6 }
}

fn median(results: &Results, way: Way, load: Load, cpu: ProgramCpu) -> Option<f64> {
    results.get(&candidate(way, load, cpu), load.metric()).map(Series::median)
}

/// Each way with the host's program at the better of its CPUs: a vector TAP has no worker, and leaves a whole CPU to the program.
fn over_vector(results: &Results, load: Load) -> Option<f64> {
    let pick = if load.metric() == P50 { f64::min } else { f64::max };
    let best = |way| ProgramCpu::ALL.iter().filter_map(|cpu| median(results, way, load, *cpu)).reduce(pick);
    Some(best(Way::Port)? / best(Way::Vector)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_is_judged_on_its_better_cpu() {
        let mut results = Results::default();
        assert_eq!(over_vector(&results, Load::ToGuest), None, "nothing was measured");
        for (way, load, cpu, value) in [
            (Way::Vector, Load::ToGuest, ProgramCpu::BesideWorker, 200.0),
            (Way::Vector, Load::ToGuest, ProgramCpu::BesideGuest, 100.0),
            (Way::Port, Load::ToGuest, ProgramCpu::BesideWorker, 150.0),
            (Way::Port, Load::ToGuest, ProgramCpu::BesideGuest, 180.0),
            (Way::Vector, Load::RoundTrip, ProgramCpu::BesideWorker, 50.0),
            (Way::Vector, Load::RoundTrip, ProgramCpu::BesideGuest, 40.0),
            (Way::Port, Load::RoundTrip, ProgramCpu::BesideWorker, 44.0),
            (Way::Port, Load::RoundTrip, ProgramCpu::BesideGuest, 60.0),
        ] {
            results.add(&candidate(way, load, cpu), load.metric(), value);
        }
        assert_eq!(over_vector(&results, Load::ToGuest), Some(0.9));
        assert_eq!(over_vector(&results, Load::RoundTrip), Some(1.1));
    }
}
