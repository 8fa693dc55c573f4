//! Structured logs on standard error, as text or JSON, and other output of the running process.
//!
//! A thread writes the output, so a reader that does not read blocks no other thread. If too much
//! output waits for the reader, further lines are dropped and counted.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::Cell;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::{LogFormat, LogSettings, metrics};
use crate::output_queue::OutputQueue;

/// Log levels for dependencies that would otherwise log too much. For example, `mqtt5` would log
/// several lines per client connection. The setting `log.level` can override these levels.
const DEPENDENCY_LOG_LEVELS: &str = "mqtt5=error,mqtt5_protocol=error,rumqttc=error,sqlx=error,\
     rustls=error,hyper=warn,rdkafka=off,librdkafka=off";

/// Log filter directive for the audit log. Audit lines are written even if `log.level` is `warn` or
/// `error`. Only a directive for this target in `log.level` can disable audit lines.
const AUDIT_LOG_DIRECTIVE: &str = "cloud_connector::audit=info";

/// Maximum size of the log lines that wait for the reader of standard error. At 300 bytes per line,
/// this is sufficient for a pause of one second at 3,500 lines per second.
const MAX_QUEUED_BYTES: usize = 1024 * 1024;

/// Maximum duration of [`flush`]. A reader that does not read delays the exit by this time.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time that a panicking thread waits until its log line is written. The process may end
/// directly after the panic.
const PANIC_FLUSH_TIMEOUT: Duration = Duration::from_millis(100);

static STANDARD_ERROR: OnceLock<OutputQueue> = OnceLock::new();
static STANDARD_OUTPUT: OnceLock<OutputQueue> = OnceLock::new();

thread_local! {
    /// Whether the current thread writes its log lines even if the queue is full.
    static IGNORES_QUEUE_LIMIT: Cell<bool> = const { Cell::new(false) };
}

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
        .with_writer(|| LogWriter)
        // A failure to format a log line would be reported on standard error, which may block.
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

/// Logs the panics of all threads. By default, a panicking thread writes to standard error directly.
/// It would wait forever for a reader that does not read.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or_default();
        let location = panic.location().map(ToString::to_string);
        let error = panic.payload_as_str().unwrap_or("no panic message");
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
        let backtrace = backtrace.map(tracing::field::display);
        tracing::error!(thread, location, error, backtrace, "thread panicked");
        flush_until(Instant::now() + PANIC_FLUSH_TIMEOUT);
    }));
}

/// Prints an error on standard error, after the log lines. [`flush`] must be called before the
/// process exits.
pub fn print_error(text: &str) {
    standard_error().append_without_limit(format!("{text}\n").as_bytes());
}

/// Prints text on standard output without waiting for its reader. [`flush`] must be called before
/// the process exits.
pub fn print(text: &str) {
    standard_output().append_without_limit(text.as_bytes());
}

/// Waits until the log lines and all printed text are written, at most for 2 seconds. Returns
/// whether everything is written. Must be called before the process exits.
pub fn flush() -> bool {
    flush_until(Instant::now() + FLUSH_TIMEOUT)
}

fn flush_until(deadline: Instant) -> bool {
    let mut is_flushed = true;
    for queue in [&STANDARD_OUTPUT, &STANDARD_ERROR] {
        if let Some(queue) = queue.get() {
            is_flushed &= queue.flush(deadline);
        }
    }
    is_flushed
}

/// Appends each log line to the queue of standard error.
struct LogWriter;

impl Write for LogWriter {
    /// Appends a line. `tracing-subscriber` writes each line with one call.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        if IGNORES_QUEUE_LIMIT.get() {
            standard_error().append_without_limit(line);
        } else {
            standard_error().append(line);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn standard_error() -> &'static OutputQueue {
    STANDARD_ERROR.get_or_init(|| {
        let count_dropped_lines = metrics::count_dropped_log_lines;
        let report_dropped_lines = |_: &OutputQueue, count: u64| {
            IGNORES_QUEUE_LIMIT.set(true);
            // The level is `error`, because the dropped lines may contain errors and audit lines.
            tracing::error!(
                reason = "the reader of standard error did not read",
                "{count} log lines were dropped"
            );
        };
        OutputQueue::start(
            "standard-error",
            MAX_QUEUED_BYTES,
            duplicate(std::io::stderr().as_fd()),
            count_dropped_lines,
            report_dropped_lines,
        )
    })
}

fn standard_output() -> &'static OutputQueue {
    STANDARD_OUTPUT.get_or_init(|| {
        let output = duplicate(std::io::stdout().as_fd());
        OutputQueue::start(
            "standard-output",
            MAX_QUEUED_BYTES,
            output,
            |_| {},
            |_, _| {},
        )
    })
}

/// Opens the output a second time. A thread that waits in [`std::io::Stderr`] would hold its lock.
/// Discards all text if the output is closed.
fn duplicate(output: BorrowedFd<'_>) -> Box<dyn Write + Send> {
    match output.try_clone_to_owned() {
        Ok(descriptor) => Box::new(File::from(descriptor)),
        Err(_) => Box::new(std::io::sink()),
    }
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
