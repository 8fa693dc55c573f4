//! Structured logs on standard error: text for people, JSON for machines.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Why logging could not start.
#[derive(Debug, thiserror::Error)]
#[error(
    "log.level: {level:?} is not understood ({problem}); use error, warn, info, debug or trace"
)]
pub struct BadLevel {
    level: String,
    problem: String,
}

/// Starts logging for the process. A second call in one process (tests) changes nothing.
///
/// # Errors
/// When the level cannot be read.
pub fn init(log: &Log) -> Result<(), BadLevel> {
    let filter = filter(&log.level)?;
    let json = match log.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Whoever read them may be gone. Complaining about that on the same stream would panic.
        .log_internal_errors(false);
    let started = if json {
        // Spans do not nest here: the list of them would only repeat the one.
        let builder = builder.json().flatten_event(true).with_span_list(false);
        builder.try_init()
    } else {
        builder
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .try_init()
    };
    // Only tests start it twice, and then the first one's choice stands.
    drop(started);
    Ok(())
}

/// Outside crates are quiet unless named: the broker's crate would write lines for every
/// connection of every client, which ours already counts.
fn filter(level: &str) -> Result<EnvFilter, BadLevel> {
    let bad = |problem: String| BadLevel {
        level: level.to_owned(),
        problem,
    };
    let plain = matches!(level, "error" | "warn" | "info" | "debug" | "trace");
    if !plain && !level.contains(['=', ',']) {
        return Err(bad("not a level".to_owned()));
    }
    let quiet = "mqtt5=error,mqtt5_protocol=error,rumqttc=error,sqlx=error,rustls=error,hyper=warn,rdkafka=off,librdkafka=off";
    // What was done to other people's connections is told at any level, unless it is named itself.
    let audit = "cloud_connector::audit=info";
    EnvFilter::try_new(format!("{quiet},{audit},{level}")).map_err(|error| bad(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_or_directives_are_taken_and_nonsense_is_named() {
        assert!(filter("debug").is_ok());
        assert!(filter("info,cloud_connector::record=debug").is_ok());
        let text = filter("loud").unwrap_err().to_string();
        assert!(
            text.contains("log.level") && text.contains("loud"),
            "{text}"
        );
    }
}
