//! Notifications that a policy holds back: never more than the rate, never later than the delay or the rate says, none lost. In
//! virtual time.

use fipsee_ring::notify::{MAX_COMPLETIONS, MAX_RATE, Moderator, Policy, Wanted};

/// As if the counter counted nanoseconds.
const PER_SECOND: u64 = 1_000_000_000;
const US: u64 = 1_000;
/// What is waited where no delay is said.
const USUAL_DELAY: u64 = 100 * US;
const AUTO_DELAY: u64 = 300 * US;

const NONE: Wanted = Wanted { max_rate: None, min_completions: None, max_delay_us: None, auto: false };

fn policy(wanted: Wanted) -> Policy {
    Policy::new(&wanted).expect("a possible policy")
}

fn moderator(wanted: Wanted) -> Moderator {
    Moderator::new(policy(wanted), PER_SECOND)
}

/// splitmix64
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % bound
    }

    fn maybe(&mut self, most: u64) -> Option<u64> {
        (self.below(3) > 0).then(|| 1 + self.below(most))
    }
}

/// A device that completes requests, and a reader that sleeps again some time after it was notified.
struct Simulation {
    random: Random,
    moderator: Moderator,
    spacing: u64,
    longest: u64,
    now: u64,
    in_flight: u32,
    /// When each was published that the reader does not know of.
    unseen: Vec<u64>,
    asleep: bool,
    wakes_at: u64,
    last_notified: Option<u64>,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let auto = random.below(4) == 0;
        let wanted = Wanted {
            max_rate: random.maybe(200_000),
            min_completions: if auto { None } else { random.maybe(64) },
            max_delay_us: random.maybe(500),
            auto,
        };
        let wanted = if wanted == NONE { Wanted { max_rate: Some(1_000), ..wanted } } else { wanted };
        let usual = if auto { AUTO_DELAY } else { USUAL_DELAY };
        let delay = wanted.max_delay_us.map_or(usual, |delay_us| delay_us * US);
        let spacing = wanted.max_rate.map_or(0, |rate| PER_SECOND.div_ceil(rate));
        let (now, in_flight) = (random.below(PER_SECOND), 0);
        let moderator = moderator(wanted);
        Self {
            random,
            moderator,
            spacing,
            longest: delay.max(spacing),
            now,
            in_flight,
            unseen: Vec::new(),
            asleep: true,
            wakes_at: 0,
            last_notified: None,
        }
    }

    fn ask(&mut self, count: u32) {
        if !self.asleep {
            return self.moderator.reader_is_awake(count);
        }
        if self.moderator.reader_sleeps(self.now, count, self.in_flight) {
            if let Some(last) = self.last_notified {
                assert!(self.now - last >= self.spacing, "{} after the last: {:?}", self.now - last, self.moderator);
            }
            self.last_notified = Some(self.now);
            let late = self.unseen.drain(..).map(|published| self.now - published).max().unwrap_or(0);
            assert!(late <= self.longest, "{late} late, and at most {}: {:?}", self.longest, self.moderator);
            self.asleep = false;
            self.wakes_at = self.now + 1 + self.random.below(40 * US);
        } else {
            let due = self.moderator.due().expect("what is held back has a time");
            assert!(due > self.now, "{:?} at {}", self.moderator, self.now);
        }
    }

    fn step(&mut self) {
        let mut next = self.now + 1 + self.random.below(60 * US);
        if !self.asleep {
            next = next.min(self.wakes_at);
        }
        if let Some(due) = self.moderator.due().filter(|due| *due <= next) {
            self.now = due;
            return self.ask(0);
        }
        self.now = next;
        if !self.asleep && next == self.wakes_at {
            // It took what is there, submits more, and sleeps.
            self.unseen.clear();
            self.asleep = true;
            self.in_flight += u32::try_from(self.random.below(33)).expect("few");
            return;
        }
        let done = u32::try_from(self.random.below(9)).expect("few").min(self.in_flight);
        if done > 0 {
            self.in_flight -= done;
            if self.asleep {
                self.unseen.extend((0..done).map(|_| self.now));
            }
            self.ask(done);
        } else if self.asleep && self.in_flight == 0 && self.moderator.due().is_none() {
            assert!(self.unseen.is_empty(), "nothing else will come, and the reader sleeps: {:?}", self.moderator);
            self.in_flight = 1 + u32::try_from(self.random.below(32)).expect("few");
        }
    }
}

