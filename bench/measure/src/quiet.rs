//! Was the machine quiet while it was measured? What other processes and the host of a virtual machine took meanwhile, and how far
//! the rounds are apart. A figure measured on a busy machine is not that machine's: with two pollers on CPUs that a third thread
//! wants, a microsecond becomes a time slice.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::statistics::{Spread, interval_of_median, to_f64};

/// What documents quote was measured while other processes and the host took less than this, in percent of all CPUs' time.
pub const MOST_TAKEN_PERCENT: f64 = 2.0;
/// And the rounds of what they quote leave the median uncertain by at most this part of it, in percent.
pub const MOST_SPREAD_PERCENT: f64 = 25.0;
/// Processes that are named.
const NAMED: usize = 5;

/// A process, from `/proc/PID/stat`. Times in ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    name: String,
    parent: u32,
    started: u64,
    /// With that of its children which have ended.
    used: u64,
}

/// The kernel's counters at some moment, in ticks.
#[derive(Debug)]
struct Snapshot {
    stolen: u64,
    total: u64,
    processes: BTreeMap<u32, Process>,
}

impl Process {
    /// The name, in brackets, may hold anything.
    fn parse(stat: &str) -> Option<(u32, Self)> {
        let ((number, name), fields) = stat.rsplit_once(')').and_then(|(start, rest)| Some((start.split_once('(')?, rest)))?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
        let used = (11..=14).map(field).sum::<Option<u64>>()?;
        let process = Self { name: name.to_owned(), parent: u32::try_from(field(1)?).ok()?, started: field(19)?, used };
        Some((number.trim().parse().ok()?, process))
    }
}

impl Snapshot {
    /// Of `/proc/stat` and the `stat` of every process. From the line of all CPUs: user, nice, system, idle, iowait, irq, softirq,
    /// steal; what follows is contained in these (proc(5)).
    fn parse(stat: &str, processes: impl IntoIterator<Item = impl AsRef<str>>) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks = line.split_ascii_whitespace().take(8).map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let processes = processes.into_iter().filter_map(|stat| Process::parse(stat.as_ref())).collect();
        Some(Self { stolen: *ticks.get(7)?, total: ticks.iter().sum(), processes })
    }

    fn now() -> Option<Self> {
        let entries = std::fs::read_dir("/proc").ok()?.flatten();
        let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
        let processes = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_process));
        // One that has ended meanwhile has nothing to be read.
        let stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        Self::parse(&std::fs::read_to_string("/proc/stat").ok()?, stats)
    }

    /// Is `number` the process `own`, or started by it, directly or not?
    fn descends_from(&self, own: u32, mut number: u32) -> bool {
        // No chain of parents is longer than there are processes.
        for _ in 0..=self.processes.len() {
            if number == own {
                return true;
            }
            let Some(process) = self.processes.get(&number) else { return false };
            number = process.parent;
        }
        false
    }

    /// The same process, if it is still there.
    fn same(&self, number: u32, process: &Process) -> Option<&Process> {
        self.processes.get(&number).filter(|other| other.started == process.started)
    }

    /// What every process of `before` had used by then, under the number of the one that counts it now: itself, or the nearest
    /// ancestor that has not ended, which is given the time of those that have.
    fn used_before(&self, before: &Self) -> BTreeMap<u32, u64> {
        let mut used = BTreeMap::new();
        for (number, process) in &before.processes {
            let (mut counting, mut of) = (*number, process);
            // No chain of parents is longer than there are processes.
            for _ in 0..before.processes.len() {
                if self.same(counting, of).is_some() {
                    break;
                }
                counting = of.parent;
                let Some(parent) = before.processes.get(&counting) else { break };
                of = parent;
            }
            *used.entry(counting).or_default() += process.used;
        }
        used
    }

    /// What every other program took since `before`, the most first, in ticks, without the kernel's threads.
    fn others_since(&self, before: &Self, own: u32) -> Vec<(String, u64)> {
        const KERNEL: u32 = 2;
        let used_before = self.used_before(before);
        let mut used = BTreeMap::<&str, u64>::new();
        for (number, process) in &self.processes {
            if *number == KERNEL || process.parent == KERNEL || self.descends_from(own, *number) {
                continue;
            }
            let is_old = before.processes.get(number).is_some_and(|earlier| self.same(*number, earlier).is_some());
            let old = if is_old { used_before.get(number).copied().unwrap_or(0) } else { 0 };
            *used.entry(&process.name).or_default() += process.used.saturating_sub(old);
        }
        let mut used: Vec<_> =
            used.into_iter().filter(|(_, ticks)| *ticks > 0).map(|(name, ticks)| (name.to_owned(), ticks)).collect();
        used.sort_by_key(|(_, ticks)| std::cmp::Reverse(*ticks));
        used
    }
}

/// Looks at the counters before and after a run.
#[derive(Debug)]
pub struct Watch(Option<Snapshot>);

