//! `fipsee generate DIR` (hidden): manual pages and completions, from the definitions of the command lines.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::error::Error;
use crate::{Cli, completion, examples, serve};

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where to put them, laid out as below /usr/share
    directory: PathBuf,
    /// Date of the pages
    #[arg(long, value_name = "YYYY-MM-DD")]
    date: String,
}

/// Sections that the definitions of the command lines lack: section, text.
const FIPSEED_MORE: &[(&str, &str)] = &[
    (
        "SIGNALS",
        "SIGTERM and SIGINT let clients finish what they have published, notify them, and end the daemon. \
         SIGHUP reads the file given with \\fB\\-\\-config\\fR again, as \\fBfipsee reload\\fR does; \
         fipseed.toml(5) says what can change.",
    ),
    (
        "ENVIRONMENT",
        "\\fBFIPSEE_SOCKET\\fR is the socket to listen at, unless \\fB\\-\\-listen\\fR or the file names another. \
         \\fBLISTEN_FDS\\fR, \\fBNOTIFY_SOCKET\\fR, \\fBWATCHDOG_USEC\\fR and \\fBJOURNAL_STREAM\\fR are the service manager's.",
    ),
    ("SEE ALSO", "fipsee(1), fipseed.toml(5), systemd.socket(5)"),
];
const FIPSEE_MORE: &[(&str, &str)] = &[
    ("ENVIRONMENT", "\\fBFIPSEE_SOCKET\\fR is the daemon's socket, unless \\fB\\-\\-connect\\fR names another."),
    ("SEE ALSO", "fipseed(8), fipseed.toml(5)"),
];

/// The statuses of every command: value, meaning.
const STATUSES: &[(&str, &str)] = &[
    ("0", "It is done."),
    ("1", "It failed: one line on standard error says what was wrong and what to do."),
    ("2", "The command line cannot be understood."),
];
/// What some commands have beside these, by the name of their page.
const MORE_STATUSES: &[(&str, &str, &str)] = &[
    ("fipseed", "0", "SIGTERM or SIGINT ended it, it handed over to another daemon, or a checked configuration has no error."),
    ("fipsee-doctor", "1", "A check has the state fail."),
    ("fipsee-bench", "130", "Ctrl\\-C ended it early."),
    ("fipsee-cp", "130", "Ctrl\\-C ended it early; the destination is incomplete."),
];

pub(crate) fn run(arguments: &Arguments) -> Result<(), Error> {
    let directory = &arguments.directory;
    generate(directory, &arguments.date).map_err(|error| Error::io(format_args!("write to {}", directory.display()), &error))
}

fn generate(directory: &Path, date: &str) -> io::Result<()> {
    let mut fipsee = Cli::command().disable_help_subcommand(true);
    fipsee.build();
    let mut fipseed = serve::Arguments::command();
    fipseed.build();
    write(&directory.join("man/man8/fipseed.8"), &page("fipseed", &fipseed, "8", date, FIPSEED_MORE)?)?;
    for (name, command) in pages("fipsee", &fipsee) {
        let more = if name == "fipsee" { FIPSEE_MORE } else { &[("SEE ALSO", "fipsee(1), fipseed(8)")] };
        write(&directory.join(format!("man/man1/{name}.1")), &page(&name, command, "1", date, more)?)?;
    }
    for (name, command) in [("fipsee", &fipsee), ("fipseed", &fipseed)] {
        for (shell, path) in [
            (Shell::Bash, format!("bash-completion/completions/{name}")),
            (Shell::Zsh, format!("zsh/vendor-completions/_{name}")),
            (Shell::Fish, format!("fish/vendor_completions.d/{name}.fish")),
        ] {
            let mut text = Vec::new();
            match name {
                // It completes its command lines itself.
                "fipsee" => completion::write_registration(&shell.to_string(), &mut text)?,
                _ => clap_complete::generate(shell, &mut command.clone(), name, &mut text),
            }
            write(&directory.join(path), &text)?;
        }
    }
    Ok(())
}

/// A command and everything below it, but what is hidden, by the names of their pages.
fn pages<'a>(name: &str, command: &'a Command) -> Vec<(String, &'a Command)> {
    let below = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    let below = below.flat_map(|subcommand| pages(&format!("{name}-{}", subcommand.get_name()), subcommand));
    [(name.to_owned(), command)].into_iter().chain(below).collect()
}