#[test]
fn rate_and_delay_hold_for_any_policy_and_load_and_nothing_is_lost() {
    for seed in 0..400 {
        let mut simulation = Simulation::new(seed);
        (0..3000).for_each(|_| simulation.step());
        assert!(simulation.last_notified.is_some(), "seed {seed}");
    }
}

#[test]
fn no_more_is_waited_for_than_is_in_flight() {
    let mut moderator = moderator(Wanted { min_completions: Some(32), ..NONE });
    assert!(!moderator.reader_sleeps(0, 1, 3));
    assert_eq!(moderator.due(), Some(USUAL_DELAY));
    assert!(!moderator.reader_sleeps(10, 2, 1));
    assert!(moderator.reader_sleeps(20, 1, 0), "the last one");
    assert_eq!(moderator.due(), None);
    assert!(!moderator.reader_sleeps(30, 31, 9));
    assert!(moderator.reader_sleeps(40, 1, 8), "32");
}

#[test]
fn delay_bounds_the_wait_and_the_rate_takes_precedence() {
    let mut delayed = moderator(Wanted { max_delay_us: Some(20), ..NONE });
    assert!(!delayed.reader_sleeps(5, 100, 1));
    assert_eq!(delayed.due(), Some(5 + 20 * US));
    assert!(!delayed.reader_sleeps(4 + 20 * US, 100, 1));
    assert!(delayed.reader_sleeps(5 + 20 * US, 0, 1));
    let mut limited = moderator(Wanted { max_rate: Some(1_000), max_delay_us: Some(20), ..NONE });
    assert!(limited.reader_sleeps(0, 1, 0));
    assert!(!limited.reader_sleeps(1, 1, 0));
    assert_eq!(limited.due(), Some(1_000 * US), "not 20 us");
    assert_eq!(limited.policy().delay_of_rate(), Some(std::time::Duration::from_millis(1)));
    assert_eq!(policy(Wanted { max_rate: Some(50_000), max_delay_us: Some(20), ..NONE }).delay_of_rate(), None);
}

#[test]
fn reader_that_woke_by_itself_is_not_notified() {
    let mut moderator = moderator(Wanted { max_rate: Some(1_000), ..NONE });
    assert!(moderator.reader_sleeps(0, 1, 0));
    assert!(!moderator.reader_sleeps(1, 1, 0));
    moderator.reader_is_awake(0);
    assert_eq!(moderator.due(), None);
}

#[test]
fn another_policy_counts_from_the_last_notification_and_knows_what_is_held() {
    let mut moderator = moderator(Wanted { max_rate: Some(1), ..NONE });
    assert!(moderator.reader_sleeps(0, 1, 0));
    assert!(!moderator.reader_sleeps(1, 1, 0));
    moderator.set_policy(policy(Wanted { max_rate: Some(1_000), ..NONE }), PER_SECOND);
    assert!(!moderator.reader_sleeps(2, 0, 0));
    assert_eq!(moderator.due(), Some(1_000 * US));
}

#[test]
fn auto_gathers_what_comes_fast_and_nothing_else() {
    let mut auto = moderator(Wanted { auto: true, ..NONE });
    let mut now = PER_SECOND;
    for _ in 0..100 {
        assert!(auto.reader_sleeps(now, 1, 0), "nothing else is in flight");
        now += 10 * US;
    }
    // 20 completions per delay, and 7 more in flight: half of all are waited for, which is 6 of 13; and none now and then, to compare.
    let mut notified = 0;
    for _ in 0..4_000_000 {
        now += USUAL_DELAY / 20;
        notified += u32::from(auto.reader_sleeps(now, 1, 7));
    }
    assert!((660_000..880_000).contains(&notified), "{notified}");
    // One per millisecond, whatever is in flight.
    for step in 0..100 {
        now += 1_000 * US;
        assert!(auto.reader_sleeps(now, 1, 100) || step < 2);
    }
}

/// Completions, each `with` us after the last, or `without` us while they are not held back, for 10 s: notifications for each
/// hundred of them.
fn notified_percent(with_us: u64, without_us: u64) -> u64 {
    let mut auto = moderator(Wanted { auto: true, ..NONE });
    let (mut now, mut completions, mut notified, mut is_held) = (PER_SECOND, 0, 0, true);
    while now < 11 * PER_SECOND {
        now += if is_held { with_us } else { without_us } * US;
        completions += 1;
        let rings = auto.reader_sleeps(now, 1, 31);
        // Gathering holds back all but every eighth at least.
        is_held = !rings || is_held && completions % 8 != 0;
        notified += u64::from(rings);
    }
    notified * 100 / completions
}

