//! Second processes: this program again, under a hidden subcommand, tied to the lifetime of the first.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};
use rustix::thread::CpuSet;

use crate::error::Error;

/// This same program, even if its file was replaced meanwhile; ps shows it by its name.
pub(crate) fn this_program() -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("fipsee");
    command
}

/// The same with `subcommand` and the number of this process, which [`die_with_parent`] wants.
pub(crate) fn again(subcommand: &str) -> Command {
    let mut command = this_program();
    command.arg(subcommand).arg("--parent").arg(rustix::process::getpid().to_string()).stdout(Stdio::null());
    command
}

/// In the second process: get `signal` when the first, `parent`, dies, however it dies.
pub(crate) fn die_with_parent(parent: i32, signal: Signal) -> Result<(), Error> {
    let tied = rustix::process::set_parent_process_death_signal(Some(signal));
    tied.map_err(|error| Error::io("ask for a signal at the parent's death", &error.into()))?;
    // Its executable, /proc/self/exe, gives no useful name.
    let _ = rustix::thread::set_name(c"fipsee");
    // The parent may have died before that.
    if rustix::process::getppid() != Pid::from_raw(parent) {
        return Err("the process that started this one is gone; this subcommand is not for people".into());
    }
    Ok(())
}

/// The CPUs this process may use, lowest first.
pub(crate) fn allowed_cpus() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None);
    set.map_or_else(|_| Vec::new(), |set| (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Bind this thread to one of the allowed CPUs.
pub(crate) fn bind_to_cpu(cpu: usize) -> Result<(), Error> {
    bind_to_cpus(&[cpu])
}

/// Bind this thread, and those it starts, to some of the allowed CPUs.
pub(crate) fn bind_to_cpus(cpus: &[usize]) -> Result<(), Error> {
    let mut set = CpuSet::new();
    for cpu in cpus {
        if *cpu >= CpuSet::MAX_CPU {
            return Err(Error::from(format!("there is no CPU {cpu}; name one of {:?}", allowed_cpus())));
        }
        set.set(*cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).map_err(|error| Error::io(format_args!("run on CPUs {cpus:?}"), &error.into()))
}
