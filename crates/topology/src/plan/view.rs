//! The machine as it is seen with a measurement: what was measured outweighs what the kernel says.

use std::collections::BTreeMap;

use crate::cpu_list;
use crate::machine::{Cpu, Distance, Machine};
use crate::matrix::{Kind, Matrix, kind_of, median, to_f64};

/// The other thread of a poller's core is for its client if a message costs at most this part of what it costs from the nearest
/// other core. Two busy threads of one core slow each other to little more than a half: the shorter way must be worth that.
const SIBLING_PART: f64 = 0.5;
/// A line that comes from another thread of the same core does not move: taking it costs less than this many times as much as
/// taking one's own. From the nearest other core it costs four times as much or more.
const SAME_CORE_FACTOR: f64 = 2.0;
/// Threads that the kernel calls siblings are not if their link costs at least this part of the cheapest between cores.
const OTHER_CORE_PART: f64 = 0.8;
/// Costs within this factor are the same: a measurement repeats within 10 %.
const SAME_FACTOR: f64 = 1.25;

/// What counts when a poller's CPU is chosen; the first difference decides and the least is the best.
pub(super) type Weight = [f64; 7];

pub(super) struct View<'a> {
    machine: &'a Machine,
    matrix: Option<&'a Matrix>,
    pub(super) usable: Vec<&'a Cpu>,
    /// Ticks both ways, by kind of pair, for pairs that were not measured.
    kinds: BTreeMap<Kind, f64>,
    /// Ticks both ways of the cheapest link between cores.
    cheapest_ticks: Option<f64>,
}

impl<'a> View<'a> {
    pub(super) fn new(machine: &'a Machine, matrix: Option<&'a Matrix>) -> Self {
        let usable: Vec<&Cpu> = machine.usable.iter().filter_map(|number| machine.cpu(*number)).collect();
        let mut by_kind = BTreeMap::<Kind, Vec<f64>>::new();
        for (a, b, ticks) in matrix.iter().flat_map(|matrix| matrix.pairs()) {
            if let (Some(a), Some(b)) = (machine.cpu(a), machine.cpu(b)) {
                by_kind.entry(kind_of(a, b)).or_default().push(ticks);
            }
        }
        let kinds = by_kind.into_iter().filter_map(|(kind, ticks)| Some((kind, median(ticks)?))).collect();
        let mut view = Self { machine, matrix, usable, kinds, cheapest_ticks: None };
        let between_cores = view.pairs().filter(|(a, b)| a.core != b.core && !view.is_one_core_by_measurement(a, b));
        view.cheapest_ticks = between_cores.filter_map(|(a, b)| view.ticks(a, b)).min_by(f64::total_cmp);
        view
    }

