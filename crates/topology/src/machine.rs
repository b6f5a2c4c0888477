//! What the kernel says of the machine's CPUs, in files below `/sys/devices/system` and `/proc`
//! (Linux: Documentation/ABI/stable/sysfs-devices-system-cpu and sysfs-devices-node, Documentation/admin-guide/cputopology.rst).
//!
//! Containers hide these files and hypervisors may fill them with anything, so nothing here fails: what cannot be read is unknown, and
//! [`Machine::unknown`] says so.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{cpu_list, pin};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    pub number: usize,
    /// Its core, by the lowest number of the core's online CPUs; its own number when unknown.
    pub core: usize,
    /// Its socket (`physical_package_id`), if known.
    pub socket: Option<usize>,
    /// Its last-level cache, by the lowest number of the online CPUs that share it, if known.
    pub cache: Option<usize>,
    /// Its NUMA node, if known.
    pub node: Option<usize>,
    /// Is it one of the slow CPUs of a machine that has two kinds?
    pub is_small: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    SameCore,
    SameCache,
    SameSocket,
    OtherSocket,
}

impl Distance {
    /// All of them, nearest first.
    pub const ALL: [Self; 4] = [Self::SameCore, Self::SameCache, Self::SameSocket, Self::OtherSocket];

    /// Of two CPUs. What is unknown of both is taken to be the same, except the cache.
    pub fn between(a: &Cpu, b: &Cpu) -> Self {
        if a.core == b.core {
            Self::SameCore
        } else if a.cache.is_some() && a.cache == b.cache {
            Self::SameCache
        } else if a.socket == b.socket {
            Self::SameSocket
        } else {
            Self::OtherSocket
        }
    }

    /// For programs: of the file of measurements, and of JSON.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::SameCore => "same_core",
            Self::SameCache => "same_cache",
            Self::SameSocket => "same_socket",
            Self::OtherSocket => "other_socket",
        }
    }

    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::SameCore => "same core",
            Self::SameCache => "same last-level cache",
            Self::SameSocket => "same socket",
            Self::OtherSocket => "other socket",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    pub model: String,
    pub cpus: Vec<Cpu>,
    /// CPUs that are present and offline.
    pub offline: Vec<usize>,
    /// Online CPUs this process may use and bind threads to, ascending.
    pub usable: Vec<usize>,
    /// What could not be found out, in words.
    pub unknown: Vec<String>,
    /// The kernel's name for this start of the machine.
    boot_id: String,
}

/// A CPU counts as small below this part of the greatest capacity: cores of one kind differ by a few percent where the
/// firmware has favourites, efficient ones have 40 to 70 %.
const SMALL_PERCENT: u64 = 80;

impl Machine {
    /// Read the machine below `root`, `/` for this one.
    pub fn read(root: &Path) -> Self {
        let mut reader = Reader { root, unknown: BTreeMap::new() };
        let numbers = reader.online();
        let allowed = pin::allowed_below(root);
        let nodes = reader.nodes();
        let atoms = reader.list("sys/devices/cpu_atom/cpus").unwrap_or_default();
        let capacity = |number: &usize| reader.number(&format!("sys/devices/system/cpu/cpu{number}/cpu_capacity"));
        let capacities: Vec<Option<u64>> = numbers.iter().map(capacity).collect();
        let greatest = capacities.iter().flatten().copied().max().unwrap_or(0);
        let is_small = |number: &usize, capacity: &Option<u64>| {
            capacity
                .map_or(atoms.contains(number), |capacity| capacity.saturating_mul(100) < greatest.saturating_mul(SMALL_PERCENT))
        };
        let mut cpus = Vec::with_capacity(numbers.len());
        for (number, capacity) in numbers.iter().zip(&capacities) {
            let node = nodes.iter().find(|(_, cpus)| cpus.contains(number)).map(|(node, _)| *node);
            cpus.push(reader.cpu(*number, &numbers, node, is_small(number, capacity)));
        }
        let mut usable = numbers.clone();
        match &allowed {
            Some(allowed) => usable.retain(|cpu| allowed.contains(cpu)),
            None => reader.note("the CPUs this process may use (taken to be all)", None),
        }
        usable.retain(|cpu| *cpu < pin::FIRST_UNBINDABLE);
        let present = reader.list("sys/devices/system/cpu/present").unwrap_or_default();
        let offline = present.into_iter().filter(|cpu| !numbers.contains(cpu)).collect();
        let (model, boot_id) = (reader.model(), reader.text("proc/sys/kernel/random/boot_id").unwrap_or_default());
        let mut unknown = reader.into_words();
        if numbers.iter().any(|cpu| *cpu >= pin::FIRST_UNBINDABLE) {
            unknown.push(format!("CPUs from {} on are left alone: threads cannot be bound to them", pin::FIRST_UNBINDABLE));
        }
        Self { model, cpus, offline, usable, unknown, boot_id }
    }

    /// Check that this process may run on these CPUs.
    ///
    /// # Errors
    /// The first on which it may not run, and those on which it may.
    pub fn check_usable(&self, cpus: &[usize]) -> Result<(), String> {
        cpus.iter().find(|cpu| !self.usable.contains(cpu)).map_or(Ok(()), |cpu| {
            Err(format!("CPU {cpu} is not one that this process may use; choose from {}", cpu_list::format(&self.usable)))
        })
    }

    pub fn this() -> Self {
        Self::read(Path::new("/"))
    }

    pub fn cpu(&self, number: usize) -> Option<&Cpu> {
        self.cpus.binary_search_by_key(&number, |cpu| cpu.number).ok().and_then(|index| self.cpus.get(index))
    }

