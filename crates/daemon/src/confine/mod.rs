//! The privileges that the daemon gives up once started, so that an attacker who takes control of it gains little
//! (docs/decisions/0019-confinement.md).
//!
//! First [`files`](Confinement::files): on the only thread, before it makes others, because landlock applies to a thread and
//! those it makes. Then, when every thread has its resources, [`calls`](Confinement::calls), which apply to all of them.
//!
//! This is for a process that is only the daemon. One that only contains it (`fipsee demo`, a test) calls [`run`](crate::run),
//! and its process is not changed.

mod calls;
mod files;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use fipsee_serve::Needs;

use self::calls::Filters;
pub(crate) use self::calls::calls;
use self::files::Paths;
use crate::config::{Config, names};

/// Whether the daemon confines itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Confine {
    /// As far as the kernel can.
    #[default]
    BestEffort,
    /// Wholly, or the daemon does not start.
    Required,
    /// Not at all: for debuggers and profilers.
    Off,
}

/// The confinement of this process, and what it allows.
#[derive(Clone, Debug, Default)]
pub struct Confinement(Option<Arc<State>>);

#[derive(Debug)]
struct State {
    is_required: bool,
    needs: Needs,
    /// Once.
    files: OnceLock<Files>,
    calls_begun: AtomicBool,
}

/// The outcome for files.
#[derive(Debug)]
struct Files {
    paths: Paths,
    /// Is landlock in force?
    has_landlock: bool,
    /// Made before clients wait.
    filters: Option<Filters>,
}

impl Confinement {
    /// As configured, for services with these needs; nothing is given up yet.
    pub fn wanted(confine: Confine, needs: Needs) -> Self {
        let is_required = confine == Confine::Required;
        let state = || State { is_required, needs, files: OnceLock::new(), calls_begun: AtomicBool::new(false) };
        Self((confine != Confine::Off).then(|| Arc::new(state())))
    }

    /// Is anything given up? Not if the process is more than the daemon (`default`).
    pub(crate) const fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Give up new privileges, and all files but those that services need, that `config` names and that are at `sockets`. Once: a
    /// daemon that starts afresh after the process to take over from has died has done it.
    ///
    /// # Errors
    /// In words: a path of the configuration does not exist; landlock is required and not available.
    pub fn files<'a>(&self, config: &Config, sockets: impl Iterator<Item = &'a Path>) -> Result<(), String> {
        let Some(state) = self.0.as_ref().filter(|state| state.files.get().is_none()) else { return Ok(()) };
        let paths = Paths::of(config, &state.needs.files, sockets)?;
        names::use_files_only();
        let given_up = rustix::thread::set_no_new_privs(true);
        state.or_say(given_up.map_err(|error| format!("no new privileges: {error}")))?;
        let enforced = paths.restrict();
        let has_landlock = enforced.is_ok();
        state.or_say(enforced)?;
        let filters = Filters::new(&state.needs).map_err(|error| format!("no filter of system calls: {error}"));
        let filters = state.or_say(filters)?;
        let _ = state.files.set(Files { paths, has_landlock, filters });
        Ok(())
    }

    /// Give up every system call but those on the list, in all threads. After [`files`](Self::files).
    pub fn calls(&self) -> Result<(), String> {
        let Some(state) = self.0.as_ref().filter(|state| !state.calls_begun.swap(true, Ordering::Relaxed)) else { return Ok(()) };
        let Some(Files { has_landlock, filters, .. }) = state.files.get() else { return Ok(()) };
        // Missing filters have been reported.
        let outcome = filters.as_ref().map(Filters::restrict).transpose();
        let restricted = state.or_say(outcome.map_err(|error| format!("no filter of system calls: {error}")))?;
        tracing::info!(landlock = has_landlock, seccomp = restricted.flatten().is_some(), "confined");
        Ok(())
    }

    /// The message for a path that could not be used; if confinement may be the reason, also what to change.
    pub(crate) fn explain(&self, text: String, path: &Path, is_socket: bool) -> String {
        match self.0.as_ref().and_then(|state| state.files.get()) {
            Some(Files { paths, has_landlock: true, .. }) if !paths.cover(path, is_socket) => format!(
                "{text}; the daemon has confined itself (landlock) to {}: name the folder of {} in confine_paths, and restart it",
                paths.names(),
                path.display()
            ),
            _ => text,
        }
    }
}

impl State {
    /// A missing part is an error, or a line in the log.
    fn or_say<T>(&self, outcome: Result<T, String>) -> Result<Option<T>, String> {
        match outcome {
            Err(missing) if self.is_required => {
                Err(format!("the daemon cannot confine itself: {missing}; use another kernel, or confine = \"best-effort\""))
            }
            Err(missing) => {
                tracing::warn!(missing, "not wholly confined; an attacker who takes control of the daemon can do more");
                Ok(None)
            }
            Ok(had) => Ok(Some(had)),
        }
    }
}
