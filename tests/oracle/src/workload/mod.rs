//! The random workload: requests that overlap, and the model that they are compared with.

mod arena;
mod pick;
mod run;

use std::fmt;

use fipsee_testkit::{Daemon, Random};

use crate::daemon;
use crate::front::{Action, Front};
use crate::model::Kind;
use crate::storage::Storage;

pub use arena::Arena;
pub use run::{Runner, read_all};

pub struct Site<'a> {
    pub front: &'a mut dyn Front,
    pub daemon: &'a mut Daemon,
    /// The file below the disk, if it can be reached.
    pub storage: Option<&'a Storage>,
    /// Compare on when requests fail: a failed flush is found sooner than what is lost.
    pub forgives: bool,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub requests: u64,
    /// The mean size of what writes, at most.
    pub mean_bytes: u64,
    pub seed: u64,
    pub depth: u64,
    /// Cut the disk and grow it again at times?
    pub resize: bool,
    /// Stay in so many pages.
    pub narrow_pages: Option<u64>,
    pub kills: u64,
    /// A kill comes after a random number of completions below this.
    pub completions_per_kill: u64,
}

impl Settings {
    /// The mean size with which so many requests write so many bytes.
    pub fn mean_of(requests: u64, write_bytes: u64) -> u64 {
        write_bytes / (requests * WRITING_SHARE / 100).max(1)
    }

    /// Small requests into few pages of a slow disk, so that parts of the same page are written before a kill and after it.
    pub fn for_late_writes(kills: u64, seed: u64) -> Self {
        Self {
            requests: 0,
            // Of each a sector or two: what overlaps may be either, and hides what is lost.
            mean_bytes: 512,
            seed,
            depth: 12,
            resize: false,
            narrow_pages: Some(12),
            kills,
            completions_per_kill: 40,
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            requests: 1_000_000,
            mean_bytes: Self::mean_of(1_000_000, 200 << 30),
            seed: 1,
            depth: 64,
            resize: true,
            narrow_pages: None,
            kills: 0,
            completions_per_kill: 300,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub requests: u64,
    /// Requests that failed, where that is forgiven.
    pub failed: u64,
    /// Discards that the device below found that it cannot do.
    pub unsupported: u64,
    /// Of those that succeeded, reads.
    pub reads: u64,
    /// Of those, flushes and requests with FUA.
    pub durable: u64,
    pub written_bytes: u64,
    /// Bytes read and compared.
    pub read_bytes: u64,
    /// Changes that overlapped another in flight when they began.
    pub overlapping: u64,
    /// Times the disk was cut and grew again.
    pub resized: u64,
    /// Times the page cache was dropped or read from outside.
    pub disturbed: u64,
    pub kills: u64,
    /// Requests in flight at those times.
    pub in_flight_at_kills: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        write!(
            f,
            "{} requests ({} reads, {} durable, {} overlapping changes, {} failed), {} MiB written, {} MiB compared, {} resizes, {} \
             disturbances",
            self.requests,
            self.reads,
            self.durable,
            self.overlapping,
            self.failed,
            mib(self.written_bytes),
            mib(self.read_bytes),
            self.resized,
            self.disturbed
        )?;
        if self.unsupported > 0 {
            write!(f, ", {} discards that the device could not do", self.unsupported)?;
        }
        if self.kills > 0 {
            write!(f, ", {} kills with {} in flight", self.kills, self.in_flight_at_kills)?;
        }
        Ok(())
    }
}

pub const fn kind_of(action: Action) -> Kind {
    match action {
        Action::Read => Kind::Read,
        Action::Write { fua: false } => Kind::Write,
        Action::Write { fua: true } => Kind::WriteDurably,
        Action::Flush => Kind::Flush,
        Action::Discard => Kind::Discard,
        Action::WriteZeroes { unmap, fua } => Kind::Zero { unmap, fua },
    }
}

/// Run it, and compare all of the disk at the end.
pub fn run(site: &mut Site<'_>, settings: &Settings) -> Result<Counts, String> {
    let mut work = Work::new(site, settings);
    let outcome = work.run();
    let counts = work.runner.counts;
    outcome.map(|()| counts).map_err(|error| format!("seed {}, after {} requests: {error}", settings.seed, counts.requests))
}

/// The place at which the disk is cut, and what is to be done next about it.
enum Cut {
    /// In so many bursts.
    In(u64),
    /// When nothing is in flight beyond this sector.
    At(u64),
    /// It was; it grows again in so many bursts.
    Regrow(u64, u64),
}

struct Work<'a> {
    runner: Runner<'a>,
    daemon: &'a mut Daemon,
    storage: Option<&'a Storage>,
    settings: Settings,
    random: Random,
    picker: pick::Picker,
    cut: Option<Cut>,
    submitted: u64,
    next_kill: u64,
}

const PAGE_SECTORS: u64 = 8;
/// Bursts between two cuts, at most.
const CUT_EVERY: u64 = 800;
/// Bursts while it is cut, at most.
const CUT_FOR: u64 = 100;
/// Bursts between two disturbances, about.
const DISTURB_EVERY: u64 = 100;
/// Requests of the same depth.
const DEPTH_FOR: u64 = 400;
/// Of a hundred requests, those that write, about.
const WRITING_SHARE: u64 = 55;

