//! Why a scenario cannot run.

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
