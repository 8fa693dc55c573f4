//! Structured logs on standard error, as text or JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Default levels of dependencies. The embedded broker's crate, for example, logs several lines per
/// client connection. `log.level` can override each entry.
const DEPENDENCY_LEVELS: &str = "mqtt5=error,mqtt5_protocol=error,rumqttc=error,sqlx=error,\
     rustls=error,hyper=warn,rdkafka=off,librdkafka=off";

/// Keeps the audit log on at every `log.level` that does not name this target.
const AUDIT_LEVEL: &str = "cloud_connector::audit=info";

/// `log.level` is invalid.
#[derive(Debug, thiserror::Error)]
#[error("log.level: invalid level {level:?} ({problem}); use error, warn, info, debug or trace")]
pub struct InvalidLevel {
    level: String,
    problem: String,
}

/// Starts logging for the process. A second call in the same process, as in tests, has no effect.
///
/// # Errors
/// When `log.level` is invalid.
pub fn init(log: &Log) -> Result<(), InvalidLevel> {
    let filter = filter(&log.level)?;
    let json = match log.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // If standard error is closed, reporting the failed write there would panic.
        .log_internal_errors(false);
    let result = if json {
        // Spans are never nested here, so the span list would only repeat the current span.
        let builder = builder.json().flatten_event(true).with_span_list(false);
        builder.try_init()
    } else {
        builder
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .try_init()
    };
    // Fails only if logging was started before. The first call's settings then stay in effect.
    drop(result);
    Ok(())
}

fn filter(level: &str) -> Result<EnvFilter, InvalidLevel> {
    let invalid = |problem: String| InvalidLevel {
        level: level.to_owned(),
        problem,
    };
    let is_plain_level = matches!(level, "error" | "warn" | "info" | "debug" | "trace");
    if !is_plain_level && !level.contains(['=', ',']) {
        return Err(invalid("not a level".to_owned()));
    }
    EnvFilter::try_new(format!("{DEPENDENCY_LEVELS},{AUDIT_LEVEL},{level}"))
        .map_err(|error| invalid(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_accepts_levels_and_directives_and_reports_invalid_levels() {
        assert!(filter("debug").is_ok());
        assert!(filter("info,cloud_connector::record=debug").is_ok());
        let error = filter("loud").unwrap_err().to_string();
        assert!(
            error.contains("log.level") && error.contains("loud"),
            "{error}"
        );
    }
}