    /// How far two CPUs are apart; of CPUs that are not online nothing is known.
    pub fn distance(&self, a: usize, b: usize) -> Distance {
        self.cpu(a).zip(self.cpu(b)).map_or(Distance::OtherSocket, |(a, b)| Distance::between(a, b))
    }

    /// The NUMA node of a CPU, if the machine has several.
    pub fn node_of(&self, number: usize) -> Option<usize> {
        let node = self.cpu(number)?.node?;
        self.cpus.iter().any(|cpu| cpu.node.is_some_and(|other| other != node)).then_some(node)
    }

    /// Groups of online CPUs that have the same `key`, by key; those without one are in none.
    pub fn groups(&self, key: impl Fn(&Cpu) -> Option<usize>) -> BTreeMap<usize, Vec<usize>> {
        let mut groups = BTreeMap::<usize, Vec<usize>>::new();
        for cpu in &self.cpus {
            if let Some(key) = key(cpu) {
                groups.entry(key).or_default().push(cpu.number);
            }
        }
        groups
    }

    /// Everything a measurement depends on, as text: another text, another machine. It ends with this start of the machine, since
    /// a hypervisor may run the same CPUs elsewhere after the next.
    pub fn fingerprint(&self) -> String {
        let part = |value: Option<usize>| value.map_or_else(|| "?".to_owned(), |value| value.to_string());
        let cpu = |cpu: &Cpu| {
            let Cpu { number, core, socket, cache, node, .. } = *cpu;
            format!("{number}:{core}/{}/{}/{}", part(cache), part(node), part(socket))
        };
        let cpus: Vec<String> = self.cpus.iter().map(cpu).collect();
        format!("{}; {}; {}", self.model, cpus.join(" "), self.boot_id)
    }
}

struct Reader<'a> {
    root: &'a Path,
    /// What is unknown, and of which CPUs.
    unknown: BTreeMap<&'static str, Vec<usize>>,
}

impl Reader<'_> {
    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    fn list(&self, path: &str) -> Option<Vec<usize>> {
        cpu_list::parse(&self.text(path)?)
    }

    fn note(&mut self, what: &'static str, cpu: Option<usize>) {
        self.unknown.entry(what).or_default().extend(cpu);
    }

    fn into_words(self) -> Vec<String> {
        let word = |(what, cpus): (&str, Vec<usize>)| match cpus.as_slice() {
            [] => format!("unknown: {what}"),
            cpus => format!("unknown: {what} of CPUs {}", cpu_list::format(cpus)),
        };
        self.unknown.into_iter().map(word).collect()
    }

    fn online(&mut self) -> Vec<usize> {
        let non_empty = |list: Vec<usize>| (!list.is_empty()).then_some(list);
        if let Some(list) = self.list("sys/devices/system/cpu/online").and_then(non_empty) {
            return list;
        }
        self.note("which CPUs are online (taken to be those this process may use)", None);
        pin::allowed_below(self.root).unwrap_or_else(|| vec![0])
    }

    fn nodes(&mut self) -> Vec<(usize, Vec<usize>)> {
        let Ok(entries) = std::fs::read_dir(self.root.join("sys/devices/system/node")) else {
            self.note("NUMA nodes", None);
            return Vec::new();
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok());
        let mut numbers: Vec<usize> = names.filter(|node| *node <= cpu_list::MAX_CPU).collect();
        numbers.sort_unstable();
        let cpus_of = |node: usize| Some((node, self.list(&format!("sys/devices/system/node/node{node}/cpulist"))?));
        let nodes: Vec<_> = numbers.into_iter().filter_map(cpus_of).collect();
        if nodes.is_empty() {
            self.note("NUMA nodes", None);
        }
        nodes
    }

    fn cpu(&mut self, number: usize, online: &[usize], node: Option<usize>, is_small: bool) -> Cpu {
        let folder = format!("sys/devices/system/cpu/cpu{number}");
        // A list that does not name the CPU it belongs to is about something else.
        let lowest = |list: Vec<usize>| list.contains(&number).then(|| list.into_iter().find(|cpu| online.contains(cpu)))?;
        let list = |reader: &Self, file: &str| reader.list(&format!("{folder}/{file}")).and_then(lowest);
        let core = list(self, "topology/core_cpus_list").or_else(|| list(self, "topology/thread_siblings_list"));
        let socket = self.number(&format!("{folder}/topology/physical_package_id")).and_then(|id| usize::try_from(id).ok());
        let cache = self.last_cache(&folder).and_then(lowest);
        for (what, is_known) in
            [("the core", core.is_some()), ("the socket", socket.is_some()), ("the last-level cache", cache.is_some())]
        {
            if !is_known {
                self.note(what, Some(number));
            }
        }
        Cpu { number, core: core.unwrap_or(number), socket, cache, node, is_small }
    }

    /// The CPUs that share the cache of the highest level, if it is any that cores share: a level-1 cache says nothing.
    fn last_cache(&self, folder: &str) -> Option<Vec<usize>> {
        const MOST_CACHES: usize = 16;
        let level = |index: &usize| self.number(&format!("{folder}/cache/index{index}/level"));
        let holds_data =
            |index: &usize| self.text(&format!("{folder}/cache/index{index}/type")).is_none_or(|kind| kind != "Instruction");
        let caches = (0..MOST_CACHES).filter(holds_data).filter_map(|index| Some((level(&index)?, index)));
        let (_, index) = caches.filter(|(level, _)| *level > 1).max()?;
        self.list(&format!("{folder}/cache/index{index}/shared_cpu_list"))
    }

    fn model(&self) -> String {
        let cpuinfo = self.text("proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let arm = || Some(format!("implementer {} part {}", field("CPU implementer")?, field("CPU part")?));
        field("model name").or_else(arm).unwrap_or_else(|| "unknown model".to_owned())
    }
}
