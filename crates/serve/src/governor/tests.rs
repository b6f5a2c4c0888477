//! The governor on a simulated machine: workers with capacity 1 each, and queues that want a share of one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::*;

/// Most moves that are carried out between two samples.
const MOVES_PER_TICK: usize = 4;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    #[allow(clippy::cast_precision_loss, reason = "a random share")]
    fn share(&mut self) -> f64 {
        self.below(1 << 20) as f64 / (1 << 20) as f64
    }
}

struct Machine {
    governor: Governor,
    workers: usize,
    usable: usize,
    now: Duration,
    /// Worker and demand of each queue.
    queues: BTreeMap<u64, (usize, f64)>,
    pending: VecDeque<Move>,
    /// Clients whose queues stay.
    fixed: BTreeSet<u64>,
    /// So many workers have a CPU each. More take what clients need: all serve this part of what they could, and wait for CPUs.
    cpus: usize,
    short: f64,
    /// What was served in all, in seconds of a worker.
    done: f64,
    /// Noise of what is measured.
    noise: f64,
    rng: Rng,
    moves: usize,
    /// Decisions to move queues, and those to use another number of workers.
    decisions: Vec<(Duration, Vec<Action>)>,
    changes: usize,
}

impl Machine {
    fn new(mode: Mode, workers: usize, seed: u64) -> Self {
        let governor = Governor::new(mode, workers);
        let (queues, pending) = (BTreeMap::new(), VecDeque::new());
        let now = Duration::ZERO;
        Self {
            governor,
            workers,
            usable: workers,
            now,
            queues,
            pending,
            fixed: BTreeSet::new(),
            cpus: workers,
            short: 1.0,
            done: 0.0,
            noise: 0.0,
            rng: Rng(seed),
            moves: 0,
            decisions: Vec::new(),
            changes: 0,
        }
    }

    fn name(client: u64) -> QueueName {
        QueueName { client, index: 0 }
    }

    /// A new queue goes to the worker in use with the fewest.
    fn attach(&mut self, client: u64, demand: f64) {
        let count = |worker: &usize| self.queues.values().filter(|(other, _)| other == worker).count();
        let worker = (0..self.governor.count()).min_by_key(count).expect("one is in use");
        self.queues.insert(client, (worker, demand));
    }

    /// What each queue of a worker gets: all it wants, or as much as any other.
    fn served(&self, worker: usize) -> Vec<(u64, f64)> {
        let mut wanted: Vec<_> =
            self.queues.iter().filter(|(_, (on, _))| *on == worker).map(|(name, (_, demand))| (*name, *demand)).collect();
        wanted.sort_by(|a, b| a.1.total_cmp(&b.1));
        let (mut left, mut count) = (1.0, wanted.len());
        for (_, share) in &mut wanted {
            #[allow(clippy::cast_precision_loss, reason = "few")]
            let fair = left / count as f64;
            *share = share.min(fair);
            left -= *share;
            count -= 1;
        }
        wanted
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "units of a test")]
    fn tick(&mut self) {
        self.now += TICK;
        for Move { queue, to } in self.pending.drain(..self.pending.len().min(MOVES_PER_TICK)) {
            assert!(!self.fixed.contains(&queue.client), "{queue:?} stays");
            self.queues.entry(queue.client).and_modify(|(worker, _)| *worker = to);
            self.moves += 1;
        }
        let is_short = self.governor.count() > self.cpus;
        let (speed, waited) = if is_short { (self.short, 0.1) } else { (1.0, 0.0) };
        let (mut busy, mut loads) = (vec![0.0; self.workers], Vec::new());
        for (worker, busy) in busy.iter_mut().enumerate() {
            for (client, share) in self.served(worker) {
                *busy += share;
                self.done += share * speed * TICK.as_secs_f64();
                let noisy = speed * share * (1.0 + self.noise * (self.rng.share() - 0.5));
                loads.push((Self::name(client), worker, (noisy * 1e6) as u64));
            }
            let noisy: f64 = *busy * (1.0 + self.noise * (self.rng.share() - 0.5));
            *busy = noisy.clamp(0.0, 1.0);
        }
        let usable: Vec<usize> = (0..self.usable).collect();
        let (now, is_moving) = (self.now, !self.pending.is_empty());
        let actions = self.governor.sample(&Sample {
            now,
            busy: &busy,
            waited,
            loads: &loads,
            fixed: &self.fixed,
            is_exact: true,
            usable: &usable,
            is_moving,
        });
        if actions.iter().any(|action| matches!(action, Action::Move(_))) {
            self.decisions.push((self.now, actions.clone()));
        }
        for action in actions {
            match action {
                Action::Use(_) => self.changes += 1,
                Action::Move(wanted) => self.pending.push_back(wanted),
            }
        }
        // As the daemon does: nothing stays at a worker that is not in use.
        let count = self.governor.count();
        let stranded: Vec<_> = self
            .queues
            .iter()
            .filter(|(name, (worker, _))| *worker >= count && !self.fixed.contains(name))
            .map(|(name, _)| *name)
            .collect();
        for client in stranded {
            if self.pending.iter().all(|wanted| wanted.queue.client != client) {
                self.pending.push_back(Move { queue: Self::name(client), to: 0 });
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.tick();
        }
    }

    /// Ticks until so many workers are in use.
    fn time_until(&mut self, count: usize) -> Duration {
        let began = self.now;
        while self.governor.count() != count {
            self.tick();
            assert!(self.now - began < Duration::from_secs(60), "{} workers in use, not {count}", self.governor.count());
        }
        self.now - began
    }

    /// Within half a minute, the number of workers does not change, and queues are divided anew once at most.
    fn is_settled(&mut self) -> bool {
        let (decisions, changes) = (self.decisions.len(), self.changes);
        self.run(Duration::from_secs(30));
        self.decisions.len() <= decisions + 1 && self.changes == changes
    }
}

