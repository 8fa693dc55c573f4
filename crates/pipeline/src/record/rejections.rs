//! Distinguishes a constraint that rejects every row from single rejected rows.
//!
//! A row that the database rejects becomes a dead letter. But a faulty migration or a constraint
//! that an operator added can reject the rows of all clients. Then the fault is in the database and
//! not in the messages: the recorder must retry, and must not acknowledge the messages as dead
//! letters.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;

use super::metrics;
use domain::{ClientId, Timestamp};
use store::{PresenceBatch, RejectedPart};

/// Time for which accepted and rejected rows are counted.
const WINDOW: Duration = Duration::from_mins(1);
/// Minimum number of rows that are rejected for the same reason in an outage.
const MIN_REJECTED_ROWS: usize = 20;
/// Minimum number of clients whose rows are rejected for the same reason in an outage.
const MIN_REJECTED_CLIENTS: usize = 10;
/// Maximum number of rejected parts in the window. Limits memory.
const MAX_REJECTED_PARTS: usize = 10_000;
/// Accepted rows within this time share an entry of the window.
const ACCEPTED_ENTRY_DURATION: Duration = Duration::from_secs(1);

/// Counts accepted and rejected rows of all writers, and decides whether the database rejects the
/// rows of most clients.
#[derive(Default)]
pub(super) struct RejectionMonitor(Mutex<MonitorState>);

#[derive(Default)]
struct MonitorState {
    window: Window,
    outage: Option<RejectionOutage>,
    /// Number of outages that have ended.
    ended_outages: u64,
}

/// The database rejects most rows for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RejectionOutage {
    /// The reason, see [`store::RowRejection::reason`].
    reason: String,
    /// An error of the database with this reason.
    error: String,
    /// The kind of the rejected rows.
    pub row_kind: RowKind,
}

impl fmt::Display for RejectionOutage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the database rejects rows of many clients for the same reason: {}; no message is \
             lost; remove the constraint, or fix the migration that added it",
            self.error
        )
    }
}

/// The kind of a row in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    Upsert,
    Heartbeat,
    ConnectionEnd,
    DeadLetter,
}

impl RowKind {
    /// Returns the kind of the row that most likely caused the rejection of these rows.
    fn of(rows: &PresenceBatch) -> Self {
        if !rows.upserts.is_empty() {
            Self::Upsert
        } else if !rows.dead_letters.is_empty() {
            Self::DeadLetter
        } else if !rows.heartbeats.is_empty() {
            Self::Heartbeat
        } else {
            Self::ConnectionEnd
        }
    }

    /// Returns whether the batch contains rows of this kind.
    pub fn is_in(self, rows: &PresenceBatch) -> bool {
        match self {
            Self::Upsert => !rows.upserts.is_empty(),
            Self::Heartbeat => !rows.heartbeats.is_empty(),
            Self::ConnectionEnd => !rows.connection_ends.is_empty(),
            Self::DeadLetter => !rows.dead_letters.is_empty(),
        }
    }
}

/// The accepted and rejected rows of a batch.
pub(super) struct BatchRows<'a> {
    pub accepted: usize,
    pub rejected: &'a [RejectedPart],
}

#[derive(Default)]
struct Window {
    /// Time and number of accepted rows, oldest first.
    accepted: VecDeque<(Timestamp, usize)>,
    rejected: VecDeque<RejectedRows>,
}

/// The rows of one rejected part.
struct RejectedRows {
    time: Timestamp,
    client: Option<ClientId>,
    reason: String,
    row_count: usize,
}

impl RejectionMonitor {
    /// Returns the current outage.
    pub fn outage(&self) -> Option<RejectionOutage> {
        self.0.lock().outage.clone()
    }

    /// Returns the number of outages that have ended.
    pub fn ended_outages(&self) -> u64 {
        self.0.lock().ended_outages
    }

