//! Reading a table of the configuration file key by key, so that a mistake is described in the words of its writer, at its place.

use std::fmt::Display;
use std::ops::Range;

use clap::ValueEnum;
use fipsee_block::disk::spec::parse_size;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Names more alike than this are taken for one that was misspelt: as clap has it for options.
const ALIKE: f64 = 0.7;

/// What is wrong in the file, and where.
#[derive(Debug)]
pub(super) struct Mistake {
    at: Range<usize>,
    text: String,
}

impl Mistake {
    pub(super) fn new(at: Range<usize>, text: impl Into<String>) -> Self {
        Self { at, text: text.into() }
    }

    /// Beginning with what it is about.
    pub(super) fn about(self, what: &str) -> Self {
        Self { text: format!("{what}{}", self.text), ..self }
    }

    /// Of a text that its writer has not seen.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// With line and column, counted from 1, and the line itself.
    pub(super) fn shown(&self, file: &str) -> String {
        let before = file.get(..self.at.start).unwrap_or(file);
        let (line, column) = (before.matches('\n').count() + 1, before.chars().rev().take_while(|c| *c != '\n').count() + 1);
        let shown = file.lines().nth(line - 1).unwrap_or_default();
        let margin = " ".repeat(line.to_string().len());
        let blank = " ".repeat(column - 1);
        let text = &self.text;
        format!("line {line}, column {column}: {text}\n{margin} |\n{line} | {shown}\n{margin} | {blank}^")
    }
}

/// A table, and the keys that it may have.
pub(super) struct Table<'a> {
    entries: &'a DeTable<'a>,
    /// Of its header or brace.
    at: Range<usize>,
    keys: &'static [&'static str],
}

impl<'a> Table<'a> {
    pub(super) const fn new(entries: &'a DeTable<'a>, at: Range<usize>, keys: &'static [&'static str]) -> Self {
        Self { entries, at, keys }
    }

    /// Refuse the first key that is none of this table's; `elsewhere`: keys of other tables, and where those are.
    pub(super) fn check(&self, (elsewhere, where_else): (&[&'static str], &str)) -> Result<(), Mistake> {
        let unknown = self.entries.keys().filter(|key| !self.keys.contains(&key.get_ref().as_ref()));
        let Some(key) = unknown.min_by_key(|key| key.span().start) else { return Ok(()) };
        let name = key.get_ref().as_ref();
        let advice = match alike(name, self.keys) {
            _ if elsewhere.contains(&name) => format!("it belongs {where_else}"),
            Some(other) => format!("did you mean '{other}'?"),
            None => format!("the keys here are {}", self.keys.join(", ")),
        };
        Err(Mistake::new(key.span(), format!("unknown key '{name}'; {advice}")))
    }

    /// The value of a key as `read` understands it, if it is there.
    pub(super) fn take<T>(&self, key: &str, read: impl FnOnce(&DeValue<'a>) -> Result<T, String>) -> Result<Option<T>, Mistake> {
        debug_assert!(self.keys.contains(&key), "{key}");
        let Some(value) = self.entries.get(key) else { return Ok(None) };
        read(value.get_ref()).map(Some).map_err(|text| Mistake::new(value.span(), format!("{key}: {text}")))
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, Mistake> {
        self.take(key, boolean).map(Option::unwrap_or_default)
    }

    /// What is wrong with a key, or without it with the whole table.
    pub(super) fn mistake(&self, key: Option<&str>, text: impl Into<String>) -> Mistake {
        let key = key.and_then(|key| self.entries.get_key_value(key));
        Mistake::new(key.map_or(self.at.clone(), |(key, _)| key.span()), text)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }
}

/// The one of `others` for which `name` was probably meant.
fn alike(name: &str, others: &[&'static str]) -> Option<&'static str> {
    let scored = others.iter().map(|other| (strsim::jaro(name, other), *other)).filter(|(score, _)| *score > ALIKE);
    scored.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, other)| other)
}

/// A value as it is called in messages.
pub(super) fn shown(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{text}\""),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

pub(super) fn text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Array(_) | DeValue::Table(_) => Err(format!("this is {}; write one text in quotes", shown(value))),
        other => Err(format!("write text in quotes: \"{}\"", shown(other))),
    }
}

pub(super) fn boolean(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| format!("{} is not possible; write true or false, without quotes", shown(value)))
}

/// An integer from `least` to `most`.
pub(super) fn integer<T: TryFrom<u64> + PartialOrd + Display>(value: &DeValue<'_>, least: T, most: T) -> Result<T, String> {
    let number = value.as_integer().and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok());
    let number = number.and_then(|number| T::try_from(number).ok()).filter(|number| (&least..=&most).contains(&number));
    let quotes = if value.is_str() { ", without quotes" } else { "" };
    number.ok_or_else(|| format!("{} is not possible; write an integer from {least} to {most}{quotes}", shown(value)))
}

/// Bytes: an integer, or text with a unit.
pub(super) fn size(value: &DeValue<'_>) -> Result<u64, String> {
    match value {
        DeValue::Integer(number) => {
            let bytes = u64::from_str_radix(number.as_str(), number.radix());
            bytes.map_err(|_| format!("{number} is not a size; write bytes, or text with a unit: \"64M\""))
        }
        DeValue::String(text) => parse_size(text),
        other => Err(format!("{} is not a size; write bytes, or text with a unit: \"64M\"", shown(other))),
    }
}

/// One of the values that the option of the command line has.
pub(super) fn choice<T: ValueEnum>(value: &DeValue<'_>) -> Result<T, String> {
    let found = value.as_str().and_then(|text| T::from_str(text, false).ok());
    found.ok_or_else(|| {
        let all = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let all: Vec<String> = all.map(|value| format!("\"{}\"", value.get_name())).collect();
        format!("{} is not possible; use {}", shown(value), all.join(" or "))
    })
}

pub(super) fn list<'a, T>(
    value: &DeValue<'a>,
    example: &str,
    read: impl Fn(&DeValue<'a>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let DeValue::Array(items) = value else {
        return Err(format!("{} is not a list; write brackets around it: {example}", shown(value)));
    };
    items.iter().map(Spanned::get_ref).map(read).collect()
}
