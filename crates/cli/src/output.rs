//! Standard output: whole texts at a time, and tables.

use std::io::{self, Write};

use crate::error::Error;

/// Print `text` as it is. A reader that has seen enough (`| head`) ends the program without a word.
pub(crate) fn print(text: &str) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Error::io("write to standard output", &error)),
    }
}

/// Print one JSON value on a line of its own.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<(), Error> {
    print(&format!("{value}\n"))
}

/// Rows under headings. The first `left_columns` are words and left-aligned, the others are numbers and right-aligned.
pub(crate) struct Table {
    left_columns: usize,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(left_columns: usize, headings: &[&str]) -> Self {
        Self { left_columns, rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()] }
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// The text, two spaces between columns.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                if column < self.left_columns { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_left_aligned_and_numbers_right_aligned() {
        let mut table = Table::new(1, &["DISK", "READS"]);
        table.push(vec!["a".into(), "7".into()]);
        table.push(vec!["longer".into(), "123456".into()]);
        assert_eq!(table.render(), "DISK     READS\na            7\nlonger  123456\n");
    }
}
