//! What is configured: when a sleeping reader is notified.

use core::fmt;
use core::str::FromStr;
use std::time::Duration;

/// Notifications per second at most.
pub const MAX_RATE: u32 = 10_000_000;
/// A ring has no more messages outstanding.
pub const MAX_COMPLETIONS: u32 = 4096;
pub const MAX_DELAY: Duration = Duration::from_secs(1);
/// Where completions are to gather and no delay is said.
const USUAL_DELAY: Duration = Duration::from_micros(100);
/// The same for `auto`, which waits for so long only where as many completions as it waits for usually come within it.
const AUTO_DELAY: Duration = Duration::from_micros(300);

/// When a sleeping reader is notified. Without a policy it is at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Most notifications per second. It takes precedence over `max_delay`.
    max_rate: Option<u32>,
    /// So many completions are worth a notification. No more are waited for than are in flight.
    min_completions: Option<u32>,
    /// What fewer completions wait at most.
    max_delay: Option<Duration>,
    /// Rate and occupancy decide how many completions are waited for.
    auto: bool,
}

/// What was asked for, as it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    pub max_rate: Option<u64>,
    pub min_completions: Option<u64>,
    pub max_delay_us: Option<u64>,
    pub auto: bool,
}

impl Policy {
    /// # Errors
    /// Nothing is asked for, or something impossible; in words.
    pub fn new(wanted: &Wanted) -> Result<Self, String> {
        let &Wanted { max_rate, min_completions, max_delay_us, auto } = wanted;
        if auto && min_completions.is_some() {
            return Err(
                "auto decides how many completions are waited for; leave out the minimum of completions, or auto".to_owned()
            );
        }
        if wanted == &Wanted::default() {
            return Err("nothing is set; name a maximum rate, a minimum of completions, a maximum delay, or auto".to_owned());
        }
        let within = |what: &str, value: Option<u64>, most: u32| match value.map(u32::try_from) {
            None => Ok(None),
            Some(Ok(value)) if (1..=most).contains(&value) => Ok(Some(value)),
            _ => Err(format!("{what} of {} is not possible; use 1 to {most}", value.unwrap_or_default())),
        };
        let max_delay = max_delay_us.map(Duration::from_micros);
        if let Some(delay) = max_delay.filter(|delay| delay.is_zero() || *delay > MAX_DELAY) {
            return Err(format!("a maximum delay of {} is not possible; use 1 us to 1 s", shown(delay)));
        }
        Ok(Self {
            max_rate: within("a maximum rate", max_rate, MAX_RATE)?,
            min_completions: within("a minimum of completions", min_completions, MAX_COMPLETIONS)?,
            max_delay,
            auto,
        })
    }

    /// The same as it was asked for.
    pub fn wanted(&self) -> Wanted {
        Wanted {
            max_rate: self.max_rate.map(u64::from),
            min_completions: self.min_completions.map(u64::from),
            max_delay_us: self.max_delay.and_then(|delay| u64::try_from(delay.as_micros()).ok()),
            auto: self.auto,
        }
    }

    pub const fn max_rate(&self) -> Option<u32> {
        self.max_rate
    }

    pub const fn is_auto(&self) -> bool {
        self.auto
    }

    /// How many completions are waited for, unless rate and occupancy decide. Without a number, a delay alone is waited.
    pub(super) fn least_completions(&self) -> u32 {
        self.min_completions.unwrap_or(if self.max_delay.is_some() { u32::MAX } else { 1 })
    }

    /// How long they are waited for.
    pub(super) fn gathering(&self) -> Duration {
        self.max_delay.unwrap_or(if self.auto { AUTO_DELAY } else { USUAL_DELAY })
    }

    /// The least time between two notifications, if the maximum rate makes it longer than the maximum delay: the rate takes
    /// precedence then.
    pub fn delay_of_rate(&self) -> Option<Duration> {
        let spacing = self.max_rate.map(|rate| Duration::from_secs(1) / rate)?;
        self.max_delay.filter(|delay| *delay < spacing).map(|_| spacing)
    }
}

/// As options have it: `auto`, `max_rate=10000`, `min_completions=8`, `max_delay_us=50`, with commas between them.
impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut wanted = Wanted::default();
        for part in text.split(',') {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let number = || {
                let example = format!("'{part}' is not possible; write {key}= and a whole number, for example {key}=100");
                value.parse().map(Some).map_err(|_| example)
            };
            match key {
                "auto" if value.is_empty() => wanted.auto = true,
                "max_rate" => wanted.max_rate = number()?,
                "min_completions" => wanted.min_completions = number()?,
                "max_delay_us" => wanted.max_delay_us = number()?,
                _ => {
                    return Err(format!(
                        "'{part}' is not possible; write auto, max_rate=N, min_completions=N, max_delay_us=N, with commas between them"
                    ));
                }
            }
        }
        Self::new(&wanted)
    }
}

/// As the options take it.
fn shown(delay: Duration) -> String {
    match delay.as_micros() {
        us if us > 0 && us.is_multiple_of(1_000_000) => format!("{}s", us / 1_000_000),
        us if us > 0 && us.is_multiple_of(1_000) => format!("{}ms", us / 1_000),
        us => format!("{us}us"),
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.auto.then(|| "auto".to_owned()),
            self.max_rate.map(|rate| format!("at most {rate}/s")),
            self.min_completions.map(|count| format!("at least {count} completions")),
            self.max_delay.map(|delay| format!("at most {} late", shown(delay))),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}
