//! What is claimed, and whether a run bears it out.

use std::cmp::Ordering;

use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    pub text: String,
    /// `None`: was not measured.
    pub value: Option<f64>,
    /// Part of what is claimed.
    pub limit: f64,
    /// Is more worse?
    pub at_most: bool,
}

impl Claim {
    pub fn at_most(limit: f64, text: impl Into<String>, value: Option<f64>) -> Self {
        Self { text: text.into(), value, limit, at_most: true }
    }

    pub fn at_least(limit: f64, text: impl Into<String>, value: Option<f64>) -> Self {
        Self { text: text.into(), value, limit, at_most: false }
    }

    /// Not even the least of several is less than `limit`; which it is becomes part of the text. All must have been measured.
    pub fn all_at_least(limit: f64, text: &str, values: impl IntoIterator<Item = (String, Option<f64>)>) -> Self {
        let (which, value) = nearest(values, "least", |a, b| a.total_cmp(b));
        Self::at_least(limit, format!("{text}{which}"), value)
    }

    /// Likewise, not even the most is more.
    pub fn all_at_most(limit: f64, text: &str, values: impl IntoIterator<Item = (String, Option<f64>)>) -> Self {
        let (which, value) = nearest(values, "most", |a, b| b.total_cmp(a));
        Self::at_most(limit, format!("{text}{which}"), value)
    }

    /// What is not a number was not measured.
    fn measured(&self) -> Option<f64> {
        self.value.filter(|value| !value.is_nan())
    }

    /// Does the run bear it out? The limit itself does.
    pub fn holds(&self) -> Option<bool> {
        self.measured().map(|value| if self.at_most { value <= self.limit } else { value >= self.limit })
    }

    pub fn verdict(&self) -> &'static str {
        match self.holds() {
            Some(true) => "holds",
            Some(false) => "does not hold",
            None => "not measured",
        }
    }

    pub fn to_json(&self) -> Value {
        let (value, holds) = (self.measured(), self.holds());
        json!({ "claim": self.text, "value": value, "limit": self.limit, "at_most": self.at_most, "holds": holds })
    }
}

/// The first one in this order, and its name in words; nothing if one is missing.
fn nearest(
    values: impl IntoIterator<Item = (String, Option<f64>)>,
    word: &str,
    order: impl Fn(&f64, &f64) -> Ordering,
) -> (String, Option<f64>) {
    let all: Option<Vec<(String, f64)>> = values.into_iter().map(|(name, value)| Some((name, value?))).collect();
    let found = all.unwrap_or_default().into_iter().min_by(|a, b| order(&a.1, &b.1));
    found.map_or((String::new(), None), |(name, value)| (format!(" ({word}: {name})"), Some(value)))
}

pub fn table(claims: &[Claim]) -> String {
    let line = |claim: &Claim| {
        let sign = if claim.at_most { "<=" } else { ">=" };
        let value = claim.measured().map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
        format!("{:<92} {value:>14} {sign} {:<10} {}\n", claim.text, claim.limit, claim.verdict())
    };
    claims.iter().map(line).collect()
}

/// The same for a document.
pub fn markdown(claims: &[Claim]) -> String {
    let line = |claim: &Claim| {
        let words = if claim.at_most { "at most" } else { "at least" };
        let value = claim.measured().map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
        let text = claim.text.replace('|', "\\|");
        format!("| {text} | {words} {} | {value} | {} |\n", claim.limit, claim.verdict())
    };
    let head = "| claim | limit | measured | |\n|---|---|---|---|\n";
    head.to_owned() + &claims.iter().map(line).collect::<String>()
}

pub fn to_json(claims: &[Claim]) -> Value {
    claims.iter().map(Claim::to_json).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_holds_at_its_limit_and_says_when_nothing_was_measured() {
        let at_most = |value| Claim::at_most(2.0, "x", value).holds();
        let at_least = |value| Claim::at_least(2.0, "x", value).holds();
        assert_eq!((at_most(Some(2.0)), at_least(Some(2.0))), (Some(true), Some(true)));
        assert_eq!((at_most(Some(2.1)), at_least(Some(1.9))), (Some(false), Some(false)));
        assert_eq!((at_most(None), at_least(Some(f64::NAN))), (None, None));
        let text = table(&[Claim::at_most(2.0, "x", Some(2.1)), Claim::at_least(2.0, "y", None)]);
        assert!(text.contains("2.100 <= 2") && text.contains("does not hold") && text.contains("not measured"), "{text}");
        let text = markdown(&[Claim::at_most(2.0, "x", Some(2.1)), Claim::at_least(2.0, "y", None)]);
        assert!(text.ends_with("| x | at most 2 | 2.100 | does not hold |\n| y | at least 2 | - | not measured |\n"), "{text}");
    }

    #[test]
    fn the_nearest_decides_and_one_that_is_missing_leaves_it_open() {
        let values = |b| [("a".to_owned(), Some(9.0)), ("b".to_owned(), b)];
        let claim = Claim::all_at_least(7.0, "peers", values(Some(6.0)));
        assert_eq!((claim.holds(), claim.text.as_str()), (Some(false), "peers (least: b)"));
        assert_eq!(Claim::all_at_least(7.0, "peers", values(None)).holds(), None);
        let claim = Claim::all_at_most(7.0, "peers", values(Some(6.0)));
        assert_eq!((claim.holds(), claim.text.as_str()), (Some(false), "peers (most: a)"));
        assert_eq!(Claim::all_at_most(7.0, "peers", values(None)).holds(), None);
    }
}
