//! Metrics of the recorder. Some functions also write a log line.
//!
//! For events that clients can cause at a high rate, the log line has level debug or is limited to
//! one per second.

use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

use domain::ClientId;
use protocol::Rejection;
use service::LogThrottle;

const MESSAGES_APPLIED: &str = "cloud_connector_messages_applied_total";
const MESSAGES_IGNORED: &str = "cloud_connector_messages_ignored_total";
const DEAD_LETTERS: &str = "cloud_connector_dead_letters_total";
const ROWS_DISCARDED: &str = "cloud_connector_record_rows_discarded_total";
const HANDSHAKE_ERRORS: &str = "cloud_connector_handshake_errors_total";
const RECORD_LATENCY: &str = "cloud_connector_record_latency_seconds";
const IN_FLIGHT_MESSAGES: &str = "cloud_connector_record_in_flight_messages";
const BATCH_SIZE: &str = "cloud_connector_record_batch_messages";
const BATCH_DURATION: &str = "cloud_connector_record_batch_duration_seconds";
const BATCHES_RETRYING: &str = "cloud_connector_record_batches_retrying";
const BATCH_RETRIES: &str = "cloud_connector_record_batch_retries_total";
const REJECTION_OUTAGE: &str = "cloud_connector_record_rejection_outage";
const BATCH_CONFLICTS: &str = "cloud_connector_record_batch_conflicts_total";
const PARTITIONS_FENCED: &str = "cloud_connector_record_partitions_fenced_total";

/// Maximum number of characters of a topic in a log line. Longer topics are truncated, because the
/// sender can choose a topic of any length.
const MAX_LOGGED_TOPIC_CHARS: usize = 300;

/// Registers the help texts of these metrics. Call this function after the metrics recorder is
/// installed, because earlier registrations are discarded.
pub fn describe() {
    describe_counter!(
        MESSAGES_APPLIED,
        "Presence messages that changed the database, by kind"
    );
    describe_counter!(MESSAGES_IGNORED, "Messages that changed nothing, by reason");
    describe_counter!(
        DEAD_LETTERS,
        "Messages that can never be processed, by reason (see `cloud-connector dead-letters`)"
    );
    describe_counter!(
        ROWS_DISCARDED,
        "Rows rejected by the database that could not be stored as dead letters either"
    );
    describe_counter!(
        HANDSHAKE_ERRORS,
        "Invalid handshakes, by whether an error message was queued for the client"
    );
    describe_histogram!(
        RECORD_LATENCY,
        "Time from receiving a message to committing it to the database"
    );
    describe_gauge!(
        IN_FLIGHT_MESSAGES,
        "Messages accepted by the recorder and not yet committed"
    );
    describe_histogram!(BATCH_SIZE, "Messages per database batch");
    describe_histogram!(
        BATCH_DURATION,
        "Time from the start of a batch to its commit, including retries"
    );
    describe_gauge!(
        BATCHES_RETRYING,
        "Batches being retried because the database write failed"
    );
    describe_counter!(
        BATCH_RETRIES,
        "Failed attempts to write a batch. A retry follows, unless the process is shutting down"
    );
    describe_gauge!(
        REJECTION_OUTAGE,
        "1 while the database rejects the rows of most clients for the same reason, otherwise 0"
    );
    describe_counter!(
        BATCH_CONFLICTS,
        "Batches that were built again, because another writer had changed the row of a client"
    );
    describe_counter!(
        PARTITIONS_FENCED,
        "Partitions whose batch was dropped because another process owns them now"
    );
}

/// Counts presence messages that changed the database. `kind` is `online`, `heartbeat` or
/// `offline`.
pub fn count_applied_messages(kind: &'static str, count: usize) {
    counter!(MESSAGES_APPLIED, "kind" => kind).increment(count as u64);
}

/// Counts a message that did not change the database, and logs the reason at level debug.
pub fn count_ignored_message(client: &ClientId, reason: &'static str) {
    counter!(MESSAGES_IGNORED, "reason" => reason).increment(1);
    tracing::debug!(client_id = %client, reason, "message ignored");
}

/// Logs an online message of a client that was connected already.
pub fn log_online_message(client: &ClientId, org_id: &str, reason: &'static str) {
    tracing::debug!(client_id = %client, org_id, status = "online", reason, "online message recorded");
}

