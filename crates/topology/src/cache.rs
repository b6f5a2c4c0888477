//! The last measurement, kept in a file for programs that start later.
//!
//! The writer of the file decides where we run, so it is used only if it belongs to root or this user and no other user may
//! write it; and only if it is about this machine, as it is now, and every figure is one that can have been measured.

use std::fmt;
use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use fipsee_ring::tuning::Choices;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::choose::{self, Basis, ByDistance, Chosen, Trial, over, pairs};
use crate::machine::{Distance, Machine};
use crate::matrix::{Cost, Matrix};

/// Layout of the file; a change of any kind is another version.
const VERSION: u32 = 2;
/// A file of 1024 CPUs has 64 MB; a longer one is none of ours.
const MAX_FILE_BYTES: u64 = 128 << 20;
/// No line takes longer than this (a millisecond or so).
const MAX_TICKS: f64 = 4e6;
/// Choosing takes milliseconds; on a machine with other load, a minute at most.
const MAX_MILLISECONDS: f64 = 60_000.0;
/// Choices that were compared differ by less.
const MAX_RATIO: f64 = 1000.0;
const MAX_TRIALS: usize = 32;
/// The bits of a word of choices that mean something.
const CHOICES_MASK: u32 = 0x001f_ffff;
/// Root's measurement, which everyone may read.
pub const SYSTEM_PATH: &str = "/run/fipsee/topology.json";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    machine: String,
    tsc_hz: u64,
    own_ticks: Option<f64>,
    /// From, to, median and least ticks.
    costs: Vec<(usize, usize, f64, f64)>,
    choices: Vec<Choice>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Choice {
    /// [`Distance::key`].
    distance: String,
    choices: u32,
    is_measured: bool,
    floor_ticks: [f64; 2],
    milliseconds: f64,
    /// The field that was tried as a word of choices, its ratio, and whether it was taken.
    trials: Vec<(u32, f64, bool)>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kept {
    pub matrix: Matrix,
    pub choices: ByDistance,
}

#[derive(Debug)]
pub enum Unusable {
    Missing,
    /// It is not trusted, or about something else: in words.
    Refused(String),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("nothing was measured yet; run fipsee topology"),
            Self::Refused(why) => write!(f, "{why}; run fipsee topology --measure"),
        }
    }
}

/// Where this user's measurements are kept: for root [`SYSTEM_PATH`], else below `XDG_CACHE_HOME` or `~/.cache`; `None` without
/// any.
pub fn own_path() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from(SYSTEM_PATH));
    }
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("fipsee/topology.json"))
}

/// The newest measurement that may be used: one's own, else root's. With the file it came from.
pub fn load(machine: &Machine) -> Result<(PathBuf, Kept), Unusable> {
    let system = PathBuf::from(SYSTEM_PATH);
    let own = own_path().filter(|own| *own != system);
    let own_outcome = own.map(|path| read(&path, machine).map(|kept| (path, kept)));
    match own_outcome {
        Some(Ok(found)) => Ok(found),
        Some(Err(refused @ Unusable::Refused(_))) => read(&system, machine).map(|kept| (system, kept)).map_err(|_| refused),
        _ => read(&system, machine).map(|kept| (system, kept)),
    }
}

/// The choices of rings for threads that are bound to no CPU: those of [`load`] that every class of pairs has in common, as
/// [`choose::for_clients`] says, else those of the CPU's family. Looked for once in a process.
pub fn choices_here() -> Choices {
    static HERE: LazyLock<Choices> = LazyLock::new(|| {
        let machine = Machine::this();
        let kept = load(&machine).ok().map(|(_, kept)| kept.choices).unwrap_or_default();
        choose::for_clients(&machine, None, &[], &kept).map_or_else(choose::of_family, |found| found.choices)
    });
    *HERE
}

/// The measurement in `path`, if it can be trusted and is about `machine`.
pub fn read(path: &Path, machine: &Machine) -> Result<Kept, Unusable> {
    let refuse = |why: &str| Unusable::Refused(format!("{} is ignored: {why}", path.display()));
    // Neither a link, which may lead anywhere, nor a pipe, which would keep us waiting.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = std::fs::File::options().read(true).custom_flags(i32::try_from(flags.bits()).unwrap_or(0)).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Unusable::Missing),
        Err(error) => return Err(refuse(&error.to_string())),
    };
    let metadata = file.metadata().map_err(|error| refuse(&error.to_string()))?;
    if !metadata.is_file() {
        return Err(refuse("it is no regular file"));
    }
    let user = rustix::process::geteuid().as_raw();
    if (metadata.uid() != 0 && metadata.uid() != user) || metadata.mode() & 0o022 != 0 {
        return Err(refuse("others than root and this user may have written it"));
    }
    let mut text = String::new();
    let length = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| refuse(&error.to_string()))?;
    if length as u64 > MAX_FILE_BYTES {
        return Err(refuse("it is too long"));
    }
    parse(&text, machine).map_err(|why| refuse(&why))
}

fn parse(text: &str, machine: &Machine) -> Result<Kept, String> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let head: Head = serde_json::from_str(text).map_err(|error| format!("it is damaged ({error})"))?;
    if head.version != VERSION {
        return Err(format!("it has version {}, and this program writes {VERSION}", head.version));
    }
    let file: File = serde_json::from_str(text).map_err(|error| format!("it is damaged ({error})"))?;
    if file.machine != machine.fingerprint() {
        return Err("it is about another machine, other CPUs, or an earlier start of this one".to_owned());
    }
    let matrix = matrix_of(&file, machine)?;
    Ok(Kept { matrix, choices: choices_of(file.choices, machine)? })
}

