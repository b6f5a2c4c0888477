//! What is on the screen, and what keys do to it. Nothing here asks the daemon or touches the terminal.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell as TableCell, Paragraph, Row as TableRow, Table};

use super::model::{Choice, Row, View};

const KEYS: &str = "Tab view  < > sort by  r reverse  / filter  Up Down scroll  p pause  q quit";
/// Between two columns.
const SPACE: u16 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Goes,
    Quit,
}

pub(super) struct Screen {
    pub(super) view: View,
    choices: [Choice; View::ALL.len()],
    /// First row shown.
    offset: usize,
    /// A filter that is being typed.
    typed: Option<String>,
    pub(super) is_paused: bool,
}

impl Screen {
    pub(super) fn new(view: View, first: Option<&Choice>) -> Self {
        let mut choices = View::ALL.map(|view| Choice { sort: view.usual_sort(), ..Choice::default() });
        if let Some(first) = first {
            choices[view as usize] = first.clone();
        }
        Self { view, choices, offset: 0, typed: None, is_paused: false }
    }

    pub(super) fn choice(&self) -> Choice {
        let mut choice = self.choices[self.view as usize].clone();
        if let Some(typed) = &self.typed {
            choice.filter.clone_from(typed);
        }
        choice
    }

    pub(super) fn key(&mut self, key: KeyEvent) -> Outcome {
        if key.kind == KeyEventKind::Release {
            return Outcome::Goes;
        }
        // In raw mode it is no signal.
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return Outcome::Quit;
        }
        if let Some(typed) = &mut self.typed {
            match key.code {
                KeyCode::Char(letter) => typed.push(letter),
                KeyCode::Backspace => _ = typed.pop(),
                KeyCode::Enter => self.choices[self.view as usize].filter = self.typed.take().unwrap_or_default(),
                KeyCode::Esc => self.typed = None,
                _ => {}
            }
            self.offset = 0;
            return Outcome::Goes;
        }
        let columns = self.view.headings().len();
        let choice = &mut self.choices[self.view as usize];
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return Outcome::Quit,
            KeyCode::Char('<' | ',') | KeyCode::Left => choice.sort = choice.sort.saturating_sub(1),
            KeyCode::Char('>' | '.') | KeyCode::Right => choice.sort = (choice.sort + 1).min(columns - 1),
            KeyCode::Char('r') => choice.reversed = !choice.reversed,
            KeyCode::Char('/') => self.typed = Some(choice.filter.clone()),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(View::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='4') => self.turn_to(View::ALL[digit as usize - '1' as usize]),
            KeyCode::Up | KeyCode::Char('k') => self.offset = self.offset.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.offset = self.offset.saturating_add(1),
            KeyCode::PageUp => self.offset = self.offset.saturating_sub(10),
            KeyCode::PageDown => self.offset = self.offset.saturating_add(10),
            KeyCode::Home => self.offset = 0,
            _ => {}
        }
        Outcome::Goes
    }

    fn turn(&mut self, by: usize) {
        self.turn_to(View::ALL[(self.view as usize + by) % View::ALL.len()]);
    }

    const fn turn_to(&mut self, view: View) {
        self.view = view;
        self.offset = 0;
    }

    /// `about`: the daemon, or why it does not answer.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>, rows: &[Row], about: &str) {
        let [top, table, bottom] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        frame.render_widget(self.header(about), top);
        self.draw_rows(frame, table, rows);
        frame.render_widget(Paragraph::new(self.footer(rows.len())).style(Style::new().add_modifier(Modifier::DIM)), bottom);
    }

    fn header(&self, about: &str) -> Line<'static> {
        let tabs = View::ALL.into_iter().flat_map(|view| {
            let style = if view == self.view { Modifier::REVERSED } else { Modifier::empty() };
            [Span::styled(format!(" {} ", view.name()), style), Span::raw(" ")]
        });
        tabs.chain([Span::raw(about.to_owned())]).collect()
    }

    fn footer(&self, rows: usize) -> String {
        let filter = &self.choices[self.view as usize].filter;
        match &self.typed {
            Some(typed) => format!("filter: {typed}_  (Enter keeps it, Esc does not)"),
            None if self.is_paused => "paused: p goes on".to_owned(),
            None if !filter.is_empty() => format!("{rows} with '{filter}' in a name  {KEYS}"),
            None => KEYS.to_owned(),
        }
    }

    fn draw_rows(&mut self, frame: &mut Frame<'_>, area: Rect, rows: &[Row]) {
        let visible = usize::from(area.height.saturating_sub(1));
        self.offset = self.offset.min(rows.len().saturating_sub(visible));
        let shown: Vec<Vec<String>> =
            rows.iter().skip(self.offset).take(visible).map(|row| row.iter().map(|cell| cell.shown()).collect()).collect();
        let choice = self.choice();
        let headings = self.view.headings().iter().enumerate().map(|(index, heading)| {
            let mark = if index == choice.sort { if choice.reversed { "^" } else { "v" } } else { "" };
            format!("{heading}{mark}")
        });
        let headings: Vec<String> = headings.collect();
        let widths = widths(&headings, &shown, area.width);
        let names = self.view.names();
        let aligned = |row: Vec<String>, sorted: bool| {
            let cells = row.into_iter().take(widths.len()).enumerate().map(move |(index, text)| {
                let side = if index < names { Alignment::Left } else { Alignment::Right };
                let style = if sorted && index == choice.sort { Modifier::BOLD } else { Modifier::empty() };
                TableCell::from(Text::from(text).alignment(side)).style(style)
            });
            TableRow::new(cells.collect::<Vec<_>>())
        };
        let header = aligned(headings, true).style(Modifier::UNDERLINED);
        let rows = shown.into_iter().map(|row| aligned(row, false));
        let columns = widths.iter().map(|width| Constraint::Length(*width));
        frame.render_widget(Table::new(rows, columns).header(header).column_spacing(SPACE), area);
    }
}

