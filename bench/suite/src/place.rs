//! Which CPU does what: the client on the first, the server on the last.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The two CPUs of a measurement; the same one twice on a machine that has no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpus {
    pub(crate) client: usize,
    pub(crate) server: usize,
}

impl Cpus {
    /// The first and the last CPU this process may use: the daemon binds its workers from the last one down.
    pub(crate) fn choose() -> Self {
        let allowed = sched_getaffinity(None).ok();
        let is_allowed = |cpu: &usize| allowed.as_ref().is_some_and(|set| set.is_set(*cpu));
        let mut cpus = (0..CpuSet::MAX_CPU).filter(is_allowed);
        let client = cpus.next().unwrap_or(0);
        Self { client, server: cpus.next_back().unwrap_or(client) }
    }
}

/// Bind the calling thread.
pub(crate) fn bind_to(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(error) = sched_setaffinity(None, &set) {
        eprintln!("warning: cannot bind to CPU {cpu}: {error}");
    }
}

/// Run `work` on a thread bound to `cpu`. What it starts inherits that, programs too.
pub(crate) fn on<T: Send>(cpu: usize, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            bind_to(cpu);
            work()
        });
        bound.join().unwrap_or_else(|_| Err("a benchmark thread panicked; its message stands above".to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_started_on_a_cpu_stay_there() {
        let cpu = Cpus::choose().server;
        let list = on(cpu, || {
            let output =
                std::process::Command::new("cat").arg("/proc/self/status").output().map_err(|error| error.to_string())?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let line = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            line.map(|list| list.trim().to_owned()).ok_or(text)
        });
        assert_eq!(list, Ok(cpu.to_string()));
    }
}