const ALL: Mode = Mode::Auto { least: 1, most: 7 };
const S: fn(u64) -> Duration = Duration::from_secs;

#[test]
fn a_worker_is_added_within_100_ms_of_overload_and_removed_within_5_s() {
    let mut machine = Machine::new(ALL, 7, 1);
    machine.attach(1, 1.0);
    machine.run(S(3));
    assert_eq!(machine.governor.count(), 1, "one queue cannot be divided");
    machine.attach(2, 1.0);
    assert!(machine.time_until(2) <= Duration::from_millis(100));
    machine.run(S(1));
    assert_eq!((machine.queues[&1].0 + machine.queues[&2].0, machine.changes), (1, 1), "one each");
    machine.queues.remove(&1);
    assert!(machine.time_until(1) <= S(5));
    machine.run(S(1));
    assert_eq!(machine.queues[&2].0, 0, "the other came back to the first worker");
}

#[test]
fn workers_follow_from_1_to_16_clients_and_back() {
    let mut machine = Machine::new(ALL, 7, 1);
    for clients in 1..=16 {
        machine.attach(clients, 1.0);
        machine.run(S(2));
        assert_eq!(machine.governor.count(), usize::try_from(clients).expect("few").min(7), "{clients} clients");
    }
    let shares = |machine: &Machine| (0..7).flat_map(|worker| machine.served(worker)).map(|(_, share)| share).collect::<Vec<_>>();
    assert!(shares(&machine).iter().all(|share| *share >= 1.0 / 3.0), "sixteen on seven: three at most on one");
    assert!(machine.is_settled());
    for clients in (1..=16).rev() {
        let expected = usize::try_from(clients).expect("few").min(7);
        assert!(machine.time_until(expected) <= S(5), "{clients} clients");
        machine.queues.remove(&clients);
    }
    machine.run(S(10));
    assert_eq!((machine.governor.count(), machine.governor.loads.len()), (1, 0));
    assert!(machine.governor.is_at_rest(7));
}

#[test]
fn no_sample_is_needed_once_no_queue_works_and_as_few_workers_as_may_be_are_in_use() {
    let mut machine = Machine::new(ALL, 7, 1);
    machine.attach(1, 0.5);
    machine.run(S(1));
    assert!(!machine.governor.is_at_rest(7), "a queue works");
    machine.queues.clear();
    machine.tick();
    assert!(!machine.governor.is_at_rest(7), "it did in the last sample but one");
    machine.tick();
    assert!(machine.governor.is_at_rest(7), "it did before, which averages still show");

    machine.attach(1, 1.0);
    machine.attach(2, 1.0);
    machine.run(S(1));
    machine.queues.clear();
    machine.run(S(1));
    assert!(!machine.governor.is_at_rest(7), "one worker is to be removed");
    machine.run(S(2));
    assert!(machine.governor.is_at_rest(7));
}

#[test]
fn queues_are_divided_anew_only_by_what_lasts_after_a_rest() {
    let mut machine = Machine::new(Mode::Fixed(2), 2, 1);
    let both = BTreeMap::from([(1, (0, 0.4)), (2, (0, 0.3))]);
    machine.queues = both.clone();
    machine.run(S(1) / 2);
    machine.queues.clear();
    machine.run(S(1) / 10);
    assert!(machine.governor.is_at_rest(2) && machine.moves == 0);
    machine.now += S(60);
    machine.queues = both;
    machine.run(S(1) / 2);
    assert_eq!(machine.moves, 0, "uneven for half a second, twice");
    machine.run(S(1));
    assert_eq!(machine.moves, 1, "uneven for a second");
}

