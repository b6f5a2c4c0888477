//! Which CPUs a thread may use, and binding it to one.

use std::io;
use std::path::Path;

use rustix::thread::CpuSet;

use crate::cpu_list;

/// CPUs from this number on cannot be bound to: a mask of the system call as rustix has it ends here.
pub const FIRST_UNBINDABLE: usize = CpuSet::MAX_CPU;

/// The CPUs this thread may use, ascending: its affinity mask, which the kernel keeps within its cpuset. `None` if that cannot
/// be found out.
///
/// From `/proc`, because the system call with a mask of 1024 CPUs fails on machines that may have more.
pub fn allowed() -> Option<Vec<usize>> {
    allowed_below(Path::new("/"))
}

/// As [`allowed`], with `/proc` below `root`.
pub(crate) fn allowed_below(root: &Path) -> Option<Vec<usize>> {
    // A recorded machine has no threads.
    let status =
        ["proc/thread-self/status", "proc/self/status"].iter().find_map(|file| std::fs::read_to_string(root.join(file)).ok())?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    cpu_list::parse(list).filter(|cpus| !cpus.is_empty())
}

/// Bind this thread to `cpu`.
///
/// # Errors
/// The CPU does not exist, is offline, or not one this process may use.
pub fn bind(cpu: usize) -> io::Result<()> {
    if cpu >= FIRST_UNBINDABLE {
        let text = format!("CPUs from {FIRST_UNBINDABLE} on cannot be bound to");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// The CPUs that this thread could use if it were bound to none: those of its cpuset that are online. For a moment it is bound to none.
/// `None` if that cannot be found out.
pub fn reachable() -> Option<Vec<usize>> {
    let own = rustix::thread::sched_getaffinity(None).ok()?;
    let mut all = CpuSet::new();
    (0..FIRST_UNBINDABLE).for_each(|cpu| all.set(cpu));
    rustix::thread::sched_setaffinity(None, &all).ok()?;
    let reachable = allowed();
    // It fails when none of them is left: then the thread stays where it may be.
    let _ = rustix::thread::sched_setaffinity(None, &own);
    reachable
}

/// Have this thread run on these CPUs, of which at least one is possible.
///
/// # Errors
/// None of them can be used.
pub fn bind_to_any(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().copied().filter(|cpu| *cpu < FIRST_UNBINDABLE).for_each(|cpu| set.set(cpu));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// Have this thread, and those that it starts from now on, run on all that it may use but `cpus`. `false`: nothing would be left,
/// and nothing was changed.
pub fn keep_off(cpus: &[usize]) -> io::Result<bool> {
    let allowed = allowed().ok_or_else(|| io::Error::other("/proc does not say which CPUs may be used"))?;
    if !allowed.iter().any(|cpu| cpus.contains(cpu)) {
        return Ok(true);
    }
    let mut set = CpuSet::new();
    allowed.into_iter().filter(|cpu| *cpu < FIRST_UNBINDABLE && !cpus.contains(cpu)).for_each(|cpu| set.set(cpu));
    if set.count() == 0 {
        return Ok(false);
    }
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_used_is_what_the_system_call_says() {
        let Ok(set) = rustix::thread::sched_getaffinity(None) else { return };
        let expected: Vec<usize> = (0..FIRST_UNBINDABLE).filter(|cpu| set.is_set(*cpu)).collect();
        assert_eq!(allowed(), Some(expected));
    }

    #[test]
    fn a_thread_stays_where_it_is_bound() {
        let cpu = *allowed().expect("this thread runs somewhere").last().expect("somewhere");
        std::thread::spawn(move || {
            bind(cpu).expect("one of ours");
            assert_eq!(allowed(), Some(vec![cpu]));
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_thread_and_those_it_starts_keep_off_forbidden_cpus() {
        let all = allowed().expect("this thread runs somewhere");
        std::thread::spawn(move || {
            assert!(!keep_off(&all).expect("nothing to do"), "a thread must run somewhere");
            assert_eq!(allowed().as_ref(), Some(&all));
            let Some((first, rest)) = all.split_first().filter(|(_, rest)| !rest.is_empty()) else { return };
            assert!(keep_off(&[*first]).expect("there are others"));
            assert_eq!(std::thread::spawn(allowed).join().expect("no panic").as_deref(), Some(rest));
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn a_bound_thread_finds_the_cpus_beyond_its_own() {
        let all = allowed().expect("this thread runs somewhere");
        std::thread::spawn(move || {
            bind(all[0]).expect("one of ours");
            let reachable = reachable().expect("a machine of this size");
            assert!(all.iter().all(|cpu| reachable.contains(cpu)), "{reachable:?}");
            assert_eq!(allowed(), Some(vec![all[0]]), "it is bound as before");
            bind_to_any(&all).expect("all of ours");
            assert_eq!(allowed(), Some(all));
        })
        .join()
        .expect("no panic");
    }

    #[test]
    fn numbers_beyond_the_mask_are_errors() {
        for cpu in [FIRST_UNBINDABLE, usize::MAX] {
            assert!(bind(cpu).expect_err("no such CPU").to_string().contains("1024"));
        }
        assert!(bind(FIRST_UNBINDABLE - 1).is_err());
    }
}