#[test]
fn auto_gathers_requests_of_a_mebibyte_and_not_those_that_come_once_in_its_delay() {
    for (between_us, percent) in [(75, 0..35), (301, 90..101)] {
        let found = notified_percent(between_us, between_us);
        assert!(percent.contains(&found), "one in {between_us} us: {found} %");
    }
}

#[test]
fn auto_gathers_unless_that_costs_completions() {
    assert!(notified_percent(4, 4) < 15, "as fast either way: {}", notified_percent(4, 4));
    assert!(notified_percent(3, 4) < 15, "faster: {}", notified_percent(3, 4));
    assert!(notified_percent(4, 3) > 90, "slower: {}", notified_percent(4, 3));
}

#[test]
fn auto_gathers_fewer_where_many_cost_completions() {
    let mut auto = moderator(Wanted { auto: true, ..NONE });
    let (mut now, mut completions, mut notified, mut held) = (PER_SECOND, 0, 0, 0);
    while now < 11 * PER_SECOND {
        // Of 31 in flight, half are 31 and a quarter are 11 at the time of the notification, with those that are held back.
        now += if held >= 11 { 5 } else { 3 } * US;
        completions += 1;
        let rings = auto.reader_sleeps(now, 1, 31);
        held = if rings { 0 } else { held + 1 };
        notified += u64::from(rings);
    }
    let percent = notified * 100 / completions;
    assert!((8..15).contains(&percent), "a quarter, not half or none: {percent}");
}

#[test]
fn auto_parts_nothing_that_comes_at_once() {
    let mut auto = moderator(Wanted { auto: true, ..NONE });
    let (mut now, mut first, mut all) = (PER_SECOND, 0, 0);
    while now < 3 * PER_SECOND {
        // A worker that takes 56 requests at most, of 128: the reader can send new ones while it serves the others.
        for (nth, (count, to_come)) in [(56, 72), (56, 16), (16, 0)].into_iter().enumerate() {
            now += u64::from(count) * US / 2;
            let rings = auto.reader_sleeps(now, count, to_come);
            first += u32::from(rings && nth == 0);
        }
        all += 1;
    }
    assert!(first * 100 >= all * 95, "56 of 128 are nearer to half of them than 112: {first} of {all}");
}

#[test]
fn policies_are_read_from_options() {
    let parse = |text: &str| text.parse::<Policy>();
    let wanted = Wanted { max_rate: Some(9), max_delay_us: Some(50), ..NONE };
    assert_eq!(parse("max_rate=9,max_delay_us=50"), Ok(policy(wanted)));
    assert_eq!(parse("auto"), Ok(policy(Wanted { auto: true, ..NONE })));
    for (wrong, what) in [("", "write auto"), ("auto=1", "write auto"), ("rate=1", "write auto"), ("max_rate=x", "max_rate=100")]
    {
        let text = parse(wrong).expect_err(wrong);
        assert!(text.contains(what), "{text}");
    }
}

#[test]
fn impossible_policies_are_refused_with_what_is_possible() {
    let says = |wanted: Wanted, what: &str| {
        let text = Policy::new(&wanted).expect_err(what);
        assert!(text.contains(what), "{text}");
    };
    for max_rate in [0, u64::from(MAX_RATE) + 1, u64::MAX] {
        says(Wanted { max_rate: Some(max_rate), ..NONE }, "use 1 to 10000000");
    }
    for min_completions in [0, u64::from(MAX_COMPLETIONS) + 1, u64::MAX] {
        says(Wanted { min_completions: Some(min_completions), ..NONE }, "use 1 to 4096");
    }
    for max_delay_us in [0, 1_000_001, u64::MAX] {
        says(Wanted { max_delay_us: Some(max_delay_us), ..NONE }, "use 1 us to 1 s");
    }
    says(Wanted { auto: true, min_completions: Some(2), ..NONE }, "leave out");
    says(NONE, "nothing is set");
    let most =
        Wanted { max_rate: Some(MAX_RATE.into()), min_completions: Some(4096), max_delay_us: Some(1_000_000), auto: false };
    assert_eq!(policy(most).wanted(), most);
}
