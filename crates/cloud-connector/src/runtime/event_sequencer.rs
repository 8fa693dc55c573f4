//! Gives positions to new events (role `record`, with PostgreSQL).

use std::sync::Arc;
use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, gauge};
use tokio::time::Instant;

use service::{LogThrottle, TaskGroup};
use store::{EventRepository, StoreError};

/// Time between two runs. Readers receive an event at most this much later.
const INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of events that one transaction moves.
const CHUNK_ROWS: u32 = 1000;
/// Time between two measurements of the outbox.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);

const EVENTS_SEQUENCED: &str = "cloud_connector_events_sequenced_total";
const OUTBOX_ROWS: &str = "cloud_connector_events_outbox_rows";

/// Registers the help texts of these metrics.
pub(super) fn describe_metrics() {
    describe_counter!(
        EVENTS_SEQUENCED,
        "Events to which this process gave a position"
    );
    describe_gauge!(
        OUTBOX_ROWS,
        "Committed events that have no position yet (up to 10,000)"
    );
}

/// Gives positions to new events until `tasks` is cancelled.
pub(super) async fn run_event_sequencer(events: Arc<dyn EventRepository>, tasks: TaskGroup) {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    let mut measured_at: Option<Instant> = None;
    loop {
        let run = async {
            let count = sequence_events(&*events).await?;
            if measured_at.is_none_or(|time| time.elapsed() >= MEASURE_INTERVAL) {
                measured_at = Some(Instant::now());
                gauge!(OUTBOX_ROWS).set(events.outbox_len().await? as f64);
            }
            Ok::<u64, StoreError>(count)
        };
        let result = tokio::select! {
            result = run => result,
            () = tasks.cancelled() => return,
        };
        match result {
            Ok(count) if count >= CHUNK_ROWS.into() => continue,
            Ok(_) => {}
            Err(error) => {
                if LOG_THROTTLE.should_log() {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(
                        error,
                        "cannot give positions to events; callers receive them when the database is \
                         available again"
                    );
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            () = tasks.cancelled() => return,
        }
    }
}

async fn sequence_events(events: &dyn EventRepository) -> Result<u64, StoreError> {
    let count = events.sequence_events(CHUNK_ROWS).await?;
    counter!(EVENTS_SEQUENCED).increment(count);
    Ok(count)
}