fn is_time(ticks: f64) -> bool {
    ticks > 0.0 && ticks < MAX_TICKS
}

const IMPOSSIBLE: &str = "it holds figures that cannot have been measured";

fn matrix_of(file: &File, machine: &Machine) -> Result<Matrix, String> {
    let is_possible = |(from, to, median, least): &(usize, usize, f64, f64)| {
        let is_known = machine.cpu(*from).is_some() && machine.cpu(*to).is_some() && from != to;
        is_known && is_time(*median) && is_time(*least) && least <= median
    };
    if file.tsc_hz == 0 || !file.own_ticks.is_none_or(is_time) || !file.costs.iter().all(is_possible) || file.costs.is_empty() {
        return Err(IMPOSSIBLE.to_owned());
    }
    let costs = file.costs.iter().map(|(from, to, median_ticks, least_ticks)| {
        let cost = Cost { median_ticks: *median_ticks, least_ticks: *least_ticks };
        ((*from, *to), cost)
    });
    let matrix = Matrix::new(file.tsc_hz, file.own_ticks, costs);
    let is_whole =
        matrix.costs().count() == file.costs.len() && matrix.costs().all(|((from, to), _)| matrix.get(to, from).is_some());
    if !is_whole {
        return Err("directions are missing in it, or there twice".to_owned());
    }
    Ok(matrix)
}

fn choices_of(kept: Vec<Choice>, machine: &Machine) -> Result<ByDistance, String> {
    let classes = pairs(machine, None);
    let mut choices = ByDistance::new();
    for Choice { distance, choices: word, is_measured, floor_ticks, milliseconds, trials } in kept {
        let distance = Distance::ALL.into_iter().find(|known| known.key() == distance && classes.contains_key(known));
        let is_trial = |(tried, ratio, _): &(u32, f64, bool)| tried & !CHOICES_MASK == 0 && *ratio > 0.0 && *ratio < MAX_RATIO;
        let is_possible = word & !CHOICES_MASK == 0
            && floor_ticks.iter().all(|ticks| is_time(*ticks))
            && (0.0..MAX_MILLISECONDS).contains(&milliseconds)
            && trials.len() <= MAX_TRIALS
            && trials.iter().all(is_trial);
        let Some(distance) = distance.filter(|_| is_possible) else { return Err(IMPOSSIBLE.to_owned()) };
        let trial = |(tried, ratio, taken)| Trial { tried: Choices::from_word(tried), ratio, taken };
        let basis = if is_measured { Basis::Measured } else { Basis::OneCore };
        let trials = trials.into_iter().map(trial).collect();
        // Without fields of values that this version does not know: what is kept here is advised to others.
        let (read, known) = (Choices::from_word(word), over(Choices::NONE, Choices::from_word(word)));
        let choices_read = if read.is_measured() { known.as_measured() } else { known };
        let chosen = Chosen { choices: choices_read, basis, floor_ticks, milliseconds, trials };
        if choices.insert(distance, chosen).is_some() {
            return Err("choices are there twice".to_owned());
        }
    }
    Ok(choices)
}

/// Keep it in `path`, whole or not at all; folders are made.
pub fn write(path: &Path, machine: &Machine, kept: &Kept) -> io::Result<()> {
    let Kept { matrix, choices } = kept;
    // A tenth of a tick is more than can be measured, and makes the file half as long.
    let tenths = |ticks: f64| (ticks * 10.0).round() / 10.0;
    let thousandths = |ratio: f64| (ratio * 1000.0).round() / 1000.0;
    let costs =
        matrix.costs().map(|((from, to), cost)| (from, to, tenths(cost.median_ticks), tenths(cost.least_ticks))).collect();
    let own_ticks = matrix.own_ticks.map(tenths);
    let choice = |(distance, chosen): (&Distance, &Chosen)| Choice {
        distance: distance.key().to_owned(),
        choices: chosen.choices.word(),
        is_measured: chosen.basis == Basis::Measured,
        floor_ticks: chosen.floor_ticks.map(tenths),
        milliseconds: tenths(chosen.milliseconds),
        trials: chosen.trials.iter().map(|trial| (trial.tried.word(), thousandths(trial.ratio), trial.taken)).collect(),
    };
    let (version, machine, choices) = (VERSION, machine.fingerprint(), choices.iter().map(choice).collect());
    let file = File { version, machine, tsc_hz: matrix.tsc_hz, own_ticks, costs, choices };
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    if !folder.exists() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // In /run/fipsee are the sockets, too, which everyone must be able to reach.
        let mode = if folder.starts_with("/run") { 0o755 } else { 0o700 };
        std::fs::set_permissions(folder, Permissions::from_mode(mode))?;
    }
    let temporary = folder.join(format!(".topology.{}.tmp", std::process::id()));
    let written = write_new(&temporary, &serde_json::to_vec(&file)?).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Left by a killed process of the same number.
    let _ = std::fs::remove_file(path);
    let mut file = std::fs::File::options().write(true).create_new(true).open(path)?;
    // Regardless of the umask: the daemon has a user of its own.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(bytes)
}
