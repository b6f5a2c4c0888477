//! `cargo xtask bench small-writes`: writes of 512 B to a file disk, beside fio where the device takes them, and what they cost
//! where it does not and the daemon has to read, modify and write.

mod loop_disk;
mod table;

use std::io::Write;

use fipsee::cpus::CpuChoice;
use fipsee::load::{self, count_f64};
use fipsee_measure::claim::{self, Claim};
use fipsee_measure::cpus::Cpus;
use fipsee_measure::machine::Run;
use fipsee_measure::results::append;
use serde_json::{Value, json};

use self::loop_disk::LoopDisk;
pub(crate) use self::table::over_fio;
use crate::daemon::Daemon;
use crate::files::FilledFile;
use crate::fio::{self, Fio};
use crate::matrix::{Cell, DEEP};
use crate::table::{IOPS, P50, P99, Results};
use crate::{Settings, claims, generator};

const MEBIBYTES_ON_DISK: usize = 256;
const MEBIBYTES_ON_LOOP: usize = 128;

/// The place of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TestDevice {
    /// The folder that the user chose.
    Disk,
    SmallSectors,
    LargeSectors,
}

impl TestDevice {
    const ALL: [Self; 3] = [Self::Disk, Self::SmallSectors, Self::LargeSectors];

    const fn text(self) -> &'static str {
        match self {
            Self::Disk => "this machine's disk",
            Self::SmallSectors => "loop device, 512 B sectors",
            Self::LargeSectors => "loop device, 4096 B sectors",
        }
    }

    const fn disk_name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::SmallSectors => "small",
            Self::LargeSectors => "large",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    FipSee,
    /// Submits and takes one by one, as it does by default.
    Fio,
    FioInBatches,
}

const CLIENTS: [Client; 3] = [Client::FipSee, Client::Fio, Client::FioInBatches];

/// 64 random writes in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    place: TestDevice,
    block_bytes: u64,
}

/// What is claimed about.
pub(crate) const DISK_512: Load = Load { place: TestDevice::Disk, block_bytes: 512 };

/// Fip-see and fio where both can do it; 512 B on large sectors is what only Fip-see does.
const CANDIDATES: [(Client, Load); 10] = [
    (Client::FipSee, DISK_512),
    (Client::Fio, DISK_512),
    (Client::FioInBatches, DISK_512),
    (Client::FipSee, Load { place: TestDevice::SmallSectors, block_bytes: 512 }),
    (Client::Fio, Load { place: TestDevice::SmallSectors, block_bytes: 512 }),
    (Client::FioInBatches, Load { place: TestDevice::SmallSectors, block_bytes: 512 }),
    (Client::FipSee, Load { place: TestDevice::LargeSectors, block_bytes: 512 }),
    (Client::FipSee, Load { place: TestDevice::LargeSectors, block_bytes: 4096 }),
    (Client::Fio, Load { place: TestDevice::LargeSectors, block_bytes: 4096 }),
    (Client::FioInBatches, Load { place: TestDevice::LargeSectors, block_bytes: 4096 }),
];

fn name(client: Client, load: &Load) -> String {
    let client = match client {
        Client::FipSee => "Fip-see",
        Client::Fio => "fio io_uring",
        Client::FioInBatches => "fio io_uring, in batches",
    };
    format!("{client}, {} B, {}", load.block_bytes, load.place.text())
}

struct Bench {
    settings: Settings,
    // The daemon ends before its files go, and these before what is below them.
    daemon: Daemon,
    files: Vec<(TestDevice, FilledFile)>,
    _loops: Vec<LoopDisk>,
    fio: Fio,
    cpus: Cpus,
    results: Results,
    /// What is not measured, and why.
    skips: Vec<(String, String)>,
}

pub(crate) fn run(settings: Settings) -> Result<(), String> {
    let run = Run::begin_in_sight();
    let mut bench = Bench::start(settings)?;
    for round in 0..bench.settings.rounds {
        for place in 0..CANDIDATES.len() {
            let (client, load) = &CANDIDATES[(place + round) % CANDIDATES.len()];
            bench.measure(*client, load)?;
        }
        let _ = writeln!(std::io::stderr(), "round {} of {}", round + 1, bench.settings.rounds);
    }
    let (machine, _) = run.end();
    bench.results.print();
    bench.skips.iter().for_each(|(name, reason)| println!("skipped: {name}: {reason}"));
    if bench.results.series.is_empty() {
        return Err("nothing was measured; the reasons are above, or --only leaves nothing".to_owned());
    }
    if bench.settings.markdown {
        println!("\n{}", table::markdown(&bench.results));
    }
    let claims = claims::of_small_writes(&bench.results);
    println!("\n{}", claim::table(&claims));
    append(&bench.settings.file("small-writes", &Ok(())), &bench.entry(&machine, &claims))
}