#[test]
fn constant_loads_of_any_kind_settle_and_are_served() {
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let mut machine = Machine::new(ALL, 7, seed);
        machine.noise = if seed % 3 == 0 { 0.05 } else { 0.0 };
        for client in 0..1 + rng.below(40) {
            let demand = [0.0, 0.02, 0.3, 1.0][usize::try_from(rng.below(4)).expect("few")] * (0.5 + rng.share() / 2.0);
            machine.attach(client, demand);
            machine.run(TICK * u32::try_from(rng.below(30)).expect("few"));
        }
        machine.run(S(20));
        let before = format!("{} workers, {:?}", machine.governor.count(), machine.queues);
        assert!(
            machine.is_settled(),
            "seed {seed}: {before}, then {:?}",
            machine.decisions.split_off(machine.decisions.len() - 4)
        );
        // What could be served by one more worker would have got it.
        let (count, wanted) = (machine.governor.count(), machine.queues.values().map(|(_, demand)| demand).sum::<f64>());
        let served: f64 = (0..7).flat_map(|worker| machine.served(worker)).map(|(_, share)| share).sum();
        assert!(
            count == 7 || served >= wanted * 0.9,
            "seed {seed}: {count} workers serve {served} of {wanted}, {:?}",
            machine.queues
        );
    }
}

#[test]
fn random_loads_never_make_it_change_its_mind_in_a_moment() {
    for seed in 0..100 {
        let mut machine = Machine::new(ALL, 7, seed);
        let (mut last_added, mut count) = (Duration::ZERO, 1);
        for round in 0..200 {
            let client = machine.rng.below(24);
            if machine.queues.remove(&client).is_none() {
                let demand = machine.rng.share();
                machine.attach(client, demand);
            }
            for _ in 0..machine.rng.below(60) {
                machine.tick();
                let now = machine.governor.count();
                assert!(now.abs_diff(count) <= 1, "seed {seed}, round {round}");
                if now > count {
                    last_added = machine.now;
                } else if now < count {
                    assert!(machine.now - last_added >= ROOM_FOR, "seed {seed}, round {round}: removed what was just added");
                }
                count = now;
            }
        }
        assert!(machine.changes > 0, "seed {seed}: nothing happened");
    }
}

#[test]
fn a_fixed_number_of_workers_shares_the_queues_and_off_leaves_them() {
    let mut machine = Machine::new(Mode::Fixed(2), 4, 1);
    (0..4).for_each(|client| _ = machine.queues.insert(client, (0, 0.2)));
    machine.run(S(2));
    let on = |machine: &Machine, worker| machine.queues.values().filter(|(on, _)| *on == worker).count();
    assert_eq!((machine.governor.count(), on(&machine, 0), on(&machine, 1)), (2, 2, 2));
    // All busy: three and one look alike.
    machine.queues = BTreeMap::from([(0, (0, 1.0)), (1, (0, 1.0)), (2, (0, 1.0)), (3, (1, 1.0))]);
    machine.run(S(5));
    assert_eq!((on(&machine, 0), on(&machine, 1)), (2, 2));
    machine.governor.set_mode(Mode::Off);
    machine.queues = BTreeMap::from([(0, (0, 1.0)), (1, (0, 1.0))]);
    machine.run(S(10));
    assert_eq!((machine.governor.count(), on(&machine, 0)), (2, 2));
    machine.governor.set_mode(Mode::Auto { least: 3, most: 3 });
    machine.run(S(1));
    assert_eq!((machine.governor.count(), on(&machine, 0)), (3, 1));
}

#[test]
fn workers_that_can_no_longer_be_used_are_left_and_come_back() {
    let mut machine = Machine::new(Mode::Fixed(4), 4, 1);
    (0..8).for_each(|client| machine.attach(client, 0.4));
    machine.run(S(1));
    machine.usable = 2;
    machine.tick();
    assert_eq!(machine.governor.count(), 2);
    machine.run(S(1));
    assert!(machine.queues.values().all(|(worker, _)| *worker < 2));
    machine.usable = 4;
    machine.run(S(3));
    assert_eq!(machine.governor.count(), 4);
    assert!((0..4).all(|worker| machine.served(worker).len() == 2));
}