    fn pairs(&self) -> impl Iterator<Item = (&'a Cpu, &'a Cpu)> + '_ {
        let after = |index: usize| self.usable[index + 1..].iter();
        self.usable.iter().enumerate().flat_map(move |(index, a)| after(index).map(move |b| (*a, *b)))
    }

    /// Ticks both ways, a message and its answer.
    fn ticks(&self, a: &Cpu, b: &Cpu) -> Option<f64> {
        self.matrix?.both_ways(a.number, b.number).or_else(|| self.kinds.get(&kind_of(a, b)).copied())
    }

    fn is_one_core_by_measurement(&self, a: &Cpu, b: &Cpu) -> bool {
        let own = self.matrix.and_then(|matrix| matrix.own_ticks);
        self.ticks(a, b).zip(own).is_some_and(|(ticks, own)| ticks / 2.0 < own * SAME_CORE_FACTOR)
    }

    fn is_two_cores_by_measurement(&self, a: &Cpu, b: &Cpu) -> bool {
        self.ticks(a, b).zip(self.cheapest_ticks).is_some_and(|(ticks, cheapest)| ticks >= cheapest * OTHER_CORE_PART)
    }

    pub(super) fn is_same_core(&self, a: &Cpu, b: &Cpu) -> bool {
        if a.core == b.core { !self.is_two_cores_by_measurement(a, b) } else { self.is_one_core_by_measurement(a, b) }
    }

    /// Where measurement and kernel disagree, in words.
    pub(super) fn contradictions(&self) -> Vec<String> {
        let pair_words = |pairs: Vec<(&Cpu, &Cpu)>| {
            const MOST_NAMED: usize = 4;
            let more = pairs.len().saturating_sub(MOST_NAMED);
            let named: Vec<String> =
                pairs.iter().take(MOST_NAMED).map(|(a, b)| format!("{} and {}", a.number, b.number)).collect();
            (!pairs.is_empty()).then(|| {
                format!("{}{}", named.join(", "), if more > 0 { format!(" and {more} more pairs") } else { String::new() })
            })
        };
        let (kernel_one, kernel_two): (Vec<_>, Vec<_>) = self.pairs().partition(|(a, b)| a.core == b.core);
        let two = pair_words(kernel_one.into_iter().filter(|(a, b)| !self.is_same_core(a, b)).collect());
        let one = pair_words(kernel_two.into_iter().filter(|(a, b)| self.is_same_core(a, b)).collect());
        let two = two.map(|pairs| format!("the kernel calls CPUs {pairs} threads of one core, yet lines move between them as between cores: taken as cores of their own"));
        let one = one.map(|pairs| format!("the kernel puts CPUs {pairs} on different cores, yet lines need not move between them: taken as threads of one core"));
        let medians =
            Distance::ALL.map(|distance| Some((distance, self.matrix?.at_distance(self.machine, distance)?.median_ticks)));
        let medians: Vec<(Distance, f64)> = medians.into_iter().flatten().collect();
        let inverted = medians.windows(2).filter(|pair| pair[0].1 > pair[1].1 * SAME_FACTOR).map(|pair| {
            let [(near, near_ticks), (far, far_ticks)] = [pair[0], pair[1]];
            format!(
                "lines move slower within the {} ({near_ticks:.0} cycles) than to the {} ({far_ticks:.0}): the measurement decides",
                near.text().trim_start_matches("same "),
                far.text()
            )
        });
        two.into_iter().chain(one).chain(inverted).collect()
    }

    pub(super) fn weight(&self, cpu: &Cpu, chosen: &[&Cpu]) -> Weight {
        let flag = |is_set| if is_set { 1.0 } else { 0.0 };
        let share = |key: fn(&Cpu) -> Option<usize>| {
            let count = |cpus: &[&Cpu]| cpus.iter().filter(|other| key(other) == key(cpu)).count() as u64;
            to_f64(count(chosen) + 1) / to_f64(count(&self.usable).max(1))
        };
        let others = self
            .usable
            .iter()
            .filter(|other| other.number != cpu.number && !chosen.contains(other) && !self.is_same_core(cpu, other));
        let link = others.filter_map(|other| self.ticks(cpu, other)).min_by(f64::total_cmp);
        [
            flag(chosen.iter().any(|other| self.is_same_core(cpu, other))),
            flag(cpu.number == 0),
            flag(cpu.is_small),
            share(|cpu| cpu.node),
            share(|cpu| cpu.cache),
            link.map_or(0.0, |ticks| self.step(ticks)),
            -to_f64(cpu.number as u64),
        ]
    }

    /// Costs on a scale on which costs within the error are equal.
    fn step(&self, ticks: f64) -> f64 {
        self.cheapest_ticks.map_or(0.0, |cheapest| ((ticks / cheapest).ln() / SAME_FACTOR.ln()).round())
    }

    /// Is the other thread of `poller`'s core for its client?
    fn sibling_pays(&self, poller: &Cpu, sibling: &Cpu) -> bool {
        let others = self.usable.iter().filter(|other| other.number != poller.number && !self.is_same_core(poller, other));
        let nearest = others.filter_map(|other| self.ticks(poller, other)).min_by(f64::total_cmp);
        self.ticks(poller, sibling).zip(nearest).is_some_and(|(ticks, nearest)| ticks <= nearest * SIBLING_PART)
    }

    /// Usable CPUs for clients of the poller on `poller`, best first, when those of `taken` are not to be had.
    pub(super) fn clients(&self, poller: &Cpu, taken: &[&Cpu]) -> Vec<usize> {
        let free = self.usable.iter().filter(|cpu| taken.iter().all(|other| other.number != cpu.number));
        let weight = |cpu: &Cpu| {
            let rank = if self.is_same_core(poller, cpu) {
                // Left alone while other CPUs are free, unless it pays.
                if self.sibling_pays(poller, cpu) { 0.0 } else { 3.0 }
            } else if taken.iter().any(|other| self.is_same_core(other, cpu)) {
                2.0
            } else {
                1.0
            };
            let distance = self.machine.distance(poller.number, cpu.number);
            let distance = to_f64(Distance::ALL.iter().position(|known| *known == distance).unwrap_or(0) as u64);
            let far = self.ticks(poller, cpu).map_or(distance, |ticks| self.step(ticks));
            [rank, far, if cpu.is_small { 1.0 } else { 0.0 }, to_f64(cpu.number as u64)]
        };
        let mut weighted: Vec<([f64; 4], usize)> = free.map(|cpu| (weight(cpu), cpu.number)).collect();
        weighted.sort_by(|(a, _), (b, _)| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
        weighted.into_iter().map(|(_, cpu)| cpu).collect()
    }

    pub(super) fn reason(&self, cpu: &Cpu, chosen: &[&Cpu]) -> String {
        let mut words = Vec::new();
        match (self.machine.node_of(cpu.number), cpu.socket) {
            (Some(node), Some(socket)) => words.push(format!("node {node}, socket {socket}")),
            (Some(node), None) => words.push(format!("node {node}")),
            _ => {}
        }
        if let Some(other) = chosen.iter().find(|other| other.number != cpu.number && self.is_same_core(cpu, other)) {
            words.push(format!("shares its core with the poller on CPU {}: no core is free", other.number));
        }
        if cpu.number == 0 {
            words.push("no other core is free".to_owned());
        }
        let siblings = self
            .usable
            .iter()
            .filter(|other| other.number != cpu.number && self.is_same_core(cpu, other) && !chosen.contains(other));
        let (paying, idle): (Vec<&Cpu>, Vec<&Cpu>) = siblings.partition(|sibling| self.sibling_pays(cpu, sibling));
        let list = |cpus: &[&Cpu]| cpu_list::format(&cpus.iter().map(|cpu| cpu.number).collect::<Vec<_>>());
        if !paying.is_empty() {
            words
                .push(format!("its core's other thread, CPU {}, is for its client: messages cost less than half", list(&paying)));
        }
        if !idle.is_empty() {
            words.push(format!("its core's other thread, CPU {}, is left alone while others are free", list(&idle)));
        }
        if let Some(nearest) = self.clients(cpu, chosen).first().and_then(|number| self.machine.cpu(*number)) {
            let how = self.machine.distance(cpu.number, nearest.number).text();
            words.push(match self.ticks(cpu, nearest) {
                Some(ticks) => format!("client on CPU {} ({how}, {:.0} cycles a line)", nearest.number, ticks / 2.0),
                None => format!("client on CPU {} ({how})", nearest.number),
            });
        }
        words.join("; ")
    }
}