impl Bench {
    fn start(settings: Settings) -> Result<Self, String> {
        let (cpus, fio) = (Cpus::choose(), Fio::find()?);
        // Dropped the other way round: files before what is below them.
        let (mut loops, mut files, mut skips) = (Vec::new(), Vec::new(), Vec::new());
        for place in TestDevice::ALL {
            if !CANDIDATES.iter().any(|(client, load)| load.place == place && settings.chooses(&name(*client, load))) {
                continue;
            }
            match make_file(place, &settings, &mut loops) {
                Ok(file) => files.push((place, file)),
                Err(reason) => skips.push((place.text().to_owned(), reason)),
            }
        }
        let disk =
            |(place, file): &(TestDevice, FilledFile)| format!("{}=file:{},block=512", place.disk_name(), file.path().display());
        let disks: Vec<String> = files.iter().map(disk).collect();
        let more = ["--workers", "1", "--cpus", &cpus.server.to_string()];
        let daemon = Daemon::start_program(&Daemon::shipped()?, &disks, &more)?;
        Ok(Self { settings, daemon, files, _loops: loops, fio, cpus, results: Results::default(), skips })
    }

    fn measure(&mut self, client: Client, load: &Load) -> Result<(), String> {
        let name = name(client, load);
        if !self.settings.chooses(&name) || self.skips.iter().any(|(skipped, _)| *skipped == name) {
            return Ok(());
        }
        let Some((_, file)) = self.files.iter().find(|(place, _)| *place == load.place) else { return Ok(()) };
        if client != Client::FipSee
            && let Some(bytes) = file.direct_bytes().filter(|bytes| u64::from(*bytes) > load.block_bytes)
        {
            self.skips.push((name, format!("direct I/O takes no less than {bytes} B there")));
            return Ok(());
        }
        // Of all: what one measurement leaves to be written back would be written during the next.
        self.files.iter().try_for_each(|(_, file)| file.settle())?;
        let cell = Cell { block_bytes: load.block_bytes, write: true, ..DEEP };
        let seconds = self.settings.seconds;
        let figures = if client == Client::FipSee {
            let cpus = CpuChoice::List(vec![self.cpus.client]);
            let settings = generator::settings(&self.daemon.socket(), load.place.disk_name(), cell, seconds, cpus);
            let report = load::run(&settings).map_err(|error| format!("{name}: {error}"))?;
            [report.iops, count_f64(report.latency_ns(0.5)), count_f64(report.latency_ns(0.99))]
        } else {
            let mut arguments = fio::on_file("io_uring", file.path(), true);
            if client == Client::Fio {
                arguments.extend(["--iodepth_batch_submit=1".to_owned(), "--iodepth_batch_complete_max=1".to_owned()]);
            }
            let report = self.fio.run(&arguments, cell, seconds, self.cpus.client).map_err(|error| format!("{name}: {error}"))?;
            [report.iops, report.latency_ns_p50, report.latency_ns_p99]
        };
        for (metric, value) in [IOPS, P50, P99].into_iter().zip(figures) {
            self.results.add(&name, metric, value);
        }
        Ok(())
    }

    fn entry(&self, machine: &Value, claims: &[Claim]) -> Value {
        let place = |(place, file): &(TestDevice, FilledFile)| {
            json!({
                "place": place.text(),
                "file_system": generator::file_system(file.path()),
                "direct_bytes": file.direct_bytes(),
            })
        };
        let skip = |(name, reason): &(String, String)| json!({ "candidate": name, "reason": reason });
        json!({
            "suite": "small-writes",
            "machine": machine,
            "fio": self.fio.version,
            "rounds": self.settings.rounds,
            "seconds": self.settings.seconds,
            "places": self.files.iter().map(place).collect::<Vec<_>>(),
            "series": self.results.to_json(),
            "claims": claim::to_json(claims),
            "skipped": self.skips.iter().map(skip).collect::<Vec<_>>(),
        })
    }
}

fn make_file(place: TestDevice, settings: &Settings, loops: &mut Vec<LoopDisk>) -> Result<FilledFile, String> {
    let file_name = format!("fipsee-bench-small-{}.img", std::process::id());
    let sector_bytes = match place {
        TestDevice::Disk => {
            let folder = &settings.file_directory;
            std::fs::create_dir_all(folder).map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
            return FilledFile::create(folder.join(file_name), MEBIBYTES_ON_DISK);
        }
        TestDevice::SmallSectors => 512,
        TestDevice::LargeSectors => 4096,
    };
    loops.push(LoopDisk::mount(&settings.memory_directory, sector_bytes)?);
    let folder = loops.last().map(LoopDisk::folder).unwrap_or(&settings.memory_directory);
    FilledFile::create(folder.join(file_name), MEBIBYTES_ON_LOOP)
}