impl<'a> Work<'a> {
    fn new(site: &'a mut Site<'_>, settings: &Settings) -> Self {
        let limits = site.front.limits();
        let mut random = Random(settings.seed);
        let has_file = site.storage.is_some_and(|storage| !storage.kind().is_device());
        let cut = (settings.resize && limits.can_resize && has_file).then(|| Cut::In(random.below(CUT_EVERY)));
        let next_kill = if settings.kills == 0 { u64::MAX } else { random.below(settings.completions_per_kill) };
        let picker = pick::Picker::new(&limits, settings.mean_bytes, settings.narrow_pages);
        Self {
            runner: Runner::new(site.front, site.forgives),
            daemon: site.daemon,
            storage: site.storage,
            settings: settings.clone(),
            random,
            picker,
            cut,
            submitted: 0,
            next_kill,
        }
    }

    fn run(&mut self) -> Result<(), String> {
        let mut depth = self.settings.depth;
        loop {
            let kills_left = self.settings.kills.saturating_sub(self.runner.counts.kills);
            // After the last kill as many as before it.
            if self.runner.counts.requests < self.next_kill && self.settings.kills > 0 && kills_left == 0 {
                self.burst(depth)?;
                self.runner.step()?;
                continue;
            }
            if self.submitted >= self.settings.requests && kills_left == 0 {
                break;
            }
            if self.submitted % DEPTH_FOR < 8 {
                depth = (1 << self.random.below(7)).min(self.settings.depth);
            }
            self.burst(depth)?;
            self.runner.step()?;
            self.runner.verdict()?;
            self.resize()?;
            self.disturb()?;
            self.kill()?;
        }
        self.runner.drain()?;
        if let Some(Cut::Regrow(end, _)) = self.cut {
            self.regrow(end)?;
        }
        self.runner.submit_and_wait(Action::Flush)?;
        read_all(&mut self.runner)?;
        if let Some(storage) = self.storage {
            storage.drop_cache()?;
            read_all(&mut self.runner)?;
        }
        self.runner.verdict()
    }

    /// Begin some requests, together.
    fn burst(&mut self, depth: u64) -> Result<(), String> {
        let room = depth.saturating_sub(self.runner.in_flight() as u64);
        for _ in 0..room.min(1 + self.random.below(depth)) {
            let (action, sector, count) = self.picker.pick(&mut self.random);
            if !self.runner.begin(&mut self.random, action, sector, count)? {
                break;
            }
            self.submitted += 1;
        }
        self.runner.publish();
        Ok(())
    }

    fn resize(&mut self) -> Result<(), String> {
        let all = self.runner.model.sector_count();
        match &mut self.cut {
            Some(Cut::In(0)) => {
                let block = self.runner.limits.block_sectors;
                let end = (all / 2 + self.random.below(all / 2)) / block * block;
                self.picker.end = end;
                self.cut = Some(Cut::At(end));
            }
            Some(Cut::At(end)) if !self.runner.reaches(*end) => {
                let wanted = *end;
                let end = self.shrink(wanted)?;
                self.cut = Some(Cut::Regrow(end, self.random.below(CUT_FOR)));
            }
            Some(Cut::Regrow(end, 0)) => {
                let end = *end;
                self.runner.drain()?;
                self.regrow(end)?;
            }
            Some(Cut::In(left) | Cut::Regrow(_, left)) => *left -= 1,
            Some(Cut::At(_)) | None => {}
        }
        Ok(())
    }

    /// In the midst of a page, or where direct I/O needs whole pages, at its end. Nothing beyond `end` is in flight.
    fn shrink(&mut self, end: u64) -> Result<u64, String> {
        let whole = end.next_multiple_of(PAGE_SECTORS);
        let shrunk = match daemon::resize(self.daemon, end) {
            Err(refusal) if refusal.contains("a multiple of") => daemon::resize(self.daemon, whole).map(|()| whole),
            outcome => outcome.map(|()| end),
        };
        shrunk.map_err(|error| format!("the disk cannot be made smaller: {error}"))
    }

    fn regrow(&mut self, end: u64) -> Result<(), String> {
        let all = self.runner.model.sector_count();
        daemon::resize(self.daemon, all).map_err(|error| format!("the disk cannot be made larger: {error}"))?;
        self.runner.regrown(end)?;
        self.picker.end = all;
        self.cut = Some(Cut::In(self.random.below(CUT_EVERY)));
        Ok(())
    }

    /// What others do with the file: they have its cache dropped, or read it.
    fn disturb(&mut self) -> Result<(), String> {
        let Some(storage) = self.storage.filter(|_| self.random.below(DISTURB_EVERY) == 0) else { return Ok(()) };
        if self.random.percent(50) {
            self.runner.noted(Kind::CacheDropped);
            storage.drop_cache()?;
        } else {
            storage.read_outside(self.random.below(self.picker.end) * 512, 1 << 20)?;
        }
        self.runner.counts.disturbed += 1;
        Ok(())
    }

    fn kill(&mut self) -> Result<(), String> {
        if self.runner.counts.requests >= self.next_kill && self.runner.counts.kills < self.settings.kills {
            self.next_kill = self.runner.counts.requests + 1 + self.random.below(self.settings.completions_per_kill);
            self.runner.counts.kills += 1;
            self.runner.counts.in_flight_at_kills += self.runner.in_flight() as u64;
            self.runner.noted(Kind::Killed);
            self.daemon.kill_and_begin()?;
            self.runner.reconnect()?;
        }
        Ok(())
    }
}