/// Records the time from receiving a message to committing the message to the database. Because
/// the clocks of two machines may differ, the time can be negative. A negative time counts as zero.
pub fn observe_record_latency(latency: jiff::SignedDuration) {
    histogram!(RECORD_LATENCY).record(latency.as_secs_f64().max(0.0));
}

/// Sets the number of messages that the recorder has accepted and not yet committed.
pub fn set_in_flight_messages(count: usize) {
    gauge!(IN_FLIGHT_MESSAGES).set(count as f64);
}

/// Counts an invalid handshake. `is_error_queued` is false if the queue of error messages was full.
/// The client then receives no error message.
pub fn count_invalid_handshake(is_error_queued: bool) {
    let sent = if is_error_queued { "yes" } else { "no" };
    counter!(HANDSHAKE_ERRORS, "sent" => sent).increment(1);
}

/// Counts a row that was discarded: the database rejected the row, and the row could not be stored
/// as a dead letter.
pub fn count_discarded_row(error: &str) {
    counter!(ROWS_DISCARDED).increment(1);
    tracing::error!(
        error,
        "row rejected by the database and not storable as a dead letter; discarded"
    );
}

/// Counts a dead letter and logs it. At most one dead letter per second is logged at level warn,
/// and all others at level debug. Otherwise one client could fill the disk with log lines.
pub fn count_dead_letter(topic: &str, rejection: &Rejection) {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    let (reason, detail) = (rejection.reason.as_str(), &rejection.detail);
    counter!(DEAD_LETTERS, "reason" => reason).increment(1);
    let topic: String = topic.chars().take(MAX_LOGGED_TOPIC_CHARS).collect();
    if LOG_THROTTLE.should_log() {
        tracing::warn!(
            topic,
            reason,
            detail,
            "dead letter (at most one logged per second)"
        );
    } else {
        tracing::debug!(topic, reason, detail, "dead letter");
    }
}

/// Records the number of messages in a committed batch, and the time from the start of the batch to
/// its commit.
pub fn observe_committed_batch(message_count: usize, duration: Duration) {
    histogram!(BATCH_SIZE).record(message_count as f64);
    histogram!(BATCH_DURATION).record(duration);
}

/// Reports that an attempt to write a batch failed. The recorder retries the batch, unless the process
/// is shutting down. Writes a log line for the attempts 1, 2,
/// 4, 8, and so on.
pub fn report_batch_retry(attempt: u32, message_count: usize, error: &dyn std::error::Error) {
    counter!(BATCH_RETRIES).increment(1);
    if attempt == 1 {
        gauge!(BATCHES_RETRYING).increment(1.0);
    }
    if attempt.is_power_of_two() {
        tracing::error!(attempt, message_count, %error, "batch write failed; retrying");
    }
}

/// Reports that a batch is no longer retried, because the batch was written or fenced.
pub fn report_batch_retry_ended() {
    gauge!(BATCHES_RETRYING).decrement(1.0);
}

/// Reports that the process shuts down and the last attempt to write a batch failed.
pub fn report_batch_not_written(message_count: usize, error: &dyn std::error::Error) {
    let message = "batch not written before shutdown; its messages were not acknowledged";
    tracing::error!(message_count, %error, message);
}

/// Sets whether the database rejects the rows of most clients for the same reason.
pub fn set_rejection_outage(is_active: bool) {
    gauge!(REJECTION_OUTAGE).set(f64::from(u8::from(is_active)));
}

/// Counts fenced partitions: the batch was dropped, because another process now owns the
/// partitions.
pub fn count_fenced_partitions(partitions: &[i32]) {
    counter!(PARTITIONS_FENCED).increment(partitions.len() as u64);
    tracing::warn!(?partitions, "batch fenced: partitions were reassigned");
}

/// Counts a batch that was not written, because another writer had changed the row of a client. Logs a
/// conflict that is not the first one of the batch.
pub fn report_conflict(conflicts: u32, messages: usize) {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    counter!(BATCH_CONFLICTS).increment(1);
    if conflicts > 1 && LOG_THROTTLE.should_log() {
        tracing::warn!(
            conflicts,
            messages,
            "batch not written: another process has changed the rows of its clients again; retrying. \
             If this continues, check that no other program writes the table connections"
        );
    }
}
