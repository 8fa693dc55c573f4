//! Structured logs on standard error, as text or JSON.

use std::io::IsTerminal;

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::{LogFormat, LogSettings};

/// Log levels for dependencies that would otherwise log too much. For example, `mqtt5` would log
/// several lines per client connection. The setting `log.level` can override these levels.
const DEPENDENCY_LOG_LEVELS: &str = "mqtt5=error,mqtt5_protocol=error,rumqttc=error,sqlx=error,\
     rustls=error,hyper=warn,rdkafka=off,librdkafka=off";

/// Log filter directive for the audit log. Audit lines are written even if `log.level` is `warn` or
/// `error`. Only a directive for this target in `log.level` can disable audit lines.
const AUDIT_LOG_DIRECTIVE: &str = "cloud_connector::audit=info";

/// The value of the setting `log.level` is invalid.
#[derive(Debug, thiserror::Error)]
#[error("log.level: invalid level {level:?} ({problem}); use error, warn, info, debug or trace")]
pub struct InvalidLogLevel {
    level: String,
    problem: String,
}

/// Starts logging for the process. Only the first call has an effect. Therefore tests may call this
/// function several times in one process.
///
/// # Errors
/// When `log.level` is invalid.
pub fn init(log: &LogSettings) -> Result<(), InvalidLogLevel> {
    let filter = parse_filter(&log.level)?;
    let uses_json = match log.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    };
    let builder = tracing_subscriber::fmt()
        // `filter` decides which lines are written.
        .with_max_level(LevelFilter::TRACE)
        .with_writer(std::io::stderr)
        // If standard error is closed, writing a log line fails. The failure is not reported,
        // because the report would also be written to standard error and would panic.
        .log_internal_errors(false);
    let init_result = if uses_json {
        // The list of spans is omitted. Spans are not nested in this process, so the list would
        // only repeat the current span.
        let builder = builder.json().flatten_event(true).with_span_list(false);
        builder.finish().with(filter).try_init()
    } else {
        builder
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .finish()
            .with(filter)
            .try_init()
    };
    // `try_init` fails only if an earlier call has started logging. The settings of the earlier
    // call remain in effect.
    drop(init_result);
    Ok(())
}

fn parse_filter(level: &str) -> Result<Targets, InvalidLogLevel> {
    let invalid_level_error = |problem: String| InvalidLogLevel {
        level: level.to_owned(),
        problem,
    };
    let is_plain_level = matches!(level, "error" | "warn" | "info" | "debug" | "trace");
    if !is_plain_level && !level.contains(['=', ',']) {
        return Err(invalid_level_error("not a level".to_owned()));
    }
    // A later directive for the same target overrides an earlier one.
    format!("{DEPENDENCY_LOG_LEVELS},{AUDIT_LOG_DIRECTIVE},{level}")
        .parse()
        .map_err(|error: tracing_subscriber::filter::ParseError| {
            invalid_level_error(error.to_string())
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level;

    #[test]
    fn the_audit_log_is_written_unless_a_directive_disables_it() {
        let target = "cloud_connector::audit";
        assert!(
            parse_filter("error")
                .unwrap()
                .would_enable(target, &Level::INFO)
        );
        let filter = parse_filter("info,cloud_connector::audit=off").unwrap();
        assert!(!filter.would_enable(target, &Level::INFO));
    }

    #[test]
    fn log_level_may_be_a_level_or_a_list_of_directives() {
        assert!(parse_filter("debug").is_ok());
        let filter = parse_filter("info,pipeline::record=debug,mqtt5=trace").unwrap();
        assert!(filter.would_enable("pipeline::record", &Level::DEBUG));
        assert!(!filter.would_enable("pipeline::ingest", &Level::DEBUG));
        assert!(filter.would_enable("mqtt5", &Level::TRACE));
        assert!(!filter.would_enable("rumqttc", &Level::WARN));
        assert!(parse_filter("info,pipeline=loud").is_err());
        let error = parse_filter("loud").unwrap_err().to_string();
        assert!(
            error.contains("log.level") && error.contains("loud"),
            "{error}"
        );
    }
}
