//! `fipsee generate DIR` (hidden): manual pages and completions, from the definitions of the command lines.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::error::Error;
use crate::{Cli, completion, serve};

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
    ("EXIT STATUS", "0, or not 0 after an error, which is reported in one line on standard error."),
    ("SEE ALSO", "fipseed(8), fipseed.toml(5)"),
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
    write(&directory.join("man/man8/fipseed.8"), &page(&fipseed, "8", date, FIPSEED_MORE)?)?;
    write(&directory.join("man/man1/fipsee.1"), &page(&fipsee, "1", date, FIPSEE_MORE)?)?;
    for subcommand in fipsee.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        let path = directory.join(format!("man/man1/fipsee-{}.1", subcommand.get_name()));
        write(&path, &page(subcommand, "1", date, &[("SEE ALSO", "fipsee(1), fipseed(8)")])?)?;
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

fn page(command: &Command, section: &str, date: &str, more: &[(&str, &str)]) -> io::Result<Vec<u8>> {
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
    man.render_options_section(&mut text)?;
    if command.get_subcommands().any(|subcommand| !subcommand.is_hide_set()) {
        man.render_subcommands_section(&mut text)?;
    }
    for (title, paragraph) in more {
        writeln!(text, ".SH \"{title}\"\n{paragraph}")?;
    }
    // A line break beside an empty line is superfluous, and mandoc warns.
    let text = String::from_utf8_lossy(&text).replace(".br\n\n.br\n", "\n").replace("\n\n", "\n.sp\n");
    Ok(text.into_bytes())
}

fn write(path: &Path, text: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::write(path, text)
}