/// As wide as what is in them. Columns on the right that have no room are left out; the first is always there.
fn widths(headings: &[String], rows: &[Vec<String>], room: u16) -> Vec<u16> {
    let mut used = 0_u16;
    let mut widths = Vec::new();
    for (index, heading) in headings.iter().enumerate() {
        let cells = rows.iter().filter_map(|row| row.get(index)).chain([heading]);
        let width = cells.map(|text| text.chars().count()).max().unwrap_or(0);
        let width = u16::try_from(width).unwrap_or(u16::MAX);
        let before = if index == 0 { 0 } else { SPACE };
        used = used.saturating_add(width).saturating_add(before);
        if index > 0 && used > room {
            break;
        }
        widths.push(width.min(room));
    }
    widths
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::model::Cell;
    use super::*;

    fn row(name: &str, iops: f64) -> Row {
        let mut row = vec![Cell::Text(name.to_owned()), Cell::Count(1), Cell::Count(2), Cell::Rate(iops)];
        row.resize(View::Disks.headings().len(), Cell::None);
        row
    }

    fn drawn(screen: &mut Screen, (width, height): (u16, u16), rows: &[Row]) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
        terminal.draw(|frame| screen.draw(frame, rows, "up 3 s")).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect()
    }

    fn press(screen: &mut Screen, keys: &[KeyCode]) -> Outcome {
        keys.iter().map(|code| screen.key(KeyEvent::new(*code, KeyModifiers::NONE))).last().expect("a key")
    }

    #[test]
    fn screen_has_views_rows_and_keys() {
        let mut screen = Screen::new(View::Disks, None);
        let lines = drawn(&mut screen, (100, 6), &[row("a", 1500.0), row("longer", 2.0)]);
        assert_eq!(lines[0], " disks   clients   queues   workers   ports  up 3 s");
        assert!(lines[1].starts_with("DISK    CLIENTS  QUEUES   IOPSv  READ/s"), "{lines:?}");
        assert!(lines[2].starts_with("a             1       2  1.50 k       -"), "{lines:?}");
        assert!(lines[3].starts_with("longer        1       2       2       -"), "{lines:?}");
        assert!(lines[5].starts_with("Tab view"), "{lines:?}");
    }

    #[test]
    fn small_terminals_lose_columns_and_rows_and_nothing_else() {
        let rows: Vec<Row> = (0..20_u8).map(|index| row(&index.to_string(), f64::from(index))).collect();
        for width in 0..40 {
            for height in 0..6 {
                let lines = drawn(&mut Screen::new(View::Disks, None), (width, height), &rows);
                assert_eq!(lines.len(), usize::from(height));
            }
        }
        let mut screen = Screen::new(View::Disks, None);
        let lines = drawn(&mut screen, (16, 5), &rows);
        assert_eq!(lines[1..4], ["DISK  CLIENTS", "0           1", "1           1"]);
        press(&mut screen, &[KeyCode::PageDown, KeyCode::Down]);
        assert_eq!(drawn(&mut screen, (16, 5), &rows)[2], "11          1");
        press(&mut screen, &[KeyCode::PageDown; 3]);
        assert_eq!(drawn(&mut screen, (16, 5), &rows)[3], "19          1", "not beyond the last");
        press(&mut screen, &[KeyCode::Up]);
        assert_eq!(drawn(&mut screen, (16, 5), &rows)[3], "18          1");
    }

    #[test]
    fn keys_choose_view_order_and_filter() {
        let mut screen = Screen::new(View::Disks, None);
        assert_eq!(screen.choice(), Choice { sort: View::Disks.usual_sort(), ..Choice::default() });
        press(&mut screen, &[KeyCode::Right, KeyCode::Char('r')]);
        assert_eq!(screen.choice(), Choice { sort: View::Disks.usual_sort() + 1, reversed: true, ..Choice::default() });
        press(&mut screen, &[KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Char('x'), KeyCode::Backspace]);
        assert_eq!(screen.choice().filter, "q", "while it is typed");
        assert_eq!(press(&mut screen, &[KeyCode::Enter]), Outcome::Goes);
        assert!(drawn(&mut screen, (80, 4), &[])[3].starts_with("0 with 'q' in a name"));
        press(&mut screen, &[KeyCode::Char('/'), KeyCode::Char('z'), KeyCode::Esc]);
        assert_eq!(screen.choice().filter, "q", "as it was");
        press(&mut screen, &[KeyCode::Tab]);
        assert_eq!((screen.view, screen.choice().filter.as_str()), (View::Clients, ""), "each view has its own");
        press(&mut screen, &[KeyCode::BackTab, KeyCode::BackTab]);
        assert_eq!(screen.view, View::Ports);
        press(&mut screen, &[KeyCode::Char('3'), KeyCode::Left, KeyCode::Char('<')]);
        assert_eq!((screen.view, screen.choice().sort), (View::Queues, View::Queues.usual_sort() - 2));
        press(&mut screen, &[KeyCode::Char('p')]);
        assert!(screen.is_paused && drawn(&mut screen, (80, 4), &[])[3].starts_with("paused"));
        assert_eq!(press(&mut screen, &[KeyCode::Char('q')]), Outcome::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        press(&mut screen, &[KeyCode::Char('/')]);
        assert_eq!(screen.key(interrupt), Outcome::Quit, "also while a filter is typed");
    }
}
