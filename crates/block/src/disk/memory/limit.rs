//! How large the memory disks of a process may be together: as large as the memory there is.
//!
//! Their pages take memory when they are written, so a disk that is too large can be made and fails much later: the kernel then ends
//! processes. What other programs use at the moment does not count, because that changes. Nor do huge pages, which have a pool of
//! their own, and swap.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of all shares.
static TAKEN: Mutex<u64> = Mutex::new(0);

fn taken() -> MutexGuard<'static, u64> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a disk has of the memory; given back at its end. The default one is not counted.
#[derive(Debug, Default)]
pub(super) struct Share {
    bytes: u64,
    is_counted: bool,
}

impl Share {
    /// # Errors
    /// There is not that much memory; with the numbers.
    pub(super) fn of(bytes: u64) -> Result<Self, String> {
        let mut taken = taken();
        match Limit::of_this_process() {
            Some(limit) if taken.saturating_add(bytes) > limit.bytes => Err(limit.refusal(bytes, *taken)),
            _ => {
                *taken = taken.saturating_add(bytes);
                Ok(Self { bytes, is_counted: true })
            }
        }
    }

    /// Of memory that is in use.
    pub(super) fn unchecked(bytes: u64) -> Self {
        let mut taken = taken();
        *taken = taken.saturating_add(bytes);
        Self { bytes, is_counted: true }
    }

    pub(super) const fn is_counted(&self) -> bool {
        self.is_counted
    }

    pub(super) fn add(&mut self, mut more: Self) {
        self.bytes += std::mem::take(&mut more.bytes);
    }

    /// Keep at most this much.
    pub(super) fn shrink(&mut self, bytes: u64) {
        let kept = self.bytes.min(bytes);
        *taken() -= self.bytes - kept;
        self.bytes = kept;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// Memory that this process can have: that of the machine or of its control group. `None`: the kernel does not say.
pub fn usable_memory_bytes() -> Option<u64> {
    Limit::of_this_process().map(|limit| limit.bytes)
}

#[derive(Debug, PartialEq, Eq)]
struct Limit {
    bytes: u64,
    /// What sets it.
    by: &'static str,
}

impl Limit {
    fn of_this_process() -> Option<Self> {
        Self::of(&|path| std::fs::read_to_string(path).ok())
    }

    /// The least of those of the machine and of control groups, of either version.
    fn of(read: &dyn Fn(&Path) -> Option<String>) -> Option<Self> {
        let machine = read(Path::new("/proc/meminfo")).and_then(|text| memory_of(&text));
        let machine = machine.map(|bytes| Self { bytes, by: "this machine has" });
        let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
        let of_groups = groups.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let (root, file) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                _ => return None,
            };
            // In a container the path may be that of the host; the root is the container's own then.
            let relative = Path::new(path.trim_start_matches('/'));
            let limits =
                relative.ancestors().filter_map(|group| read(&Path::new(root).join(group).join(file))?.trim().parse().ok());
            Some(Self { bytes: limits.min()?, by: "the daemon's control group may use (memory.max)" })
        });
        machine.into_iter().chain(of_groups).min_by_key(|limit| limit.bytes)
    }

    fn refusal(&self, bytes: u64, taken: u64) -> String {
        let Self { bytes: limit, by } = self;
        let beside = if taken > 0 { format!(", beside {} of other memory disks,", in_units(taken, true)) } else { String::new() };
        format!(
            "{}{beside} is more than the {} of memory that {by}; make it smaller, or add overcommit if it will never be full",
            in_units(bytes, true),
            in_units(*limit, false)
        )
    }
}

/// With one digit after the point. What is asked for is rounded up and what there is down, so that the first is the larger one in
/// words, too.
fn in_units(bytes: u64, up: bool) -> String {
    const UNITS: [(&str, u32); 3] = [("TiB", 40), ("GiB", 30), ("MiB", 20)];
    let (unit, shift) = UNITS.into_iter().find(|(_, shift)| bytes >> shift > 0).unwrap_or(UNITS[2]);
    let (tenths, one) = (u128::from(bytes) * 10, 1_u128 << shift);
    let tenths = if up { tenths.div_ceil(one) } else { tenths / one };
    match tenths % 10 {
        0 => format!("{} {unit}", tenths / 10),
        rest => format!("{}.{rest} {unit}", tenths / 10),
    }
}

/// From `/proc/meminfo`: bytes of memory, without those that are set aside for huge pages.
fn memory_of(meminfo: &str) -> Option<u64> {
    let bytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
    };
    Some(bytes("MemTotal")?.saturating_sub(bytes("Hugetlb").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       8388608 kB\nMemFree:  1 kB\nHugePages_Total: 1024\nHugetlb:         2097152 kB\n";

    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        let read = |path: &Path| files.iter().find(|(name, _)| path == Path::new(name)).map(|(_, text)| (*text).to_owned());
        Limit::of(&read).map(|limit| limit.bytes)
    }

    #[test]
    fn least_of_machine_and_control_groups_is_the_limit() {
        let (meminfo, group) = (("/proc/meminfo", MEMINFO), ("/proc/self/cgroup", "0::/a/b\n"));
        assert_eq!(limit(&[]), None);
        assert_eq!(limit(&[meminfo]), Some(6 << 30), "without huge pages");
        assert_eq!(limit(&[meminfo, group, ("/sys/fs/cgroup/a/b/memory.max", "max\n")]), Some(6 << 30));
        let of_both = [("/sys/fs/cgroup/a/memory.max", "1073741824\n"), ("/sys/fs/cgroup/a/b/memory.max", "2147483648\n")];
        assert_eq!(limit(&[meminfo, group, of_both[0], of_both[1]]), Some(1 << 30), "of a group above");
        assert_eq!(limit(&[meminfo, group, ("/sys/fs/cgroup/memory.max", "4096\n")]), Some(4096), "of a container");
        let first = ("/proc/self/cgroup", "5:cpu:/x\n4:memory:/x\n0::/\n");
        assert_eq!(limit(&[meminfo, first, ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "8192\n")]), Some(8192));
    }

    #[test]
    fn what_is_asked_for_is_shown_as_more_than_what_there_is() {
        for (bytes, up, down) in [
            (64 << 40, "64 TiB", "64 TiB"),
            (24_105 << 20, "23.6 GiB", "23.5 GiB"),
            ((1 << 30) + 1, "1.1 GiB", "1 GiB"),
            (1 << 20, "1 MiB", "1 MiB"),
            (4096, "0.1 MiB", "0 MiB"),
            (u64::MAX, "16777216 TiB", "16777215.9 TiB"),
        ] {
            assert_eq!((in_units(bytes, true).as_str(), in_units(bytes, false).as_str()), (up, down), "{bytes}");
        }
    }

    #[test]
    fn shares_are_given_back() {
        // Tests beside this one have disks, too, of megabytes.
        let all = Limit::of_this_process().expect("this machine has memory").bytes;
        let half = all / 2 + (64 << 20);
        let mut one = Share::of(half).expect("half of it");
        let text = Share::of(half).expect_err("more than all");
        assert!(text.contains("iB of other memory disks, is more than the ") && text.contains("add overcommit"), "{text}");
        one.shrink(half / 4);
        one.add(Share::of(half / 4).expect("it was given back"));
        drop(one);
        drop(Share::of(half).expect("again"));
        assert!(Share::of(u64::MAX).is_err());
        let _beyond = Share::unchecked(half);
        assert!(Share::of(half).is_err(), "what is in use counts");
    }
}
