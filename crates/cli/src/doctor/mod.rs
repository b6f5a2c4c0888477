//! `fipsee doctor`: checks of the machine, the configuration and the daemon, with advice.

mod choices;
mod daemon;
mod kernel;
mod limits;
mod machine;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::Error;
use crate::output;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line begins with ok, warn (it works; it would be faster or safer otherwise) or fail (something will not work). The exit code is 0 \
when nothing fails. Run it as the user of the daemon, or as root: others see less.")]
pub(crate) struct Arguments {
    /// Print JSON: {"checks": [{"area", "check", "state", "found", "advice"}], "failed", "warned"}
    #[arg(long)]
    json: bool,
    /// Check this configuration of fipseed, and its disks
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Look at copies of another machine's /proc and /sys below DIR, and at no daemon
    #[arg(long, value_name = "DIR", conflicts_with = "config")]
    root: Option<PathBuf>,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ok,
    Warn,
    Fail,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    area: &'static str,
    /// The subject of the check.
    check: String,
    state: State,
    /// The finding.
    found: String,
    /// The change to make, or empty.
    advice: String,
}

impl Finding {
    fn new(area: &'static str, check: &str, state: State, found: impl Into<String>, advice: &str) -> Self {
        let advice = if state == State::Ok { "" } else { advice };
        Self { area, check: check.to_owned(), state, found: found.into(), advice: advice.to_owned() }
    }

    /// `Ok`, or else `otherwise`.
    fn when(area: &'static str, check: &str, is_fine: bool, otherwise: State, found: impl Into<String>, advice: &str) -> Self {
        Self::new(area, check, if is_fine { State::Ok } else { otherwise }, found, advice)
    }

    fn to_json(&self) -> Value {
        json!({ "area": self.area, "check": self.check, "state": self.state.name(), "found": self.found, "advice": self.advice })
    }

    fn line(&self) -> String {
        let Self { check, found, advice, .. } = self;
        let advice = if advice.is_empty() { String::new() } else { format!("; {advice}") };
        format!("{:<4}  {check}: {found}{advice}\n", self.state.name())
    }
}

/// A machine's `/proc` and `/sys`, or copies of them.
#[derive(Clone, Copy, Debug)]
struct Root<'a>(&'a Path);

impl Root<'_> {
    /// The content of a file, trimmed.
    fn text(self, file: &str) -> Option<String> {
        std::fs::read_to_string(self.0.join(file)).ok().map(|text| text.trim().to_owned())
    }

    fn number(self, file: &str) -> Option<u64> {
        self.text(file)?.parse().ok()
    }

    /// The value in brackets of a switch with several positions, `a [b] c`.
    fn chosen(self, file: &str) -> Option<String> {
        let text = self.text(file)?;
        Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
    }

    /// The text after `name` at the start of a line.
    fn field(self, file: &str, name: &str) -> Option<String> {
        let text = self.text(file)?;
        text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim_start_matches([':', '\t', ' ']).to_owned()))
    }
}

/// `is_named`: the user named the socket, so a daemon must be there.
pub(crate) fn run(socket: &Path, is_named: bool, arguments: &Arguments) -> Result<(), Error> {
    let root = Root(arguments.root.as_deref().unwrap_or(Path::new("/")));
    let mut findings = Vec::new();
    // Another machine's files do not identify its CPU.
    if arguments.root.is_none() {
        findings.push(choices::look());
    }
    findings.extend(machine::look(root));
    findings.extend(kernel::look(root));
    if arguments.root.is_none() {
        findings.extend(daemon::look(root, socket, is_named));
        if let Some(file) = &arguments.config {
            findings.extend(daemon::look_at_configuration(file));
        }
    }
    let count = |state| findings.iter().filter(|finding| finding.state == state).count();
    let (failed, warned) = (count(State::Fail), count(State::Warn));
    if arguments.json {
        let checks: Vec<Value> = findings.iter().map(Finding::to_json).collect();
        output::print_json(&json!({ "checks": checks, "failed": failed, "warned": warned }))?;
    } else {
        output::print(&render(&findings))?;
    }
    match failed {
        0 => Ok(()),
        1 => Err("one check failed; change what its line says".into()),
        _ => Err(format!("{failed} checks failed; change what their lines say").into()),
    }
}

fn render(findings: &[Finding]) -> String {
    let mut text = String::new();
    let mut area = "";
    for finding in findings {
        if finding.area != area {
            area = finding.area;
            let gap = if text.is_empty() { "" } else { "\n" };
            text.push_str(&format!("{gap}{area}\n"));
        }
        text.push_str(&finding.line());
    }
    text
}
