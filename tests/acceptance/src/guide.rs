//! The documents that users follow, run as they are.
//!
//! The fences of a page mean:
//!
//! | fence | |
//! |---|---|
//! | `sh` | run by bash, all such blocks of a page in one shell, in order, in an empty directory |
//! | `sh expect="TEXT"` | the same, and what it prints holds TEXT |
//! | `sh fails="TEXT"` | it must fail and print TEXT |
//! | `sh root`, with the others | the same, by root in a Debian that has the packages in `/packages` and is booted for the page |
//! | `sh guests`, with the others | the same, in a network namespace that the page has for itself, beside its [machines](crate::guests) |
//! | `sh guest=NAME`, with the others | the same, in the machine of that name, which an earlier block has started |
//! | `sh elsewhere="FILE"` | not run here; that file of the repository runs it, and words may follow |
//! | `c file=NAME`, any language | written to NAME for later blocks |
//! | `text` and others without `file` | shown, not run |

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::guests::{Guests, typed_in};
use crate::throwaway::{self, ThrowawayRoot};
use crate::{DEADLINE, Scratch, serve, shipped, text_of};

/// One fenced block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Line of the opening fence, from 1.
    pub line: usize,
    /// First word of the fence.
    pub language: String,
    /// `file=NAME`.
    pub file: Option<String>,
    /// `expect="TEXT"`.
    pub expect: Option<String>,
    /// `fails="TEXT"`.
    pub fails: Option<String>,
    /// `elsewhere="FILE"`.
    pub elsewhere: Option<String>,
    /// `root`: run in the throwaway root, where the packages are installed and systemd runs.
    pub in_root: bool,
    /// `guests`: run where the page's machines are.
    pub beside_guests: bool,
    /// `guest=NAME`: run in that machine.
    pub guest: Option<String>,
    /// Its content, each line ended.
    pub body: String,
}

impl Block {
    fn needs_guests(&self) -> bool {
        self.beside_guests || self.guest.is_some()
    }

    /// What the page's shell carries out.
    fn commands(&self) -> Cow<'_, str> {
        self.guest.as_ref().map_or(Cow::Borrowed(&*self.body), |guest| typed_in(guest, &self.body).into())
    }
}

/// The blocks of a page.
///
/// # Errors
/// A fence that says what no fence can say, or is never closed.
pub fn blocks(text: &str) -> Result<Vec<Block>, String> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(info), None) => open = Some(fence(index + 1, info)?),
            (Some(_), Some(block)) => found.push(block),
            (None, Some(mut block)) => {
                block.body.push_str(line);
                block.body.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    match open {
        Some(block) => Err(format!("line {}: the block is never closed", block.line)),
        None => Ok(found),
    }
}

fn fence(line: usize, info: &str) -> Result<Block, String> {
    let (language, mut rest) = info.trim().split_once(' ').unwrap_or((info.trim(), ""));
    let mut block = Block { line, language: language.to_owned(), ..Block::default() };
    while !rest.trim().is_empty() {
        rest = rest.trim_start();
        let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
        let flag = match word {
            "root" => Some(&mut block.in_root),
            "guests" => Some(&mut block.beside_guests),
            _ => None,
        };
        if let Some(flag) = flag {
            (*flag, rest) = (true, after);
            continue;
        }
        let wrong = || format!("line {line}: cannot read the fence from '{rest}' on");
        let (key, value) = rest.split_once('=').ok_or_else(wrong)?;
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').ok_or_else(wrong)?,
            None => value.split_once(' ').unwrap_or((value, "")),
        };
        let slot = match key {
            "file" => &mut block.file,
            "expect" => &mut block.expect,
            "fails" => &mut block.fails,
            "elsewhere" => &mut block.elsewhere,
            "guest" => &mut block.guest,
            _ => return Err(format!("line {line}: a fence has no '{key}'")),
        };
        (*slot, rest) = (Some(value.to_owned()), after);
    }
    Ok(block)
}

const MARK: &str = "@@ block of line ";

