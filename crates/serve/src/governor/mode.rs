//! How many workers may be used.

use std::fmt;
use std::str::FromStr;

/// What decides how many workers serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing changes: neither the number of workers, nor which queues each has.
    Off,
    /// Always so many; queues are moved between them.
    Fixed(usize),
    /// From the least to the most, by their load.
    Auto { least: usize, most: usize },
}

impl Mode {
    /// By their load, of all workers that there are.
    pub const AUTO: Self = Self::Auto { least: 1, most: usize::MAX };

    /// The least and the most of so many workers that can be used; `None`: the number does not change.
    pub fn bounds(self, usable: usize) -> Option<(usize, usize)> {
        let within = |count: usize| count.clamp(1, usable.max(1));
        match self {
            Self::Off => None,
            Self::Fixed(count) => Some((within(count), within(count))),
            Self::Auto { least, most } => Some((within(least), within(most))),
        }
    }

    /// The most workers that it names; `None`: as many as there are.
    pub const fn most(self) -> Option<usize> {
        match self {
            Self::Off | Self::Auto { most: usize::MAX, .. } => None,
            Self::Fixed(most) | Self::Auto { most, .. } => Some(most),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Fixed(count) => write!(f, "{count}"),
            &Self::AUTO => f.write_str("auto"),
            Self::Auto { least, most } => write!(f, "{least}..{most}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAMode;

impl fmt::Display for NotAMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write an integer, for example 2, a range from the least to the most, for example 1..4, or auto")
    }
}

impl std::error::Error for NotAMode {}

impl FromStr for Mode {
    type Err = NotAMode;

    fn from_str(text: &str) -> Result<Self, NotAMode> {
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| NotAMode);
        match (text.trim(), text.split_once("..")) {
            ("off", _) => Ok(Self::Off),
            ("auto", _) => Ok(Self::AUTO),
            (_, Some((least, most))) => {
                let (least, most) = (number(least)?, number(most)?);
                if least <= most { Ok(Self::Auto { least, most }) } else { Err(NotAMode) }
            }
            (count, None) => number(count).map(Self::Fixed),
        }
    }
}
