//! The `fipseed` program: its command line, and the error with which it ends.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::config::{Arguments, LogFormat};
use crate::services::Services;
use crate::{log, start_with};

/// Run the command line of this process, with more services than those that are built in (docs/adding-a-service.md).
pub fn program(services: Services) -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    match Arguments::try_parse_from(&words) {
        Ok(arguments) => end(start_with(arguments, services)),
        Err(error) => end_of_usage(with_option(error), &words),
    }
}

/// For what stands without an option: the one that was probably meant.
fn with_option(mut error: clap::Error) -> clap::Error {
    let option = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) if !word.starts_with('-') => {
            let option = if word.ends_with(".toml") { Some("--config") } else { word.contains('=').then_some("--disk") };
            option.map(|option| format!("write {option} {word}"))
        }
        _ => None,
    };
    if let Some(tip) = option {
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Report a command line that cannot be parsed, or print what `--help` asks for.
fn end_of_usage(error: clap::Error, words: &[OsString]) -> ExitCode {
    if !error.use_stderr() || !asks_for_json(words) {
        error.exit();
    }
    log::set_format(LogFormat::Json);
    let text = error.to_string();
    log::fatal(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Report the error with which the process ends, in the format of its log.
pub fn end(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::fatal(&error);
            ExitCode::FAILURE
        }
    }
}

/// Of a command line that cannot be parsed.
fn asks_for_json(words: &[OsString]) -> bool {
    let pair = words.windows(2).any(|pair| pair[0] == "--log-format" && pair[1] == "json");
    pair || words.iter().any(|word| word == "--log-format=json")
}