    /// Adds the rows of a batch to the window. Returns the outage if the rows in the window are an
    /// outage.
    pub fn add(&self, rows: &BatchRows<'_>, now: Timestamp) -> Option<RejectionOutage> {
        let mut state = self.0.lock();
        state.window.add(rows, now);
        if rows.rejected.is_empty() {
            return None;
        }
        state.detect_outage(rows.rejected)
    }

    /// Ends the outage, because the database has accepted a row of the rejected kind.
    pub fn end_outage(&self) {
        let mut state = self.0.lock();
        if state.outage.is_some() {
            *state = MonitorState {
                ended_outages: state.ended_outages + 1,
                ..MonitorState::default()
            };
            metrics::set_rejection_outage(false);
            tracing::info!("the database accepts rows again");
        }
    }
}

impl MonitorState {
    /// Searches for an outage. `rejected_parts` are the parts that were added to the window last.
    fn detect_outage(&mut self, rejected_parts: &[RejectedPart]) -> Option<RejectionOutage> {
        let reason = self.window.outage_reason()?;
        let part = rejected_parts
            .iter()
            .find(|part| part.rejection.reason == reason)?;
        let outage = RejectionOutage {
            reason,
            error: part.rejection.to_string(),
            row_kind: RowKind::of(&part.rows),
        };
        if self.outage.is_none() {
            metrics::set_rejection_outage(true);
            tracing::error!(
                reason = outage.reason,
                error = outage.error,
                "the database rejects rows of many clients for the same reason; retrying without \
                 dead letters; remove the constraint, or fix the migration that added it"
            );
        }
        self.outage = Some(outage.clone());
        Some(outage)
    }
}

impl Window {
    fn add(&mut self, rows: &BatchRows<'_>, now: Timestamp) {
        self.remove_expired(now);
        match self.accepted.back_mut() {
            Some((time, count)) if age(*time, now) < ACCEPTED_ENTRY_DURATION => {
                *count += rows.accepted;
            }
            _ => self.accepted.push_back((now, rows.accepted)),
        }
        self.rejected
            .extend(rows.rejected.iter().map(|part| RejectedRows {
                time: now,
                client: client_of(&part.rows).cloned(),
                reason: part.rejection.reason.clone(),
                row_count: part.rows.message_row_count(),
            }));
        let excess_parts = self.rejected.len().saturating_sub(MAX_REJECTED_PARTS);
        self.rejected.drain(..excess_parts);
    }

    /// Removes entries that are older than the window. Also removes entries whose time is later than
    /// `now` by the window or more. Such entries exist if the clock was set back.
    fn remove_expired(&mut self, now: Timestamp) {
        self.accepted.retain(|(time, _)| age(*time, now) < WINDOW);
        self.rejected.retain(|rows| age(rows.time, now) < WINDOW);
    }

    /// Returns the reason for which enough rows are rejected for an outage.
    fn outage_reason(&self) -> Option<String> {
        let mut rows_by_reason: HashMap<&str, (usize, HashSet<Option<&ClientId>>)> = HashMap::new();
        let mut total_rows: usize = self.accepted.iter().map(|(_, rows)| rows).sum();
        for rejected in &self.rejected {
            let (rows, clients) = rows_by_reason.entry(&rejected.reason).or_default();
            *rows += rejected.row_count;
            clients.insert(rejected.client.as_ref());
            total_rows += rejected.row_count;
        }
        rows_by_reason
            .into_iter()
            .find(|(_, (rows, clients))| {
                *rows >= MIN_REJECTED_ROWS
                    && clients.len() >= MIN_REJECTED_CLIENTS
                    && *rows * 2 > total_rows
            })
            .map(|(reason, _)| reason.to_owned())
    }
}

/// Returns the time between `time` and `now`, whichever is earlier.
fn age(time: Timestamp, now: Timestamp) -> Duration {
    now.duration_since(time).unsigned_abs()
}

