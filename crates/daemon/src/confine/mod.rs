//! What the daemon gives up once it has what it needs, so that whoever takes it over has little (docs/decisions/0019-confinement.md).
//!
//! First [`files`](Confinement::files): on the only thread there is, before it makes others, because landlock holds for a thread and
//! those it makes. Then, when every thread has what it needs, [`calls`](Confinement::calls), which hold for all of them.
//!
//! This is for a process that is the daemon. One that only contains it (`fipsee demo`, a test) calls [`run`](crate::run), and stays
//! as it is.

mod calls;
mod files;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use serde::Deserialize;

use self::calls::Filters;
use self::files::Paths;
use crate::config::Config;

/// Whether the daemon confines itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confine {
    /// As far as the kernel can.
    #[default]
    BestEffort,
    /// Wholly, or the daemon does not start.
    Required,
    /// Not at all: for debuggers and profilers.
    Off,
}

/// The confinement of this process, and what it lets through.
#[derive(Clone, Debug, Default)]
pub struct Confinement(Option<Arc<State>>);

#[derive(Debug)]
struct State {
    is_required: bool,
    files_begun: AtomicBool,
    calls_begun: AtomicBool,
    /// Does landlock hold?
    has_landlock: AtomicBool,
    paths: OnceLock<Paths>,
    /// Made before clients wait for it.
    filters: OnceLock<Filters>,
}

impl Confinement {
    /// As the configuration wants it; nothing is given up yet.
    #[must_use]
    pub fn wanted(confine: Confine) -> Self {
        let state = || State {
            is_required: confine == Confine::Required,
            files_begun: AtomicBool::new(false),
            calls_begun: AtomicBool::new(false),
            has_landlock: AtomicBool::new(false),
            paths: OnceLock::new(),
            filters: OnceLock::new(),
        };
        Self((confine != Confine::Off).then(|| Arc::new(state())))
    }

    /// None: the process is more than the daemon.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Is anything given up?
    #[must_use]
    pub const fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Give up new privileges, and all files but those that `config` names and that lie at `sockets`. Once: a daemon that begins
    /// anew, because the one that it was to take over from has died, has done it.
    ///
    /// # Errors
    /// In words: a path of the configuration that is not there; landlock is required and not to be had.
    pub fn files<'a>(&self, config: &Config, sockets: impl Iterator<Item = &'a Path>) -> Result<(), String> {
        let Some(state) = &self.0 else { return Ok(()) };
        if state.files_begun.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let paths = Paths::of(config, sockets)?;
        let given_up = rustix::thread::set_no_new_privs(true);
        state.or_say(given_up.map_err(|error| format!("no new privileges: {error}")))?;
        let is_enforced = paths.restrict().and_then(|is_enforced| match is_enforced {
            true => Ok(()),
            false => Err("this kernel has no landlock, or it is not among its security modules (lsm=)".to_owned()),
        });
        state.has_landlock.store(is_enforced.is_ok(), Ordering::Relaxed);
        let _ = state.paths.set(paths);
        state.or_say(is_enforced)?;
        let filters = Filters::new().map_err(|error| format!("no filter of system calls: {error}"));
        state.or_say(filters.map(|filters| drop(state.filters.set(filters))))
    }

    /// Give up every system call but those on the list, in all threads. After [`files`](Self::files).
    ///
    /// # Errors
    /// In words: it is required and not to be had.
    pub fn calls(&self) -> Result<(), String> {
        let Some(state) = &self.0 else { return Ok(()) };
        if state.calls_begun.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // Without filters, that has been said.
        let outcome = state.filters.get().map_or(Ok(()), Filters::restrict);
        let outcome = outcome.map_err(|error| format!("no filter of system calls: {error}"));
        let has_seccomp = outcome.is_ok() && state.filters.get().is_some();
        state.or_say(outcome)?;
        let landlock = state.has_landlock.load(Ordering::Relaxed);
        tracing::info!(landlock, seccomp = has_seccomp, "confined");
        Ok(())
    }

    /// The words for a path that could not be used, and if that may be our own doing, what to change.
    #[must_use]
    pub fn explain(&self, text: String, path: &Path, is_socket: bool) -> String {
        let Some(state) = self.0.as_ref().filter(|state| state.has_landlock.load(Ordering::Relaxed)) else { return text };
        match state.paths.get() {
            Some(paths) if !paths.cover(path, is_socket) => format!(
                "{text}; the daemon has confined itself (landlock) to {}: name the folder of {} in confine_paths, and restart it",
                paths.names(),
                path.display()
            ),
            _ => text,
        }
    }
}

impl State {
    /// What is missing is an error, or a line in the log.
    fn or_say(&self, outcome: Result<(), String>) -> Result<(), String> {
        match outcome {
            Err(missing) if self.is_required => {
                Err(format!("the daemon cannot confine itself: {missing}; use another kernel, or confine = \"best-effort\""))
            }
            Err(missing) => {
                tracing::warn!(missing, "not wholly confined; whoever takes the daemon over can do more");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}
