//! A daemon that is confined can do its work and nothing else: what is forbidden is tried, what is allowed is done.

use fipsee_testkit::skip;

/// Does this kernel have landlock? If not, the check is skipped.
fn has_landlock(what: &str) -> bool {
    const VERSION: u32 = 1;
    // SAFETY: this asks for the version and names no memory.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0, 0, VERSION) };
    if version <= 0 {
        skip(what, "this kernel has no landlock");
    }
    version > 0
}

pub(crate) mod attempts;
pub(crate) mod daemon;
mod rings;
