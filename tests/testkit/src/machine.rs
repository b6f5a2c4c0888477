//! Which test has the machine: tests of one program run beside each other, and some need it to themselves.

use std::collections::HashMap;
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Guards by the thread that took them: a test that has one gets more without waiting.
#[derive(Default)]
struct Machine {
    shared: HashMap<ThreadId, usize>,
    alone: Option<ThreadId>,
}

static MACHINE: LazyLock<Mutex<Machine>> = LazyLock::new(Mutex::default);
static CHANGED: Condvar = Condvar::new();

fn lock() -> MutexGuard<'static, Machine> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held by each daemon.
#[derive(Debug)]
pub struct Share(ThreadId);

/// Use the machine beside other tests, once no other has it alone.
pub fn share() -> Share {
    let us = std::thread::current().id();
    let mut machine = lock();
    while machine.alone.is_some_and(|owner| owner != us) && !machine.shared.contains_key(&us) {
        machine = CHANGED.wait(machine).unwrap_or_else(PoisonError::into_inner);
    }
    *machine.shared.entry(us).or_default() += 1;
    Share(us)
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut machine = lock();
        if let Some(count) = machine.shared.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                machine.shared.remove(&self.0);
            }
        }
        CHANGED.notify_all();
    }
}

/// No daemon of another test of this program runs as long as this exists.
#[derive(Debug)]
pub struct Alone(());

/// For a test that measures processor time, or needs it: wait until no other test of this program has a daemon, and keep others
/// from starting one. The test starts its own on this thread, and has none yet.
pub fn alone() -> Alone {
    let us = std::thread::current().id();
    let mut machine = lock();
    while machine.alone.is_some() {
        machine = CHANGED.wait(machine).unwrap_or_else(PoisonError::into_inner);
    }
    machine.alone = Some(us);
    while !machine.shared.is_empty() {
        machine = CHANGED.wait(machine).unwrap_or_else(PoisonError::into_inner);
    }
    Alone(())
}

impl Drop for Alone {
    fn drop(&mut self) {
        lock().alone = None;
        CHANGED.notify_all();
    }
}
