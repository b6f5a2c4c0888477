//! What newcomers do wrong, and what they want to do, from the tables `mistakes.toml` and `tasks.toml`: run with the installed
//! packages in a Debian of its own, as root and as ordinary users. Every message says what to do, nothing is lost, nothing is
//! left behind.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fipsee_acceptance::text_of;
use fipsee_acceptance::throwaway::{PACKAGES, ThrowawayRoot, packages};
use serde::Deserialize;

/// Words of the implementation, which help no user.
const NEVER: [&str; 26] = [
    "panicked",
    "RUST_BACKTRACE",
    "backtrace",
    "unwrap",
    "usize",
    "u16",
    "u32",
    "u64",
    "i64",
    "Errno(",
    "Os {",
    "Some(",
    "Error {",
    "expected a sequence",
    "expected a map",
    "unknown variant",
    "unknown field",
    "missing field",
    "invalid type",
    "invalid digit",
    "float literal",
    "ParseIntError",
    "Duration",
    "untagged enum",
    "Io(",
    "serde",
];

/// How long what an entry has ended may take to be gone.
const SETTLE: Duration = Duration::from_secs(10);

/// `mistakes.toml`, and `tasks.toml`, which has entries only.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    /// Run once by root, after the packages are installed.
    #[serde(default)]
    prepare: String,
    /// Run by root after each entry: prints a line for each file, mount, process and checksum that entries must leave alone.
    #[serde(default)]
    state: String,
    /// Functions for all scripts of entries.
    #[serde(default)]
    helpers: String,
    #[serde(default)]
    setup: BTreeMap<String, Setup>,
    #[serde(default)]
    mistake: Vec<Mistake>,
    #[serde(default)]
    task: Vec<Task>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Setup {
    /// Before the entry, in its shell.
    #[serde(default)]
    before: String,
    #[serde(default)]
    after: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Mistake {
    /// What is wrong.
    what: String,
    user: String,
    setup: Option<String>,
    run: String,
    code: i32,
    /// Words of the message: what was wrong, and what to do. `a|b`: one of them.
    says: Vec<String>,
    /// Words that it does not have, besides [`NEVER`].
    #[serde(default)]
    never: Vec<String>,
    /// Files of the folder that stay, and are removed then.
    #[serde(default)]
    leaves: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Task {
    what: String,
    user: String,
    setup: Option<String>,
    #[serde(default)]
    leaves: Vec<String>,
    /// Other processes are the daemons afterwards, or other files are there for good.
    #[serde(default)]
    changes: bool,
    /// In order, in one shell that ends at the first failure.
    step: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    run: String,
    #[serde(default)]
    prints: Vec<String>,
}

fn table(name: &str) -> Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let text = fs::read_to_string(&path).expect("the table");
    toml::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn mistakes_are_explained_and_tasks_succeed() {
    let packages = packages("mistakes", &PACKAGES);
    if packages.len() < PACKAGES.len() {
        return;
    }
    let Some(root) = ThrowawayRoot::boot("mistakes", &packages) else { return };
    root.install();
    let (table, tasks) = (table("mistakes.toml"), table("tasks.toml"));
    root.succeed(&table.prepare);
    let mut run = TableRun { root: &root, state: state(&root, &table), table: &table, took: Vec::new() };
    // A part of the table, while it is written.
    let only = std::env::var("FIPSEE_MISTAKES").unwrap_or_default();
    let mut failures = Vec::new();
    for mistake in table.mistake.iter().filter(|mistake| mistake.what.contains(&only)) {
        failures.extend(run.make(mistake));
    }
    for task in tasks.task.iter().filter(|task| task.what.contains(&only)) {
        failures.extend(run.carry_out(task));
    }
    run.report_slow();
    assert!(!run.took.is_empty(), "no entry has '{only}' in its name");
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

/// The tables are as large as the project promises, and no entry is there twice.
#[test]
fn tables_are_complete() {
    let (mistakes, tasks) = (table("mistakes.toml"), table("tasks.toml"));
    assert!(mistakes.mistake.len() >= 60 && tasks.task.len() >= 20, "{} and {}", mistakes.mistake.len(), tasks.task.len());
    let mut names: Vec<&str> = mistakes.mistake.iter().map(|entry| &*entry.what).collect();
    names.extend(tasks.task.iter().map(|task| &*task.what));
    names.sort_unstable();
    let twice: Vec<_> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "{twice:?}");
    for user in ["root", "alice"] {
        assert!(mistakes.mistake.iter().filter(|entry| entry.user == user).count() >= 20, "{user}");
    }
    assert!(mistakes.mistake.iter().all(|entry| !entry.says.is_empty()), "an entry says what its message must say");
}

/// Lines about files, mounts, processes and data.
type State = Vec<String>;

/// The entries that were tried, and what they were compared with.
struct TableRun<'a> {
    root: &'a ThrowawayRoot,
    table: &'a Table,
    state: State,
    /// How long each entry took.
    took: Vec<(Duration, String)>,
}

impl TableRun<'_> {
    /// Of many entries some are slow; the whole must not be.
    fn report_slow(&mut self) {
        self.took.sort();
        let total: Duration = self.took.iter().map(|(took, _)| *took).sum();
        eprintln!(
            "{} entries in {total:.1?}; the slowest: {:.1?}",
            self.took.len(),
            self.took.iter().rev().take(5).collect::<Vec<_>>()
        );
    }

    /// What is wrong with the answer to a mistake.
    fn make(&mut self, mistake: &Mistake) -> Option<String> {
        let begin = Instant::now();
        let (printed, code, state) = self.run(&mistake.user, mistake.setup.as_deref(), &mistake.run);
        let mut wrong = Vec::new();
        if code != Some(mistake.code) {
            wrong.push(format!("exit code {code:?}, not {}", mistake.code));
        }
        wrong.extend(judge(&printed, &mistake.says, &mistake.never));
        wrong.extend(self.compare(&mistake.user, &mistake.leaves, state));
        self.took.push((begin.elapsed(), mistake.what.clone()));
        report(&mistake.what, &mistake.user, &mistake.run, &printed, &wrong)
    }

    /// What does not work of a task.
    fn carry_out(&mut self, task: &Task) -> Option<String> {
        let begin = Instant::now();
        let mut body = "set -euo pipefail\n".to_owned();
        for (number, step) in task.step.iter().enumerate() {
            let _ = writeln!(body, "echo; echo '@@ step {number}'\n{}", step.run);
        }
        let (printed, code, state) = self.run(&task.user, task.setup.as_deref(), &body);
        let mut wrong = Vec::new();
        if code != Some(0) {
            wrong.push(format!("exit code {code:?} in the last step named here"));
        }
        for (number, step) in task.step.iter().enumerate() {
            let part = printed.split("@@ step ").find_map(|part| part.strip_prefix(&format!("{number}\n"))).unwrap_or_default();
            wrong.extend(judge(part, &step.prints, &[]).into_iter().map(|text| format!("step {number}: {text}")));
        }
        if task.changes {
            self.state = state;
        } else {
            wrong.extend(self.compare(&task.user, &task.leaves, state));
        }
        self.took.push((begin.elapsed(), task.what.clone()));
        let steps: Vec<&str> = task.step.iter().map(|step| step.run.trim()).collect();
        report(&task.what, &task.user, &steps.join("\n"), &printed, &wrong)
    }

    /// What `body` prints, run by `user` in an empty folder, its exit code, and what is there afterwards.
    fn run(&self, user: &str, setup: Option<&str>, body: &str) -> (String, Option<i32>, State) {
        let none = Setup::default();
        let setup = setup.map_or(&none, |name| self.table.setup.get(name).unwrap_or_else(|| panic!("no set-up '{name}'")));
        // One shell for all: the entry may wait for what its set-up has started.
        let script = format!(
            "cat > /run/entry <<'@@END'\n{}\nafter() {{ {}\n:; }}\n\
             trap 'code=$?; trap - EXIT; set +eu; echo; echo \"@@ code $code\"; after > /dev/null 2>&1' EXIT\n\
             cd ~/place; exec 2>&1; set -e\n{}\nset +e; echo '@@ begin'\n{body}\n@@END\n\
             runuser -u {user} -- timeout --kill-after=2 20 bash /run/entry > /run/entry.out || true\n\
             cat /run/entry.out; echo '@@ state'\n{}",
            self.table.helpers, setup.after, setup.before, self.table.state,
        );
        let output = self.root.run(&script);
        let printed = String::from_utf8_lossy(&output.stdout);
        let (printed, state) = printed.rsplit_once("@@ state\n").unwrap_or((&printed, ""));
        let state = state.lines().map(str::to_owned).collect();
        let ended = printed.split_once("@@ begin\n").and_then(|(_, after)| after.rsplit_once("\n@@ code "));
        match ended {
            Some((printed, code)) => (printed.trim_end().to_owned(), code.trim().parse().ok(), state),
            None => (format!("the set-up fails, or the entry does not end: {}", text_of(&output)), None, state),
        }
    }

    /// What is there that was not, and the reverse; `leaves` may, must and is removed.
    fn compare(&mut self, user: &str, leaves: &[String], mut now: State) -> Vec<String> {
        let folder = format!("/srv/{user}/place");
        let allowed: Vec<String> = leaves.iter().map(|name| format!("file {folder}/{name}")).collect();
        let deadline = Instant::now() + SETTLE;
        let difference = loop {
            let new = now.iter().filter(|line| !self.state.contains(line) && !allowed.contains(line));
            let gone = self.state.iter().filter(|line| !now.contains(line));
            let missing = allowed.iter().filter(|line| !now.contains(line));
            let mut difference: Vec<String> = new.map(|line| format!("left behind: {line}")).collect();
            difference.extend(gone.map(|line| format!("lost: {line}")));
            difference.extend(missing.map(|line| format!("not there: {line}")));
            if difference.is_empty() || Instant::now() > deadline {
                break difference;
            }
            // tidy: allow sleep, the kernel notifies no other process when a mount or a process is gone
            std::thread::sleep(Duration::from_millis(50));
            now = state(self.root, self.table);
        };
        if !difference.is_empty() || !leaves.is_empty() {
            let left = difference.iter().filter_map(|line| line.strip_prefix("left behind: process ")?.split(' ').next());
            let processes = left.collect::<Vec<_>>().join(" ");
            let _ = self
                .root
                .run(&format!("kill -9 {processes} || true; umount --quiet /srv/*/place/* || true; rm -rf /srv/*/place/*"));
        }
        if !difference.is_empty() {
            self.state = state(self.root, self.table);
        }
        difference
    }
}