/// What was taken from a run, in percent of all CPUs' time; `None` where the kernel does not report it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Noise {
    /// By the host of a virtual machine.
    pub stolen_percent: Option<f64>,
    /// By processes that are not part of the run.
    pub others_percent: Option<f64>,
    /// The programs among them that took most.
    pub busiest: Vec<(String, f64)>,
}

impl Watch {
    pub fn begin() -> Self {
        Self(Snapshot::now())
    }

    /// Until now. Says so if too much was taken.
    pub fn end(&self) -> Noise {
        let noise = match (&self.0, Snapshot::now()) {
            (Some(before), Some(after)) => Noise::between(before, &after, std::process::id()),
            _ => Noise::default(),
        };
        if let Err(reason) = noise.judge(&[]) {
            eprintln!("warning: {reason}");
        }
        noise
    }
}

impl Noise {
    fn between(before: &Snapshot, after: &Snapshot, own: u32) -> Self {
        let total = to_f64(after.total.saturating_sub(before.total).max(1));
        let percent = |ticks: u64| 100.0 * to_f64(ticks) / total;
        let others = after.others_since(before, own);
        Self {
            stolen_percent: Some(percent(after.stolen.saturating_sub(before.stolen))),
            others_percent: Some(percent(others.iter().map(|(_, ticks)| ticks).sum())),
            busiest: others.into_iter().take(NAMED).map(|(name, ticks)| (name, percent(ticks))).collect(),
        }
    }

    /// Put it among the properties of the machine.
    pub fn record(&self, machine: &mut Value) {
        machine["stolen_percent"] = json!(self.stolen_percent);
        machine["others_percent"] = json!(self.others_percent);
        machine["busiest_others"] =
            self.busiest.iter().map(|(name, percent)| json!({ "process": name, "percent": percent })).collect();
    }

