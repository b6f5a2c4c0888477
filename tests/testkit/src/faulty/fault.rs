//! What an injected fault is, how long it goes on, and what all kinds of faulty peers share.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The fewest requests of a faulty peer while another of its threads rewrites them.
const REQUESTS: u64 = 2000;
/// The most, until one race was won and another lost.
const MOST_REQUESTS: u64 = 1_000_000;

/// How long a fault goes on.
#[derive(Debug)]
pub struct Until<'a> {
    stop: &'a AtomicBool,
    left: u64,
    injected: u64,
}

impl<'a> Until<'a> {
    /// At most so many times, or until `stop` is set.
    pub const fn times(most: u64, stop: &'a AtomicBool) -> Self {
        Self { stop, left: most, injected: 0 }
    }

    /// Once more?
    pub fn more(&mut self) -> bool {
        if self.left == 0 || self.stop.load(Ordering::Relaxed) {
            return false;
        }
        self.left -= 1;
        self.injected += 1;
        true
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// How often the fault was injected.
    pub const fn injected(&self) -> u64 {
        self.injected
    }
}

/// The socket by which a faulty peer connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As a client.
    Local,
    /// As a hypervisor, or its guest: a vhost-user socket.
    Guest,
}

/// A fault to inject.
#[derive(Debug)]
pub struct InjectedFault {
    /// Its name.
    pub name: &'static str,
    /// The socket on which it is injected.
    pub way: Way,
    /// What the faulty peer gets, in a few words.
    pub gets: &'static str,
    /// How often a test injects it.
    pub times: u64,
    pub(crate) inject: Inject,
    /// The correct peer that does as much; a baseline has none.
    pub baseline: Option<&'static InjectedFault>,
}

impl InjectedFault {
    /// Inject it into the daemon at `socket`, on `disk`; a vhost-user socket has only one.
    pub fn inject(&self, socket: &Path, disk: &str, until: &mut Until<'_>) -> io::Result<()> {
        (self.inject)(socket, disk, until)
    }
}

/// The function that injects a fault.
pub(crate) type Inject = fn(&Path, &str, &mut Until<'_>) -> io::Result<()>;

/// Set when dropped, so that a thread beside one that panics ends, too.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Do something again and again in a thread of its own while `work` goes on in this one.
pub(crate) fn beside<T>(meanwhile: impl Fn() + Sync, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                meanwhile();
            }
        });
        let _over = SetAtEnd(&over);
        work()
    })
}

/// Rewrite memory in a thread of its own, as often as is wanted, while `request` goes on in this one, and until that has seen
/// what it wants to see.
pub(crate) fn while_rewriting<M: Sync>(
    memory: &M,
    until: &mut Until<'_>,
    mut rewrite: impl FnMut(&M) + Send,
    mut request: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    let (over, enough) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let goes_on = || !over.load(Ordering::Relaxed);
            while goes_on() && (until.more() || !enough.load(Ordering::Relaxed) && !until.is_stopped()) {
                rewrite(memory);
            }
            over.store(true, Ordering::Relaxed);
        });
        let _over = SetAtEnd(&over);
        let (mut outcome, mut asked) = (Ok(true), 0);
        while let Ok(is_seen) = outcome
            && !over.load(Ordering::Relaxed)
        {
            enough.store(asked >= MOST_REQUESTS || is_seen && asked >= REQUESTS, Ordering::Relaxed);
            outcome = request();
            asked += 1;
        }
        outcome.map(drop)
    })
}