/// One shell script of all blocks of one place; it prints a mark before each and ends at the first that went wrong.
fn script<'a>(prologue: &str, blocks: impl Iterator<Item = &'a Block>, files: &Path) -> Result<String, String> {
    let mut script = format!("set -euo pipefail\n{prologue}");
    for block in blocks {
        let line = block.line;
        if let Some(name) = &block.file {
            let kept = files.join(line.to_string());
            std::fs::write(&kept, &block.body).map_err(|error| format!("cannot write {}: {error}", kept.display()))?;
            let _ = writeln!(script, "cp '{}' '{name}'", kept.display());
        } else if block.language == "sh" && block.elsewhere.is_none() {
            let _ = writeln!(script, "echo '{MARK}{line}'");
            let commands = block.commands();
            if block.fails.is_some() {
                let _ = writeln!(script, "set +e; (set -e\n{commands}); code=$?; set -e");
                let _ = writeln!(script, "[ $code -ne 0 ] || {{ echo 'this should have failed'; exit 1; }}");
            } else {
                script.push_str(&commands);
            }
        }
    }
    script.push_str("echo '@@ end'\n");
    Ok(script)
}

/// What each block printed, by line, if the script came to its end; else everything it printed.
fn judge<'a>(blocks: impl Iterator<Item = &'a Block>, printed: &str) -> Result<(), String> {
    if !printed.ends_with("@@ end\n") {
        return Err(format!("stopped in the last block named here:\n{printed}"));
    }
    for block in blocks {
        let Some(text) = block.expect.as_ref().or(block.fails.as_ref()) else { continue };
        let said = printed.split_once(&format!("{MARK}{}\n", block.line)).map_or("", |(_, after)| after);
        let said = said.split("@@ ").next().unwrap_or_default();
        if !said.contains(text) {
            return Err(format!("the block of line {} did not print '{text}' but:\n{said}", block.line));
        }
    }
    Ok(())
}

/// Run a page beside a daemon of its own.
///
/// # Errors
/// What went wrong, with all that was printed.
pub fn run(page: &Path, path: &str) -> Result<(), String> {
    let read = |path: &Path| std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()));
    let blocks = blocks(&read(page)?)?;
    let stem = page.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let disks = ["a=memory:256M", "b=file:{dir}/b.img,size=1G", "n=null:1G"];
    let Some(daemon) = serve(&format!("guide-{stem}"), &disks) else { return Ok(()) };
    let place = Scratch::new();
    let kept = Scratch::new();
    let guests = Guests::prepare(&format!("guide-{stem}, guests"), &blocks);
    let here = || blocks.iter().filter(|block| !block.in_root && (guests.is_some() || !block.needs_guests()));
    let output = kept.path("output");
    let prologue = guests.as_ref().map_or("", |guests| guests.prologue.as_str());
    let bash = guests.as_ref().map_or_else(|| Command::new("bash"), |guests| guests.command("bash"));
    let script = script(prologue, here(), &kept.path(""))?;
    let ended = run_shell(bash, &script, &place, &output, &daemon.socket(), path)?;
    let fail = |what| format!("{}: {what}", page.display());
    judge(here(), &read(&output)?).map_err(|what| fail(format!("{ended}: {what}")))?;
    let there: Vec<&Block> = blocks.iter().filter(|block| block.in_root).collect();
    if there.is_empty() { Ok(()) } else { run_in_root(&there, &stem, &kept).map_err(fail) }
}

fn run_in_root(blocks: &[&Block], stem: &str, kept: &Scratch) -> Result<(), String> {
    let what = format!("guide-{stem}");
    let packages = throwaway::packages(&what, &throwaway::PACKAGES);
    let Some(root) = ThrowawayRoot::boot(&what, &packages) else { return Ok(()) };
    let script = script("", blocks.iter().copied(), &kept.path(""))?;
    let output = root.run(&format!("exec 2>&1\n{script}"));
    judge(blocks.iter().copied(), &String::from_utf8_lossy(&output.stdout))
        .map_err(|error| format!("{}: {error}", text_of(&output)))
}