#[test]
fn modes_are_read_as_they_are_written() {
    for (text, mode) in
        [("2", Mode::Fixed(2)), ("1..4", Mode::Auto { least: 1, most: 4 }), ("auto", Mode::AUTO), ("off", Mode::Off)]
    {
        assert_eq!((text.parse(), mode.to_string()), (Ok(mode), text.to_owned()));
    }
    for text in ["", "two", "4..1", "1..", "..", "-1", "1..x", "1...4"] {
        assert_eq!(text.parse::<Mode>(), Err(NotAMode), "{text}");
    }
    assert_eq!((Mode::Fixed(9).bounds(4), Mode::AUTO.bounds(0), Mode::Off.bounds(3)), (Some((4, 4)), Some((1, 1)), None));
}

#[test]
fn off_uses_as_many_workers_again_when_they_come_back() {
    let mut machine = Machine::new(Mode::Fixed(4), 4, 1);
    (0..4).for_each(|client| machine.attach(client, 0.4));
    machine.run(S(1));
    machine.governor.set_mode(Mode::Off);
    machine.usable = 2;
    machine.run(S(1));
    assert_eq!(machine.governor.count(), 2);
    machine.usable = 4;
    machine.run(S(1));
    assert_eq!(machine.governor.count(), 4);
}

fn with_short_cpus(speed: f64) -> Machine {
    let mut machine = Machine::new(Mode::Auto { least: 1, most: 2 }, 2, 1);
    (machine.cpus, machine.short, machine.noise) = (1, speed, 0.02);
    (1..=4).for_each(|client| machine.attach(client, 1.0));
    machine
}

#[test]
fn a_worker_that_takes_the_clients_cpu_is_given_up_again() {
    let mut machine = with_short_cpus(0.3);
    machine.run(Duration::from_secs(1));
    assert_eq!(machine.governor.count(), 1);
    machine.run(S(299));
    assert!(machine.done >= 0.99 * 300.0, "{} s of work in 300 s", machine.done);
    assert!(machine.changes > 4, "it was never tried again");
}

#[test]
fn a_worker_that_serves_more_stays_although_cpus_are_short() {
    let mut machine = with_short_cpus(0.8);
    machine.run(S(300));
    assert_eq!(machine.governor.count(), 2);
    assert!(machine.done >= 0.99 * 1.6 * 300.0, "{} s of work in 300 s", machine.done);
}

#[test]
fn workers_follow_when_cpus_become_short_and_when_they_are_free_again() {
    let mut machine = with_short_cpus(0.3);
    machine.cpus = 2;
    machine.run(S(3));
    assert_eq!((machine.governor.count(), machine.changes), (2, 1));
    machine.cpus = 1;
    assert!(machine.time_until(1) <= Duration::from_millis(300));
    machine.run(S(30));
    assert_eq!(machine.governor.count(), 1);
    machine.cpus = 2;
    // Another load: what was found for the last is not waited for.
    (5..=8).for_each(|client| machine.attach(client, 1.0));
    assert!(machine.time_until(2) <= Duration::from_millis(100));
    machine.run(S(300));
    assert_eq!((machine.governor.count(), machine.is_settled()), (2, true));
}

#[test]
fn a_result_that_holds_no_longer_is_found_soon_after_a_load_began() {
    let mut machine = with_short_cpus(0.8);
    assert!(machine.time_until(2) <= Duration::from_millis(100));
    machine.run(Duration::from_millis(200));
    machine.short = 0.3;
    assert!(machine.time_until(1) <= Duration::from_millis(500));
}

#[test]
fn another_mode_does_not_wait_for_what_was_found_before() {
    let mut machine = with_short_cpus(0.3);
    let automatic = machine.governor.mode();
    machine.run(S(60));
    machine.governor.set_mode(Mode::Fixed(2));
    machine.run(S(1));
    assert_eq!(machine.governor.count(), 2);
    machine.governor.set_mode(automatic);
    assert!(machine.time_until(1) <= Duration::from_millis(300));
}

#[test]
fn queues_that_stay_are_a_load_of_their_worker_and_no_reason_for_another() {
    let mut machine = Machine::new(Mode::AUTO, 4, 1);
    for client in 0..4 {
        machine.attach(client, 0.5);
        machine.fixed.insert(client);
    }
    machine.run(Duration::from_secs(10));
    assert_eq!((machine.governor.count(), machine.moves), (1, 0), "they cannot be divided");
    // Another beside them can: it goes, and they stay.
    machine.attach(9, 0.5);
    machine.run(Duration::from_secs(10));
    assert_eq!((machine.governor.count(), machine.queues[&9].0), (2, 1));
    // And one more goes where they are not.
    machine.queues.insert(10, (0, 0.3));
    machine.run(Duration::from_secs(10));
    assert_eq!((machine.governor.count(), machine.queues[&10].0), (2, 1));
    assert!((0..4).all(|client| machine.queues[&client].0 == 0));
}
