//! Standard output: whole texts at a time, and tables.

use std::io::{self, Write};

use comfy_table::CellAlignment;
use comfy_table::presets::NOTHING;

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

/// Rows under headings, two spaces between columns. The first `left_columns` are words and left-aligned, the others are numbers
/// and right-aligned.
pub(crate) struct Table(comfy_table::Table);

impl Table {
    pub(crate) fn new(left_columns: usize, headings: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING).set_header(headings);
        for (index, column) in table.column_iter_mut().enumerate() {
            let alignment = if index < left_columns { CellAlignment::Left } else { CellAlignment::Right };
            column.set_padding((0, 2));
            column.set_cell_alignment(alignment);
        }
        Self(table)
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        self.0.add_row(row);
    }

    pub(crate) fn render(&self) -> String {
        self.0.trim_fmt() + "\n"
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
