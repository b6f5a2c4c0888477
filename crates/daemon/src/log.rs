//! The daemon's log: on standard error, with a level that a reload may change.

use std::fmt;
use std::io::IsTerminal;
use std::os::linux::fs::MetadataExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Format, FormatEvent, FormatFields, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, layer};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::LogFormat;

/// Was JSON chosen before the log was started?
static WILL_BE_JSON: AtomicBool = AtomicBool::new(false);
static STARTED: OnceLock<LogFormat> = OnceLock::new();

/// The level of the running log; `None` inside a program with a log of its own.
#[derive(Clone, Debug)]
pub(crate) struct LogLevel(Option<Handle<Targets, Registry>>);

/// Parse a level, or levels of modules. Not `EnvFilter`, which accepts more: 500 bytes of garbage keep its regular expressions
/// busy for ten seconds.
pub(crate) fn parse_level(text: &str) -> Result<Targets, String> {
    let expect = "use error, warn, info, debug or trace";
    // A lone word that is not a level would be parsed as the name of a module, and silence everything else.
    let is_lone_word = !text.contains(['=', ',', '[']);
    if text.trim().is_empty() || is_lone_word && text.parse::<tracing::level_filters::LevelFilter>().is_err() {
        return Err(format!("unknown log level '{text}'; {expect}"));
    }
    text.parse::<Targets>().map_err(|error| format!("log level '{text}': {error}; {expect}"))
}

/// The format of the log that will be started.
pub(crate) fn set_format(format: LogFormat) {
    WILL_BE_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
}

/// Report the error with which the process ends: for people, or as a line of the log.
pub(crate) fn fatal(text: &str) {
    let will_be = if WILL_BE_JSON.load(Ordering::Relaxed) { LogFormat::Json } else { LogFormat::Text };
    match STARTED.get().copied().unwrap_or(will_be) {
        LogFormat::Text => eprintln!("error: {text}"),
        LogFormat::Json => {
            let line = layer().with_writer(std::io::stderr).with_target(false).json();
            // The level of the log may be `off`.
            tracing::subscriber::with_default(tracing_subscriber::registry().with(line), || tracing::error!("{text}"));
        }
    }
}

pub(crate) fn start(level: &str, format: LogFormat) -> Result<LogLevel, String> {
    // Once: a program may contain several daemons.
    let _ = STARTED.set(format);
    let (filter, handle) = reload::Layer::new(parse_level(level)?);
    let lines = layer().with_writer(std::io::stderr).with_target(false);
    let lines = match format {
        LogFormat::Json => lines.json().boxed(),
        LogFormat::Text if is_journal() => lines
            .with_ansi(false)
            .event_format(ForJournal(Format::default().without_time().with_level(false).with_target(false)))
            .boxed(),
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
    };
    let started = tracing_subscriber::registry().with(filter).with(lines).try_init();
    // A program that embeds the daemon may have a log of its own.
    Ok(LogLevel(started.ok().map(|()| handle)))
}

impl LogLevel {
    pub(crate) fn set(&self, filter: Targets) {
        if let Some(handle) = &self.0
            && let Err(error) = handle.reload(filter)
        {
            tracing::warn!(%error, "the log level cannot be changed");
        }
    }
}

/// Is standard error the journal, which adds the time itself?
fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    // The variable is inherited by programs whose standard error goes elsewhere, so it identifies the descriptor.
    std::fs::metadata("/proc/self/fd/2").is_ok_and(|found| stream == format!("{}:{}", found.st_dev(), found.st_ino()))
}

/// Lines that begin with the priority as the journal parses it (sd-daemon(3)), so that `journalctl -p` works.
struct ForJournal(Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for ForJournal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            _ => 7,
        };
        write!(writer, "<{priority}>")?;
        self.0.format_event(context, writer, event)
    }
}

#[cfg(test)]
mod tests {
    use super::parse_level;

    #[test]
    fn unknown_level_is_refused() {
        let levels = "error warn info debug trace off INFO info,fipsee_daemon=debug warn,fipsee_daemon::transport=trace";
        for level in levels.split(' ') {
            assert!(parse_level(level).is_ok(), "{level}");
        }
        for level in ["verbose", "", "fipsee_daemon=loud"] {
            let text = parse_level(level).expect_err(level);
            assert!(text.contains("use error, warn, info, debug or trace"), "{text}");
        }
    }
}
