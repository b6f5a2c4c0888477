//! Why a scenario cannot run.

use crate::step::Attempt;

/// Something a scenario needs is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unready {
    /// This machine lacks it: the scenario is skipped.
    Missing(String),
    /// It should be there, and what makes it failed: the scenario fails.
    Broken(String),
}

impl From<String> for Unready {
    fn from(text: String) -> Self {
        Self::Broken(text)
    }
}

impl From<&str> for Unready {
    fn from(text: &str) -> Self {
        Self::Broken(text.to_owned())
    }
}

impl From<Result<String, Unready>> for Attempt {
    fn from(outcome: Result<String, Unready>) -> Self {
        match outcome {
            Ok(remark) => Self::Passed(remark),
            Err(Unready::Missing(reason)) => Self::Skipped(reason),
            Err(Unready::Broken(text)) => Self::Failed(text),
        }
    }
}