    /// May documents quote a run with this noise and these rounds of the figures that they quote, by name?
    pub fn judge(&self, quoted: &[(String, Vec<f64>)]) -> Result<(), String> {
        let mut reasons = Vec::new();
        match self.stolen_percent.zip(self.others_percent) {
            Some((stolen, others)) if stolen + others >= MOST_TAKEN_PERCENT => {
                let named: Vec<String> = self.busiest.iter().map(|(name, percent)| format!("{name} {percent:.1} %")).collect();
                let named = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
                reasons.push(format!(
                    "other processes took {others:.1} % of the CPUs' time{named} and the host {stolen:.1} % (steal); together the limit \
                     is {MOST_TAKEN_PERCENT} %: stop these processes, or wait until the host is quiet"
                ));
            }
            Some(_) => {}
            None => reasons.push(
                "the kernel does not say what other processes and the host took: let this user read /proc/stat and /proc/PID/stat"
                    .to_owned(),
            ),
        }
        for (name, rounds) in quoted {
            let [low, high] = interval_of_median(rounds.clone());
            let spread = 100.0 * (high - low) / Spread::of(rounds.clone()).median;
            if spread.is_nan() || spread > MOST_SPREAD_PERCENT {
                reasons.push(format!(
                    "the {} rounds of '{name}' put the median between {low:.1} and {high:.1}, which are {spread:.0} % of it apart; the \
                     limit is {MOST_SPREAD_PERCENT} %: let the machine rest, find what changes it, or measure more rounds (--rounds)",
                    rounds.len()
                ));
            }
        }
        if reasons.is_empty() {
            return Ok(());
        }
        Err(format!("this run is none to quote: {}; then run again", reasons.join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(user: u64, stolen: u64) -> String {
        format!("cpu  {user} 0 10 80 0 0 0 {stolen} 999 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n")
    }

    /// `number (name) S parent`, then the fields up to the four times and the start.
    fn process(number: u32, name: &str, parent: u32, times: [u64; 4], started: u64) -> String {
        let [user, system, children_user, children_system] = times;
        format!(
            "{number} ({name}) S {parent} 1 1 0 -1 4194304 100 0 0 0 {user} {system} {children_user} {children_system} 20 0 1 0 {started} 0"
        )
    }

    fn noise(before: &[String], after: &[String], total: u64) -> Noise {
        let at = |stat: &str, processes: &[String]| Snapshot::parse(stat, processes).expect("these are counters");
        Noise::between(&at(&cpus(10, 0), before), &at(&cpus(10 + total, 0), after), 100)
    }

    #[test]
    fn share_is_of_all_time_and_guests_are_not_counted_twice() {
        let at = |user, stolen| Snapshot::parse(&cpus(user, stolen), [""; 0]).expect("these are counters");
        let noise = Noise::between(&at(10, 0), &at(85, 25), 1);
        assert_eq!((noise.stolen_percent, noise.others_percent), (Some(25.0), Some(0.0)));
        for stat in ["", "cpu  1 2 3", "cpu  1 2 3 4 5 6 7 x"] {
            assert!(Snapshot::parse(stat, [""; 0]).is_none(), "{stat}");
        }
    }

    #[test]
    fn only_other_processes_count_and_the_busiest_are_named() {
        let before = [process(7, "shell (a) b", 1, [5, 5, 0, 0], 3), process(100, "bench", 7, [9, 9, 9, 9], 50)];
        let after = [
            process(7, "shell (a) b", 1, [5, 6, 0, 0], 3),
            process(2, "kthreadd", 0, [50, 0, 0, 0], 1),
            process(20, "kworker/0:1", 2, [500, 0, 0, 0], 1),
            process(100, "bench", 7, [900, 900, 900, 900], 50),
            process(101, "fipseed", 100, [900, 0, 0, 0], 60),
            process(102, "worker", 101, [900, 0, 0, 0], 61),
            process(200, "rustc", 7, [30, 10, 0, 0], 70),
            process(201, "rustc", 7, [20, 0, 0, 0], 71),
        ];
        let noise = noise(&before, &after, 1000);
        assert_eq!(noise.others_percent, Some(6.1), "a tick of the shell, 60 of the compilers");
        assert_eq!(noise.busiest, [("rustc".to_owned(), 6.0), ("shell (a) b".to_owned(), 0.1)]);
    }

    #[test]
    fn processes_that_end_meanwhile_are_counted_from_the_beginning_of_the_run() {
        let before = [process(7, "make", 1, [0; 4], 3), process(8, "cc", 7, [400, 0, 0, 0], 5)];
        // cc has ended with 430 ticks, its parent has waited for it, and its number was given to another process.
        let after = [process(7, "make", 1, [0, 0, 430, 0], 3), process(8, "ld", 7, [4, 0, 0, 0], 90)];
        let taken = noise(&before, &after, 1000);
        assert_eq!(taken.busiest, [("make".to_owned(), 3.0), ("ld".to_owned(), 0.4)]);
        // The same one generation further down: make has waited for the shell, and that for cc.
        let before =
            [process(7, "make", 1, [0; 4], 3), process(8, "sh", 7, [0, 5, 0, 0], 4), process(9, "cc", 8, [400, 0, 0, 0], 5)];
        let after = [process(7, "make", 1, [0, 0, 430, 5], 3)];
        assert_eq!(noise(&before, &after, 1000).busiest, [("make".to_owned(), 3.0)]);
    }

    fn quiet() -> Noise {
        Noise { stolen_percent: Some(0.9), others_percent: Some(1.0), busiest: Vec::new() }
    }

    #[test]
    fn a_busy_machine_is_refused_with_the_limit_the_processes_and_what_to_do() {
        assert_eq!(quiet().judge(&[("p50".to_owned(), vec![100.0, 110.0, 124.0])]), Ok(()));
        let busiest = vec![("rustc".to_owned(), 1.1)];
        let busy = Noise { stolen_percent: Some(0.9), others_percent: Some(1.1), busiest };
        let error = busy.judge(&[]).expect_err("2 % are too much");
        for part in ["other processes took 1.1 %", "(rustc 1.1 %)", "the host 0.9 %", "limit is 2 %", "stop these", "run again"] {
            assert!(error.contains(part), "'{part}' in {error}");
        }
        let stolen = Noise { stolen_percent: Some(3.0), ..quiet() };
        assert!(stolen.judge(&[]).is_err_and(|error| error.contains("the host 3.0 %")));
    }

    #[test]
    fn a_machine_that_may_be_busy_is_refused() {
        for unknown in [Noise::default(), Noise { stolen_percent: None, ..quiet() }, Noise { others_percent: None, ..quiet() }] {
            let error = unknown.judge(&[]).expect_err("not known");
            assert!(error.contains("/proc/stat") && error.contains("none to quote"), "{error}");
        }
    }

    #[test]
    fn rounds_that_are_far_apart_are_refused() {
        let judge = |rounds: &[f64]| quiet().judge(&[("null QD1, p50".to_owned(), rounds.to_vec())]);
        assert_eq!(judge(&[100.0, 101.0, 80.0]), Ok(()));
        let error = judge(&[100.0, 101.0, 60.0]).expect_err("41 %");
        assert!(
            error.contains("the 3 rounds of 'null QD1, p50' put the median between 60.0 and 101.0, which are 41 % of it apart; the limit is 25 %"),
            "{error}"
        );
        let outlier = [100.0, 101.0, 60.0, 99.0, 102.0, 98.0, 103.0, 104.0];
        assert!(judge(&outlier[..7]).is_err() && judge(&outlier).is_ok(), "one of eight does not decide where the median is");
        assert!(judge(&[]).is_err(), "nothing was measured");
    }

    #[test]
    fn this_machine_has_counters_and_what_this_process_starts_is_its_own() {
        let before = Snapshot::now().expect("counters");
        let mut child = std::process::Command::new("sleep").arg("600").spawn().expect("a child");
        let after = Snapshot::now().expect("counters");
        assert!(after.descends_from(std::process::id(), child.id()) && !before.processes.contains_key(&child.id()));
        assert!(!after.descends_from(std::process::id(), 1));
        child.kill().and_then(|()| child.wait()).expect("its end");
        let mut machine = json!({});
        Watch::begin().end().record(&mut machine);
        assert!(machine["others_percent"].is_number() && machine["stolen_percent"].is_number(), "{machine}");
    }
}
