//! Where clients and servers run.

use fipsee_measure::cpus::Cpus;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Bind the calling thread.
pub(crate) fn bind_to(cpu: usize) {
    bind_to_some(&[cpu]);
}

fn bind_to_some(cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    if let Err(error) = sched_setaffinity(None, &set) {
        eprintln!("warning: cannot bind to CPU {cpus:?}: {error}");
    }
}

/// Run `work` on a thread bound to `cpu`. What it starts inherits that, programs too.
pub(crate) fn on<T: Send>(cpu: usize, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    on_some(&[cpu], work)
}

/// Likewise, on a thread that has the CPUs of client and server, for a program that is both.
pub(crate) fn on_both<T: Send>(cpus: Cpus, work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    on_some(&[cpus.client, cpus.server], work)
}

fn on_some<T: Send>(cpus: &[usize], work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let bound = scope.spawn(|| {
            bind_to_some(cpus);
            work()
        });
        bound.join().unwrap_or_else(|_| Err("a benchmark thread panicked; its message is above".to_owned()))
    })
}

/// Where a server runs that does not choose for itself. Which is best differs: a server that sleeps between requests wakes
/// faster on its client's CPU, one that is always busy needs its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    ServerCpu,
    ClientCpu,
    /// Wherever the scheduler puts it.
    Free,
}

impl Placement {
    pub(crate) const ALL: [Self; 3] = [Self::ServerCpu, Self::ClientCpu, Self::Free];

    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::ServerCpu => "a CPU of its own",
            Self::ClientCpu => "its client's CPU",
            Self::Free => "any CPU",
        }
    }

    fn set(self, cpus: Cpus) -> Result<CpuSet, String> {
        let mut set = CpuSet::new();
        match self {
            Self::ServerCpu => set.set(cpus.server),
            Self::ClientCpu => set.set(cpus.client),
            Self::Free => return sched_getaffinity(None).map_err(|error| format!("cannot ask for the CPUs: {error}")),
        }
        Ok(set)
    }

    /// Move the process `pid` there, all its threads.
    pub(crate) fn apply(self, pid: u32, cpus: Cpus) -> Result<(), String> {
        let set = self.set(cpus)?;
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| format!("process {pid} is gone: {error}"))?;
        for task in tasks.flatten() {
            let number = task.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            // A thread that has ended meanwhile needs no place.
            let _ = number.map(|thread| sched_setaffinity(Some(thread), &set));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_programs_are_moved() {
        let cpus = Cpus::choose();
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("a child");
        let pid = Pid::from_child(&child);
        for placement in Placement::ALL {
            placement.apply(child.id(), cpus).expect("it is moved");
            let set = sched_getaffinity(Some(pid)).expect("its CPUs");
            assert_eq!(set, placement.set(cpus).expect("the CPUs wanted"), "{placement:?}");
        }
        child.kill().and_then(|()| child.wait()).expect("its end");
        assert!(Placement::Free.apply(child.id(), cpus).is_err());
    }

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