fn run_shell(
    mut command: Command,
    script: &str,
    place: &Scratch,
    output: &Path,
    socket: &Path,
    path: &str,
) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot run bash: {error}");
    let file = File::create(output).map_err(failed)?;
    command.arg("-c").arg(script).current_dir(place.path("")).env("PATH", path).env("FIPSEE_SOCKET", socket);
    // As users have it, from anywhere.
    if let Some(prefix) = shipped("guide", "") {
        command.env("FIPSEE_DIST", prefix);
    }
    command.stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file).process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    let group = rustix::process::Pid::from_child(&child);
    let process =
        rustix::process::pidfd_open(group, rustix::process::PidfdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    let timeout = Timespec::try_from(DEADLINE).map_err(|error| error.to_string())?;
    // Interrupted by a signal: the page fails as if it hung.
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout));
    let ended = child.try_wait().map_err(failed)?.map_or_else(|| "not ended in time".to_owned(), |status| status.to_string());
    // What the page started in the background, and the shell itself if it hangs.
    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    let _ = child.wait();
    Ok(ended)
}

/// The pages of `docs/guide`, and the README.
#[must_use]
pub fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let entries = std::fs::read_dir(root.join("docs/guide")).into_iter().flatten().flatten();
    let mut pages: Vec<_> =
        entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.push(root.join("README.md"));
    pages.sort();
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Vec<Block> {
        blocks(text).expect("a page that can be read")
    }

    fn run_alone(blocks: &[Block]) -> Result<(), String> {
        let place = Scratch::new();
        let kept = Scratch::new();
        let script = script("", blocks.iter(), &kept.path(""))?;
        let output = kept.path("output");
        run_shell(
            Command::new("bash"),
            &script,
            &place,
            &output,
            Path::new("/nowhere"),
            &std::env::var("PATH").unwrap_or_default(),
        )?;
        judge(blocks.iter(), &std::fs::read_to_string(output).unwrap_or_default())
    }

    #[test]
    fn fences_say_what_is_to_be_done() {
        let text = "x\n```sh expect=\"a b\"\necho a b\n```\n```c file=a.c\nint a;\n```\n```sh root\nls\n```\n";
        let blocks = page(text);
        assert_eq!((blocks[0].line, blocks[0].expect.as_deref(), &*blocks[0].body), (2, Some("a b"), "echo a b\n"));
        assert_eq!((blocks[1].file.as_deref(), &*blocks[1].language), (Some("a.c"), "c"));
        assert!(blocks[2].in_root && blocks[2].language == "sh");
        let blocks = page("```sh guests expect=\"a\"\nls\n```\n```sh guest=vm1 fails=\"b\"\nls\n```\n");
        assert!(blocks[0].beside_guests && blocks[0].expect.is_some() && blocks[0].commands() == "ls\n");
        assert_eq!((blocks[1].guest.as_deref(), blocks[1].needs_guests()), (Some("vm1"), true));
        assert_eq!(blocks[1].commands(), "in_guest vm1 <<'@@ typed'\nls\n@@ typed\n");
        assert!(super::blocks("```sh expects=\"a\"\n```\n").is_err(), "a misspelt word would switch a check off");
        assert!(super::blocks("```sh\nls\n").is_err());
    }

    #[test]
    fn blocks_share_a_shell_and_files() {
        assert_eq!(
            run_alone(&page("```sh\na=5\n```\n```text file=f\nhello\n```\n```sh expect=\"hello 5\"\necho $(cat f) $a\n```\n")),
            Ok(())
        );
    }

    #[test]
    fn wrong_pages_are_found() {
        for wrong in [
            "```sh\nfalse\ntrue\n```\n",
            "```sh expect=\"a\"\necho b\n```\n```sh\necho a\n```\n",
            "```sh fails=\"a\"\necho a\n```\n",
            "```sh fails=\"a\"\necho b; false\n```\n",
            "```sh fails=\"a\"\nfalse\necho a\n```\n",
            "```sh\nexit 0\n```\n",
        ] {
            assert!(run_alone(&page(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn blocks_that_are_not_run_here_name_the_file_that_runs_them() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut count = 0;
        for path in pages() {
            let blocks = page(&std::fs::read_to_string(&path).expect("a page"));
            for (by, line) in blocks.into_iter().filter_map(|block| Some((block.elsewhere?, block.line))) {
                let file = by.split(' ').next().unwrap_or_default();
                assert!(root.join(file).is_file(), "{}:{line}: '{file}' is no file of the repository", path.display());
                count += 1;
            }
        }
        assert!(count > 5, "{count} blocks");
    }

    #[test]
    fn a_reported_failure_is_no_violation() {
        assert_eq!(run_alone(&page("```sh fails=\"oh\"\necho oh >&2\nfalse\n```\n")), Ok(()));
    }
}
