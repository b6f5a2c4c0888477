//! Completion of command lines by the program itself, which knows the names of the daemon's disks.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter, complete,
};
use clap_complete::env::{self, CompleteEnv, EnvCompleter, Shells};
use fipsee_block::client::default_socket_path;

use crate::{Cli, admin, ls};

const SHELLS: Shells<'static> = Shells(&[&Bash, &env::Fish, &env::Zsh, &env::Elvish]);

/// When a shell asks, with the variable COMPLETE: answer and exit.
pub(crate) fn answer() {
    CompleteEnv::with_factory(command).shells(SHELLS).complete();
}

/// Write the file that makes `shell` ask.
pub(crate) fn write_registration(shell: &str, to: &mut dyn Write) -> io::Result<()> {
    let completer = SHELLS.completer(shell).ok_or_else(|| io::Error::other(format!("there is no completion for {shell}")))?;
    completer.write_registration("COMPLETE", "fipsee", "fipsee", "fipsee", to)?;
    if shell == "zsh" {
        // It runs the file when the first command line is completed, and wants the candidates of that.
        writeln!(to, "if [ \"$funcstack[1]\" = _fipsee ]; then _clap_dynamic_completer_fipsee; fi")?;
    }
    Ok(())
}

/// The command line with candidates for what only the daemon knows.
fn command() -> Command {
    complete_arguments(Cli::command())
}

fn complete_arguments(command: Command) -> Command {
    let command = command.mut_args(|argument| match argument.get_id().as_str() {
        "disk" | "disks" => argument.add(ArgValueCandidates::new(|| disks(""))),
        "source" | "destination" => argument.add(ArgValueCompleter::new(endpoints)),
        _ => argument,
    });
    command.mut_subcommands(complete_arguments)
}

/// The disks' names after `prefix`; none without an answer from the daemon.
fn disks(prefix: &str) -> Vec<CompletionCandidate> {
    let answer = ls::ask(&socket(std::env::args_os())).unwrap_or_default();
    let names = admin::list(&answer, "disks").iter().map(|disk| format!("{prefix}{}", admin::text(disk, "disk")));
    names.map(CompletionCandidate::new).collect()
}

/// Files, and disks as `fipsee cp` names them.
fn endpoints(current: &OsStr) -> Vec<CompletionCandidate> {
    let is_meant =
        |candidate: &CompletionCandidate| candidate.get_value().as_encoded_bytes().starts_with(current.as_encoded_bytes());
    disks("fip:").into_iter().filter(is_meant).chain(PathCompleter::any().complete(current)).collect()
}

/// The daemon's socket, by the words of the command line so far.
fn socket(words: impl Iterator<Item = OsString>) -> PathBuf {
    let (words, _, _) = join(words.collect(), 0);
    let value = words.iter().find_map(|word| Some(PathBuf::from(word.to_str()?.strip_prefix("--connect=")?)));
    let next = || words.iter().skip_while(|word| *word != "--connect").nth(1).map(PathBuf::from);
    value.or_else(next).unwrap_or_else(default_socket_path)
}

/// Bash, which takes `:` and `=` for words of their own.
struct Bash;

impl EnvCompleter for Bash {
    fn name(&self) -> &'static str {
        env::Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        env::Bash.is(name)
    }

    fn write_registration(&self, var: &str, name: &str, bin: &str, completer: &str, to: &mut dyn Write) -> io::Result<()> {
        let mut script = Vec::new();
        env::Bash.write_registration(var, name, bin, completer, &mut script)?;
        // Right after such a word, the word to complete is empty, but that word must not be lost.
        let set_word = "words[COMP_CWORD]=\"$2\"";
        let script = String::from_utf8_lossy(&script);
        to.write_all(script.replace(set_word, &format!("[[ ${{words[COMP_CWORD]}} == [:=] ]] || {set_word}")).as_bytes())
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        directory: Option<&Path>,
        to: &mut dyn Write,
    ) -> io::Result<()> {
        let variable = |name| std::env::var(name).ok();
        let index = variable("_CLAP_COMPLETE_INDEX").and_then(|index| index.parse().ok()).unwrap_or(0);
        let (words, index, before_bytes) = join(words, index);
        let candidates = complete(command, words, index, directory)?;
        let values = candidates.iter().map(|candidate| candidate.get_value().to_string_lossy());
        let values: Vec<String> = values.filter_map(|value| value.get(before_bytes..).map(str::to_owned)).collect();
        to.write_all(values.join(variable("_CLAP_IFS").as_deref().unwrap_or("\n")).as_bytes())
    }
}

/// Undo bash's splitting: the words of the command line, which of them word `index` is part of, and how much of that is
/// before it.
fn join(split: Vec<OsString>, index: usize) -> (Vec<OsString>, usize, usize) {
    let is_separator = |word: &OsStr| word == ":" || word == "=";
    let (mut words, mut found, mut after_separator) = (Vec::<OsString>::new(), (0, 0), false);
    for (position, part) in split.into_iter().enumerate() {
        let (separates, length) = (is_separator(&part), part.len());
        match words.last_mut().filter(|_| after_separator || separates) {
            Some(word) => word.push(part),
            None => words.push(part),
        }
        if position == index {
            let word_bytes = words.last().map_or(0, |word| word.len());
            found = (words.len() - 1, if separates { word_bytes } else { word_bytes - length });
        }
        after_separator = separates;
    }
    (words, found.0, found.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(split: &[&str], index: usize) -> (Vec<String>, usize, usize) {
        let (words, index, before_bytes) = join(split.iter().map(OsString::from).collect(), index);
        (words.iter().map(|word| word.to_string_lossy().into_owned()).collect(), index, before_bytes)
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn words_that_bash_split_are_joined() {
        assert_eq!(joined(&["fipsee", "info", "a"], 2), (words(&["fipsee", "info", "a"]), 2, 0));
        assert_eq!(joined(&["fipsee", "cp", "fip", ":", "a"], 4), (words(&["fipsee", "cp", "fip:a"]), 2, 4));
        assert_eq!(joined(&["fipsee", "cp", "fip", ":"], 3), (words(&["fipsee", "cp", "fip:"]), 2, 4));
        assert_eq!(joined(&["fipsee", "cp", "fip", ":", "a", ""], 5), (words(&["fipsee", "cp", "fip:a", ""]), 3, 0));
    }

    #[test]
    fn the_socket_is_that_of_the_line() {
        for line in [&["--connect", "/a", "info"][..], &["info", "--connect=/a"], &["info", "--connect", "=", "/a"]] {
            assert_eq!(socket(line.iter().map(OsString::from)), Path::new("/a"), "{line:?}");
        }
    }
}
