//! Small pieces of the page: tables of Markdown, figures, dates, command lines.

use std::time::{Duration, SystemTime};

/// A table of Markdown; the first `left_columns` are words.
pub(super) fn table(left_columns: usize, headings: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: &mut dyn Iterator<Item = String>| format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
    let escaped = |cell: &String| cell.replace('|', "\\|");
    let mut text = line(&mut headings.iter().map(|heading| (*heading).to_owned()));
    text.push_str(&line(&mut (0..headings.len()).map(|column| if column < left_columns { "---" } else { "---:" }.to_owned())));
    for row in rows {
        text.push_str(&line(&mut row.iter().map(escaped)));
    }
    text
}

/// Cycles of a whole burst, or larger numbers of nanoseconds.
pub(super) fn whole(value: f64) -> String {
    if value.is_finite() { format!("{value:.0}") } else { "-".to_owned() }
}

/// Cycles of a message.
pub(super) fn tenths(value: f64) -> String {
    if value.is_finite() { format!("{value:.1}") } else { "-".to_owned() }
}

/// A ratio.
pub(super) fn hundredths(value: f64) -> String {
    if value.is_finite() { format!("{value:.2}") } else { "-".to_owned() }
}

const DAY_S: u64 = 86_400;

/// A time as `2016-10-27 14:03:59 UTC`.
pub(super) fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (mut days, of_day) = (seconds / DAY_S, seconds % DAY_S);
    let mut year = 1970;
    while days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    let february = days_of_year(year) - 337;
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", days + 1)
}

const fn days_of_year(year: u64) -> u64 {
    if year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400)) { 366 } else { 365 }
}

/// The running command, quoted for a shell.
pub(super) fn command() -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./,=+:@%".contains(character);
    let quoted = |argument: std::ffi::OsString| {
        let argument = argument.to_string_lossy().into_owned();
        let is_plain = !argument.is_empty() && argument.chars().all(plain);
        if is_plain { argument } else { format!("'{}'", argument.replace('\'', "'\\''")) }
    };
    let arguments = std::env::args_os().skip(1).map(quoted);
    std::iter::once("fipsee".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| utc(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(at(951_782_399), "2000-02-28 23:59:59 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00 UTC");
        assert_eq!(at(1_477_577_039), "2016-10-27 14:03:59 UTC");
        assert_eq!(at(4_107_542_400), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn a_table_has_as_many_columns_in_each_line() {
        let text = table(1, &["WHAT", "CYCLES"], &[vec!["a|b".into(), "7".into()]]);
        assert_eq!(text, "| WHAT | CYCLES |\n| --- | ---: |\n| a\\|b | 7 |\n");
    }
}
