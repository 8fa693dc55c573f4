//! Structured logs on standard error, as text or JSON.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Default log levels of dependencies, which log too much at the default level. For example,
/// `mqtt5` logs several lines per client connection. The setting `log.level` can override each
/// level.
const DEPENDENCY_LEVELS: &str = "mqtt5=error,mqtt5_protocol=error,rumqttc=error,sqlx=error,\
     rustls=error,hyper=warn,rdkafka=off,librdkafka=off";

/// Log level of the audit log. Audit lines are written at every `log.level`, unless `log.level`
/// contains a directive for this target.
const AUDIT_LEVEL: &str = "cloud_connector::audit=info";

/// The value of the setting `log.level` is invalid.
#[derive(Debug, thiserror::Error)]
#[error("log.level: invalid level {level:?} ({problem}); use error, warn, info, debug or trace")]
pub struct InvalidLogLevel {
    level: String,
    problem: String,
}

/// Starts logging for the process. In tests, several calls can occur in one process. Only the first
/// call has an effect.
///
/// # Errors
/// When `log.level` is invalid.
pub fn init(log: &Log) -> Result<(), InvalidLogLevel> {
    let filter = parse_filter(&log.level)?;
    let uses_json = match log.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // If standard error is closed, a write of a log line fails. Reporting the failure on
        // standard error would panic.
        .log_internal_errors(false);
    let result = if uses_json {
        // This process does not nest spans. Therefore the span list would only repeat the current
        // span.
        let builder = builder.json().flatten_event(true).with_span_list(false);
        builder.try_init()
    } else {
        builder
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .try_init()
    };
    // `try_init` fails only if an earlier call has started logging. The settings of the earlier
    // call remain in effect.
    drop(result);
    Ok(())
}

fn parse_filter(level: &str) -> Result<EnvFilter, InvalidLogLevel> {
    let invalid = |problem: String| InvalidLogLevel {
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
    fn log_level_may_be_a_level_or_a_list_of_directives() {
        assert!(parse_filter("debug").is_ok());
        assert!(parse_filter("info,cloud_connector::record=debug").is_ok());
        let error = parse_filter("loud").unwrap_err().to_string();
        assert!(
            error.contains("log.level") && error.contains("loud"),
            "{error}"
        );
    }
}
