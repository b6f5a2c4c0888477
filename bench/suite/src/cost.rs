//! What a measurement costs in processor time: of this process, of programs that ended in it, and of servers.

use std::mem::MaybeUninit;
use std::time::Duration;

use fipsee::load::count_f64;

/// Processor time, user and system, that the process `pid` has used with all its threads, ended ones too.
pub(crate) fn process_time(pid: u32) -> Result<Duration, String> {
    fipsee_testkit::process::process_time(pid).ok_or_else(|| format!("process {pid} is gone; its message is above"))
}

/// Processor time of children that have ended and were waited for, and of theirs.
pub(crate) fn children_time() -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for one rusage; zeroes, which it holds if the call fails, are a value of it.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    // SAFETY: written by the call, or zeroes.
    let usage = unsafe { usage.assume_init() };
    let time =
        |value: libc::timeval| Duration::new(value.tv_sec.unsigned_abs(), u32::try_from(value.tv_usec * 1000).unwrap_or(0));
    time(usage.ru_utime) + time(usage.ru_stime)
}

/// Time that the machine's CPUs were not idle, in steps of 10 ms: everything, kernel threads and unrelated processes included.
fn machine_time() -> Duration {
    std::fs::read_to_string("/proc/stat").map_or(Duration::ZERO, |text| busy_time(&text))
}

/// What the first line of /proc/stat counts as user, nice, system, irq and softirq. Guests are part of user; steal is the host's.
fn busy_time(stat: &str) -> Duration {
    const BUSY: [usize; 5] = [0, 1, 2, 5, 6];
    let line = stat.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // USER_HZ is 100 on every Linux.
    Duration::from_millis(BUSY.iter().filter_map(|index| fields.get(*index)).sum::<u64>() * 10)
}

/// Reads the clocks before and after.
pub(crate) struct Meter<'a> {
    servers: &'a [u32],
    before: Duration,
    machine_before: Duration,
}

/// Processor time in between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// Of every process that took part.
    pub(crate) processes: Duration,
    /// Of the machine, to check the other by.
    pub(crate) machine: Duration,
}

impl<'a> Meter<'a> {
    pub(crate) fn start(servers: &'a [u32]) -> Result<Self, String> {
        Ok(Self { servers, before: sum(servers)?, machine_before: machine_time() })
    }

    pub(crate) fn stop(&self) -> Result<Cost, String> {
        let processes = sum(self.servers)?.saturating_sub(self.before);
        Ok(Cost { processes, machine: machine_time().saturating_sub(self.machine_before) })
    }
}

fn sum(servers: &[u32]) -> Result<Duration, String> {
    let own = process_time(std::process::id())?;
    servers.iter().try_fold(own + children_time(), |sum, pid| Ok(sum + process_time(*pid)?))
}

/// Nanoseconds per request.
pub(crate) fn per_request_ns(time: Duration, requests: f64) -> f64 {
    count_f64(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)) / requests.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_out_idle_iowait_steal_and_guests() {
        let text = "cpu  1 2 3 1000 1000 4 5 1000 1000 1000\ncpu0 9 9 9 9 9 9 9 9 9 9\n";
        assert_eq!(busy_time(text), Duration::from_millis(150));
        assert_eq!(busy_time(""), Duration::ZERO);
    }

    #[test]
    fn work_of_children_and_their_children_is_counted() {
        let before = children_time();
        let shell = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let nested = format!("sh -c '{shell}'; {shell}");
        let ended = std::process::Command::new("sh").args(["-c", &nested]).status().expect("a shell");
        assert!(ended.success());
        // Far below what 400,000 rounds take, far above what the children of other tests do.
        assert!(children_time() - before > Duration::from_millis(20), "two loops took no time");
    }

    #[test]
    fn work_of_servers_is_counted_while_they_run() {
        let mut shell = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell");
        let servers = [shell.id()];
        let meter = Meter::start(&servers).expect("clocks to read");
        let before = process_time(shell.id()).expect("its clock");
        while process_time(shell.id()).expect("its clock") - before < Duration::from_millis(20) {
            std::thread::yield_now();
        }
        assert!(meter.stop().expect("clocks to read").processes >= Duration::from_millis(20));
        shell.kill().and_then(|()| shell.wait()).expect("its end");
    }

    #[test]
    fn process_that_is_gone_is_an_error() {
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        let pid = child.id();
        assert!(child.wait().expect("its end").success());
        assert!(process_time(pid).is_err());
        assert!(process_time(u32::MAX).is_err());
        assert!(Meter::start(&[pid]).is_err());
    }

    #[test]
    fn cost_is_spread_over_the_requests() {
        assert!((per_request_ns(Duration::from_micros(3), 2.0) - 1500.0).abs() < 1e-9);
        assert!(per_request_ns(Duration::from_micros(3), 0.0).is_finite());
    }
}