/// Returns the client of a part that cannot be split. Returns `None` for a dead letter without a
/// client.
fn client_of(rows: &PresenceBatch) -> Option<&ClientId> {
    let upsert = rows.upserts.first().map(|row| &row.client_id);
    let heartbeat = || rows.heartbeats.first().map(|row| &row.client_id);
    let end = || rows.connection_ends.first().map(|row| &row.client_id);
    let dead_letter = || {
        rows.dead_letters
            .first()
            .and_then(|row| row.client.as_ref())
    };
    upsert.or_else(heartbeat).or_else(end).or_else(dead_letter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::{ConnectionEnd, ReceivedAt, RowRejection};

    const START: Timestamp = Timestamp::UNIX_EPOCH;

    fn rejected_part(client: &str, reason: &str) -> RejectedPart {
        let end = ConnectionEnd {
            client_id: ClientId::new(client).unwrap(),
            received_at: ReceivedAt::from_time(START),
            reason: domain::OfflineReason::Client,
        };
        RejectedPart {
            rows: PresenceBatch {
                connection_ends: vec![end],
                ..PresenceBatch::default()
            },
            rejection: RowRejection {
                reason: reason.to_owned(),
                error: reason.into(),
            },
        }
    }

    /// Adds `accepted` rows and one rejected row for each client number.
    fn add(
        monitor: &RejectionMonitor,
        seconds: i64,
        accepted: usize,
        rejected_clients: impl IntoIterator<Item = u32>,
        reason: &str,
    ) -> bool {
        let rejected: Vec<RejectedPart> = rejected_clients
            .into_iter()
            .map(|n| rejected_part(&format!("client-{n}"), reason))
            .collect();
        let rows = BatchRows {
            accepted,
            rejected: &rejected,
        };
        let now = Timestamp::from_second(1_000_000 + seconds).unwrap();
        monitor.add(&rows, now).is_some()
    }

    #[test]
    fn twenty_rejected_rows_of_ten_clients_are_an_outage_if_most_rows_are_rejected() {
        let is_outage = |accepted, rejected_clients: Vec<u32>| {
            let monitor = RejectionMonitor::default();
            add(&monitor, 0, accepted, rejected_clients, "reason")
        };
        assert!(is_outage(0, (0..20).collect()));
        assert!(!is_outage(0, (0..19).collect()), "too few rows");
        let nine_clients = (0..40).map(|n| n % 9).collect();
        assert!(!is_outage(0, nine_clients), "too few clients");
        assert!(is_outage(19, (0..20).collect()));
        assert!(
            !is_outage(20, (0..20).collect()),
            "half of the rows are accepted"
        );
    }

    #[test]
    fn rejections_of_several_batches_are_counted_for_one_minute() {
        let monitor = RejectionMonitor::default();
        assert!(!add(&monitor, 0, 0, 0..10, "reason"));
        assert!(!add(&monitor, 61, 0, 10..20, "reason"), "the first expired");
        assert!(add(&monitor, 90, 0, 20..30, "reason"));
    }

    #[test]
    fn rejections_with_different_reasons_are_no_outage() {
        let monitor = RejectionMonitor::default();
        assert!(!add(&monitor, 0, 0, 0..19, "first reason"));
        assert!(!add(&monitor, 0, 0, 20..39, "second reason"));
    }

    #[test]
    fn outage_lasts_until_a_row_is_accepted() {
        let monitor = RejectionMonitor::default();
        assert!(add(&monitor, 0, 0, 0..20, "reason"));
        assert_eq!(monitor.outage().unwrap().row_kind, RowKind::ConnectionEnd);
        assert_eq!(monitor.ended_outages(), 0);
        monitor.end_outage();
        assert_eq!(monitor.outage(), None);
        assert_eq!(monitor.ended_outages(), 1);
        assert!(!add(&monitor, 1, 0, 0..1, "reason"), "the window is empty");
        monitor.end_outage();
        assert_eq!(monitor.ended_outages(), 1, "there was no outage");
    }
}