fn state(root: &ThrowawayRoot, table: &Table) -> State {
    root.succeed(&table.state).lines().map(str::to_owned).collect()
}

/// What is wrong with what a program printed.
fn judge(printed: &str, says: &[String], never: &[String]) -> Vec<String> {
    let mut wrong = Vec::new();
    let lower = printed.to_lowercase();
    for words in says.iter().filter(|words| !words.split('|').any(|word| lower.contains(&word.to_lowercase()))) {
        wrong.push(format!("does not say '{words}'"));
    }
    for word in NEVER.into_iter().chain(never.iter().map(String::as_str)).filter(|word| printed.contains(*word)) {
        wrong.push(format!("says '{word}'"));
    }
    // The number of an error may stand beside words that say what to do, not in their place.
    if printed.lines().any(|line| line.trim_end().ends_with(')') && line.contains("(os error ") && !line.contains(';')) {
        wrong.push("says 'os error' and not what to do".to_owned());
    }
    wrong
}

fn report(what: &str, user: &str, run: &str, printed: &str, wrong: &[String]) -> Option<String> {
    (!wrong.is_empty()).then(|| {
        let indent = |text: &str| text.trim().lines().fold(String::new(), |all, line| all + "    " + line + "\n");
        format!("--- {what} ({user}): {}\n{}  prints:\n{}", wrong.join("; "), indent(run), indent(printed))
    })
}
