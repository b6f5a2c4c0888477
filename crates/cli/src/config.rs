//! `fipsee config dump`: the configuration that the daemon has in force.

use std::path::Path;

use serde_json::json;

use crate::error::Error;
use crate::{admin, output};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print the configuration in force, with what was changed at run time, as a file that fipseed --config takes
    Dump,
}

pub(crate) fn run(socket: &Path, command: &Command) -> Result<(), Error> {
    match command {
        Command::Dump => {
            let answer = admin::ask(socket, "config.dump", &json!({}))?;
            output::print(admin::text(&answer, "toml"))
        }
    }
}