fn page(name: &str, command: &Command, section: &str, date: &str, more: &[(&str, &str)]) -> io::Result<Vec<u8>> {
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    // The page's first line puts the name before it.
    let about = about.strip_prefix(&format!("{}: ", command.get_name())).unwrap_or(&about).to_owned();
    let source = format!("Fip-see {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone().about(about)).section(section).date(date).source(source).manual("Fip-see");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if let Some(help) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        writeln!(text, ".PP\n{}", escape(&help.to_string()))?;
    }
    man.render_options_section(&mut text)?;
    if command.get_subcommands().any(|subcommand| !subcommand.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    text.extend_from_slice(exit_status(name).as_bytes());
    text.extend_from_slice(examples(name).as_bytes());
    for (title, paragraph) in more {
        writeln!(text, ".SH \"{title}\"\n{paragraph}")?;
    }
    // A line break beside an empty line is superfluous, and mandoc warns.
    let text = String::from_utf8_lossy(&text).replace(".br\n\n.br\n", "\n").replace("\n\n", "\n.sp\n");
    Ok(text.into_bytes())
}

fn exit_status(page: &str) -> String {
    let own =
        |value: &str| MORE_STATUSES.iter().find(|(name, own, _)| *name == page && *own == value).map(|(_, _, meaning)| *meaning);
    let beside =
        MORE_STATUSES.iter().filter(|(name, value, _)| *name == page && !STATUSES.iter().any(|(known, _)| known == value));
    let all = STATUSES.iter().map(|(value, meaning)| (*value, own(value).unwrap_or(meaning)));
    let all = all.chain(beside.map(|(_, value, meaning)| (*value, *meaning)));
    all.fold(".SH \"EXIT STATUS\"\n".to_owned(), |text, (value, meaning)| text + &format!(".TP\n{value}\n{meaning}\n"))
}

fn examples(page: &str) -> String {
    let example = |(what, command): &(&str, &str)| format!("{}:\n.PP\n.RS 4\n.EX\n{}\n.EE\n.RE\n", escape(what), escape(command));
    let examples: Vec<String> = examples::of(page).unwrap_or_default().iter().map(example).collect();
    format!(".SH EXAMPLES\n{}", examples.join(".PP\n"))
}

/// Nothing of a text is a request to roff.
fn escape(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.trim().replace('\\', "\\e").replace('-', "\\-");
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, text)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn every_page_has_examples_that_can_be_typed() {
        let mut fipsee = Cli::command().disable_help_subcommand(true);
        fipsee.build();
        for (name, _) in [("fipseed".to_owned(), &fipsee)].into_iter().chain(pages("fipsee", &fipsee)) {
            let examples = examples::of(&name).unwrap_or_default();
            assert!(!examples.is_empty(), "no examples for the page {name}: add them to examples.rs");
            for line in examples.iter().flat_map(|(_, command)| command.lines()) {
                // Without the shell's part.
                let words = line.split(" > ").next().unwrap_or_default().split(' ');
                let error = match line.split(' ').next() {
                    Some("fipsee") => Cli::try_parse_from(words).err(),
                    Some("fipseed") => serve::Arguments::try_parse_from(words).err(),
                    _ => None,
                };
                assert!(error.is_none(), "{line}\n{}", error.expect("just seen"));
            }
            let is_own =
                examples.iter().flat_map(|(_, command)| command.lines()).any(|line| line.starts_with(&name.replace('-', " ")));
            // A name with a dash of its own, as vm-args.
            assert!(is_own || name == "fipsee-vm-args", "{name}: no example runs it");
        }
    }

    #[test]
    fn page_has_its_statuses_and_what_follows_the_help() {
        let text = exit_status("fipsee-doctor");
        assert!(text.contains(".TP\n1\nA check has the state fail.\n") && text.matches(".TP").count() == 3, "{text}");
        assert_eq!(exit_status("fipsee-cp").matches(".TP").count(), 4);
        let mut fipsee = Cli::command();
        fipsee.build();
        let copy = fipsee.find_subcommand("cp").expect("a subcommand");
        let page = String::from_utf8(page("fipsee-cp", copy, "1", "2026-01-02", &[]).expect("memory")).expect("text");
        assert!(page.contains("fip:NAME@SOCKET"), "{page}");
    }
}
