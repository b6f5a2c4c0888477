//! Making a kernel ring: with what the kernel has, and restricted to what jobs need.

use std::io;
use std::sync::OnceLock;

use io_uring::register::Restriction;
use io_uring::{IoUring, Probe, squeue};
use rustix::io::Errno;

/// What jobs need of io_uring.
#[derive(Debug)]
pub struct Needs {
    /// What needs it, in the plural: it begins error messages.
    pub users: &'static str,
    /// The operations, by name and number; the ring carries out no others. An engine needs read, for its doorbell.
    pub operations: &'static [(&'static str, u8)],
    /// Set when the kernel was asked and has all of it.
    pub is_there: OnceLock<()>,
}

/// Can this kernel make such a ring, and does it have the operations? If not, the error says what to do.
pub(super) fn ask_kernel(needs: &Needs) -> Result<(), String> {
    drop(build(needs, 1)?);
    // A restricted ring refuses to be probed.
    let ring = IoUring::new(1).map_err(|error| explain_setup(needs, &error))?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|error| explain_setup(needs, &error))?;
    match needs.operations.iter().find(|(_, code)| !probe.is_supported(*code)) {
        Some((name, _)) => Err(format!("the kernel's io_uring has no {name} operation; {} need Linux 5.6 or newer", needs.users)),
        None => Ok(()),
    }
}

/// A ring of `entries` for the thread that calls this, restricted to the operations if the kernel can do that.
pub(super) fn build(needs: &Needs, entries: u32) -> Result<IoUring, String> {
    let is_unknown = |error: &io::Error| Errno::from_io_error(error) == Some(Errno::INVAL);
    let mut builder = IoUring::builder();
    builder.setup_r_disabled();
    let mut best = builder.clone();
    // Completions are posted when this thread next enters the kernel, not by interrupting it (5.19); one submitter (6.0).
    best.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all().setup_single_issuer();
    // An older kernel does not know one of the flags. None of them is needed.
    let ring = best.build(entries).or_else(|error| if is_unknown(&error) { builder.build(entries) } else { Err(error) });
    let ring = match ring {
        // Before Linux 5.10 there are no restrictions.
        Err(error) if is_unknown(&error) => return IoUring::new(entries).map_err(|error| explain_setup(needs, &error)),
        ring => ring.map_err(|error| explain_setup(needs, &error))?,
    };
    restrict(needs, &ring).map_err(|error| explain_setup(needs, &error))?;
    Ok(ring)
}

/// Allow only the operations needed, and no more registrations, then enable the ring: io_uring bypasses the filter of system
/// calls.
fn restrict(needs: &Needs, ring: &IoUring) -> io::Result<()> {
    let mut restrictions: Vec<Restriction> = needs.operations.iter().map(|(_, code)| Restriction::sqe_op(*code)).collect();
    restrictions.push(Restriction::sqe_flags_allowed(squeue::Flags::ASYNC.bits()));
    ring.submitter().register_restrictions(&mut restrictions)?;
    ring.submitter().register_enable_rings()
}

fn explain_setup(needs: &Needs, error: &io::Error) -> String {
    let advice = match Errno::from_io_error(error) {
        Some(Errno::NOSYS) => "the kernel has none; use Linux 5.6 or newer with CONFIG_IO_URING",
        Some(Errno::PERM | Errno::ACCESS) => {
            "it is forbidden; set the sysctl kernel.io_uring_disabled=0, or allow io_uring_setup in the container's seccomp profile"
        }
        Some(Errno::NOMEM) => {
            "raise the limit of locked memory (`ulimit -l`, LimitMEMLOCK=), which kernels before 5.12 count it against"
        }
        Some(Errno::MFILE | Errno::NFILE) => "raise the limit of open files (`ulimit -n`, LimitNOFILE=)",
        _ => "see the kernel's log",
    };
    format!("{} need io_uring, which cannot be set up ({error}): {advice}", needs.users)
}

#[cfg(test)]
mod tests {
    use io_uring::opcode;

    use super::*;

    static NEEDS: Needs = Needs { users: "tests", operations: &[("nop", opcode::Nop::CODE)], is_there: OnceLock::new() };

    #[test]
    fn setup_errors_say_what_to_do() {
        let text = |errno: Errno| explain_setup(&NEEDS, &errno.into());
        assert!(text(Errno::PERM).contains("kernel.io_uring_disabled=0"), "{}", text(Errno::PERM));
        assert!(text(Errno::NOSYS).contains("CONFIG_IO_URING"), "{}", text(Errno::NOSYS));
        assert!(text(Errno::MFILE).contains("LimitNOFILE="), "{}", text(Errno::MFILE));
        assert!(text(Errno::NOMEM).contains("LimitMEMLOCK="), "{}", text(Errno::NOMEM));
    }

    #[test]
    fn ring_does_what_jobs_ask_for_and_nothing_else() {
        let mut ring = build(&NEEDS, 8).expect("this machine has io_uring");
        let entries = [opcode::Nop::new().build(), opcode::Close::new(io_uring::types::Fd(-1)).build()];
        for (number, entry) in entries.into_iter().enumerate() {
            // SAFETY: neither operation names memory.
            unsafe { ring.submission().push(&entry.user_data(number as u64)) }.expect("there is room");
        }
        ring.submit_and_wait(2).expect("submitted");
        let mut results: Vec<_> = ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        results.sort_unstable();
        assert_eq!(results, [(0, 0), (1, -Errno::ACCESS.raw_os_error())], "unrestricted it would say EBADF");
        let refused = ring.submitter().register_probe(&mut Probe::new()).expect_err("nothing is registered any more");
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::ACCESS));
    }
}
