//! `fipsee top`: what disks, clients, queues and workers do now, on a screen or as tables.

mod model;
mod screen;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use serde_json::{Value, json};

pub(crate) use self::model::View;
use self::model::{Cell, Choice, Interval};
use self::screen::{Outcome, Screen};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::output::{self, Table};
use crate::{admin, units};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Renew after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = units::parse_seconds, default_value = "1")]
    interval: Duration,
    /// Print one interval as tables, and end; without a terminal every interval is printed so
    #[arg(long)]
    once: bool,
    /// Begin with this view; as tables, print no other
    #[arg(long, value_enum)]
    view: Option<View>,
    /// Sort by the column of this heading, for example iops, p99 or pid [default: the busiest first]
    #[arg(long, value_name = "COLUMN", requires = "view")]
    sort: Option<String>,
    /// Show only what has this in a name: of a disk, or in the number of a client, process or user
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
}

/// An answer of the daemon, and when it came.
type Sample = (Value, Instant);

/// How soon a key is seen to, and a signal noticed.
const TICK: Duration = Duration::from_millis(100);

pub(crate) fn run(socket: &Path, arguments: &Arguments) -> Result<(), Error> {
    let view = arguments.view.unwrap_or(View::Disks);
    let choice = arguments.choice_of(view)?;
    // With its error, before the screen is taken.
    let first = sample(socket)?;
    if arguments.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return print_tables(socket, arguments, first);
    }
    let interrupt = Interrupt::watch(|| {}, ratatui::restore)?;
    let samples = sample_repeatedly(socket.to_owned(), arguments.interval)?;
    // A panic restores the terminal, too.
    let mut terminal = ratatui::try_init().map_err(|error| Error::io("use the terminal", &error))?;
    let shown = Shown { screen: Screen::new(view, Some(&choice)), before: None, now: first, problem: None };
    let outcome = shown.run(&mut terminal, &samples, &interrupt);
    ratatui::restore();
    outcome.map_err(|error| Error::io("use the terminal", &error))?;
    interrupt.signal().map_or(Ok(()), |signal| Err(Error::interrupted(signal, "the screen is restored")))
}

fn sample(socket: &Path) -> Result<Sample, Error> {
    Ok((admin::ask(socket, "stat", &json!({}))?, Instant::now()))
}

/// On a thread of its own: a daemon that does not answer does not keep keys from working.
fn sample_repeatedly(socket: PathBuf, interval: Duration) -> Result<Receiver<Result<Sample, Error>>, Error> {
    let (send, samples) = channel();
    let run = move || {
        loop {
            std::thread::sleep(interval); // tidy: allow sleep, the time between two looks is what the caller asked for
            if send.send(sample(&socket)).is_err() {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("fip-top".to_owned()).spawn(run);
    thread.map(|_| samples).map_err(|error| Error::io("start a thread", &error))
}

struct Shown {
    screen: Screen,
    /// `None`: there is no interval yet.
    before: Option<Sample>,
    now: Sample,
    /// Why there is no newer one.
    problem: Option<Error>,
}

impl Shown {
    fn run(
        mut self,
        terminal: &mut DefaultTerminal,
        samples: &Receiver<Result<Sample, Error>>,
        interrupt: &Interrupt,
    ) -> io::Result<()> {
        loop {
            let rows = self.interval().rows(self.screen.view, &self.screen.choice());
            let about = self.about();
            terminal.draw(|frame| self.screen.draw(frame, &rows, &about))?;
            loop {
                if interrupt.signal().is_some() {
                    return Ok(());
                }
                if event::poll(TICK)? {
                    match event::read()? {
                        Event::Key(key) if self.screen.key(key) == Outcome::Quit => return Ok(()),
                        _ => break,
                    }
                }
                if let Ok(sample) = samples.try_recv() {
                    self.take(sample);
                    break;
                }
            }
        }
    }

    fn take(&mut self, sample: Result<Sample, Error>) {
        match sample {
            Ok(_) if self.screen.is_paused => {}
            Ok(now) => {
                self.before = Some(std::mem::replace(&mut self.now, now));
                self.problem = None;
            }
            Err(problem) => self.problem = Some(problem),
        }
    }

    fn interval(&self) -> Interval<'_> {
        interval(self.before.as_ref().unwrap_or(&self.now), &self.now)
    }

    fn about(&self) -> String {
        match (&self.problem, &self.before) {
            (Some(problem), _) => problem.to_string(),
            (None, None) => "measuring the first interval".to_owned(),
            (None, Some(_)) => format!("up {} s", admin::number(&self.now.0, "uptime_s")),
        }
    }
}

fn interval<'a>(before: &'a Sample, now: &'a Sample) -> Interval<'a> {
    Interval { before: &before.0, now: &now.0, seconds: (now.1 - before.1).as_secs_f64() }
}

impl Arguments {
    fn choice_of(&self, view: View) -> Result<Choice, Error> {
        let sort = self.sort.as_deref().filter(|_| self.view == Some(view));
        let sort = sort.map_or_else(|| Ok(view.usual_sort()), |name| column(view, name))?;
        Ok(Choice { sort, reversed: false, filter: self.filter.clone() })
    }
}

/// The column of this heading, whose unit may be left out.
fn column(view: View, name: &str) -> Result<usize, Error> {
    let is_meant = |heading: &str| {
        let plain = heading.trim_end_matches("/s").trim_end_matches('%');
        [heading, plain].iter().any(|heading| heading.eq_ignore_ascii_case(name))
    };
    view.headings().iter().position(|heading| is_meant(heading)).ok_or_else(|| {
        let headings = view.headings().join(", ").to_lowercase();
        format!("{} have no column '{name}'; sort by one of {headings}", view.name()).into()
    })
}

fn print_tables(socket: &Path, arguments: &Arguments, first: Sample) -> Result<(), Error> {
    let mut before = first;
    loop {
        std::thread::sleep(arguments.interval); // tidy: allow sleep, the time between two looks is what the caller asked for
        let now = sample(socket)?;
        let mut tables = Vec::new();
        // Of a daemon without networks there is no such table, unless it is asked for.
        let has_ports = !interval(&before, &now).rows(View::Ports, &Choice::default()).is_empty();
        let is_wanted = |view: &View| arguments.view.map_or(has_ports || *view != View::Ports, |only| only == *view);
        for view in View::ALL.into_iter().filter(is_wanted) {
            tables.push(table(view, &interval(&before, &now), &arguments.choice_of(view)?));
        }
        output::print(&format!("{}{}", tables.join("\n"), if arguments.once { "" } else { "\n" }))?;
        if arguments.once {
            return Ok(());
        }
        before = now;
    }
}

fn table(view: View, interval: &Interval<'_>, choice: &Choice) -> String {
    let mut table = Table::new(view.names(), view.headings());
    for row in interval.rows(view, choice) {
        table.push(row.iter().map(Cell::shown).collect());
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_their_headings_as_names() {
        assert_eq!(column(View::Disks, "iops").expect("found"), View::Disks.usual_sort());
        assert_eq!(column(View::Workers, "cpu").expect("found"), 1, "the first of the two");
        assert_eq!(column(View::Workers, "CPU%").expect("found"), View::Workers.usual_sort());
        assert_eq!(column(View::Queues, "read").expect("found"), 7);
        let text = column(View::Workers, "p99").expect_err("none").to_string();
        assert!(text.contains("workers have no column 'p99'") && text.contains("worker, cpu, state, queues"), "{text}");
    }
}
