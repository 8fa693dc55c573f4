//! A batch of presence changes: the rows that one transaction writes, and how a rejected batch is
//! split.
//!
//! To write another kind of row in the same transaction, add a list to [`PresenceBatch`]. The
//! functions of this module destructure the batch without `..`, so each of them fails to compile
//! until it handles the new list.

use std::collections::BTreeSet;

use domain::{
    ClientId, ClientInfo, ClientKind, DialectName, MessageId, OfflineReason, Tenant, Timestamp,
};

use crate::dead_letters::{DeadLetter, DeadLetterLimits};
use crate::history::{ContentHashes, HistoryRow, NewEvent};
use crate::messages::MessageAnswer;
use crate::partitions::ReceivedAt;
use crate::presence::RowVersion;

/// The data of an online message. The store inserts or updates the client's row in `connections`.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionUpsert {
    /// Client id.
    pub client_id: ClientId,
    /// Dialect of the online message.
    pub dialect: DialectName,
    /// Whether the client is a host or a proxy.
    pub kind: ClientKind,
    /// Topic prefix of the online message.
    pub topic_prefix: String,
    /// Facts, dispatchers, tags, name and version that the client sent.
    pub info: ClientInfo,
    /// Id of the online message.
    pub message_id: Option<MessageId>,
    /// Send time of the online message.
    pub message_sent_at: Timestamp,
    /// Receive time, queue position and ingest stamp of the online message.
    pub received_at: ReceivedAt,
    /// A heartbeat that was received later than the online message but processed earlier.
    pub last_heartbeat_at: Option<ReceivedAt>,
    /// How the result of the tenant lookup changes the row.
    pub tenant: TenantChange,
    /// Whether inventory accepts this host.
    pub inventory_eligible: bool,
    /// Time at which the report to inventory was delivered. `None` if the report is still pending, as
    /// in every batch of the recorder. See [`DeliveredReport`].
    pub reported_to_inventory_at: Option<Timestamp>,
    /// The row that the upsert replaces.
    pub replaced: ReplacedRow,
    /// Times and counters of the client's presence.
    pub presence: PresenceColumns,
}

/// The row of a client in `connections` that an upsert replaces. If the client has another row, the store
/// writes nothing and returns [`WriteOutcome::Conflict`](crate::WriteOutcome::Conflict).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplacedRow {
    /// The client has no row.
    Absent,
    /// The row has this version. A store with a search index writes the index only if the search hash
    /// changes.
    Version(RowVersion),
    /// Any row, or none. The recorder does not use this value.
    Any,
}

/// The times and counters of a client's presence, in `connections` and `disconnected_clients`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PresenceColumns {
    /// Time at which the connection became visible to the organization. `None` in rows of earlier
    /// versions.
    pub connected_since: Option<Timestamp>,
    /// Receive time of the latest message. `None` in rows of earlier versions.
    pub last_seen: Option<Timestamp>,
    /// Number of times the client has connected again since it was first seen in its organization.
    pub reconnects: u64,
    /// Number of reconnects since `hourly_reconnects_since`.
    pub hourly_reconnects: u64,
    /// Time of the first reconnect that `hourly_reconnects` counts. At most one hour before the latest
    /// reconnect.
    pub hourly_reconnects_since: Option<Timestamp>,
    /// Number of all transitions, including those without a history row.
    pub transition_count: u64,
    /// Hashes of the content that the client sent. `None` in rows of earlier versions.
    pub content_hashes: Option<ContentHashes>,
}

/// A client that sent a message, but whose row does not change otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastSeen {
    /// Client id.
    pub client_id: ClientId,
    /// Receive time of the latest message.
    pub at: Timestamp,
}

/// A heartbeat to record.
///
/// The store ignores the heartbeat of an unknown client, and a heartbeat that is not newer than the
/// client's latest presence message. Other heartbeats have these effects:
///
/// - A connected client stays connected, even if an older offline message is processed later.
/// - A disconnected client becomes connected again, with its previous data.
#[derive(Debug, Clone, PartialEq)]
pub struct HeartbeatUpdate {
    /// Client id.
    pub client_id: ClientId,
    /// Receive time and ingest stamp of the heartbeat.
    pub received_at: ReceivedAt,
    /// How the result of the tenant lookup changes the row. `None` leaves the tenant unchanged.
    pub tenant: Option<TenantChange>,
}

/// An offline message to record. The message ends the client's connection, unless the store has a
/// later heartbeat of the client.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionEnd {
    /// Client id.
    pub client_id: ClientId,
    /// Receive time, queue position and ingest stamp of the offline message.
    pub received_at: ReceivedAt,
    /// Why the client is disconnected.
    pub reason: OfflineReason,
}

/// A delivered report to inventory.
///
/// The store sets the time of the report in the client's row in `connections`. If the row has changed
/// since the report was created, for example because of a newer online message, the store ignores the
/// report: the newer content of the row is still to be reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveredReport {
    /// Client id.
    pub client_id: ClientId,
    /// Time of the batch that wrote the reported content of the row.
    pub row_version: Timestamp,
    /// Receive time of the reported online message.
    pub online_received_at: Timestamp,
    /// Time of the report.
    pub reported_at: Timestamp,
}

/// How the result of a tenant lookup changes a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantChange {
    /// The lookup found this tenant. The store resets the number of failed lookups.
    Found(Tenant),
    /// The lookup finished at this time and found no tenant. The client becomes tenantless.
    NotFound(Timestamp),
    /// The lookup was not possible. The client keeps this tenant, which is already stored.
    Keep(Tenant),
    /// The lookup was not possible and no tenant is stored. The client becomes tenantless and
    /// immediately due for a lookup.
    PendingLookup,
}

/// The changes of one batch. The store writes the lists in the order of these fields, in one
/// transaction.
///
/// Each list contains a client at most once. Two lists can contain the same client, for example if
/// the client connected and disconnected within the batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PresenceBatch {
    /// Clients that sent an online message.
    pub upserts: Vec<ConnectionUpsert>,
    /// Clients that sent a heartbeat.
    pub heartbeats: Vec<HeartbeatUpdate>,
    /// Clients that sent an offline message.
    pub connection_ends: Vec<ConnectionEnd>,
    /// Messages that can never be processed.
    pub dead_letters: Vec<DeadLetter>,
    /// Limit on the number of stored dead letters per client. The store deletes the oldest dead
    /// letters of a client above this limit.
    pub dead_letter_limits: DeadLetterLimits,
    /// Reports to inventory that were delivered after an earlier batch. A client can occur more than
    /// once.
    pub delivered_reports: Vec<DeliveredReport>,
    /// Clients that sent a message and are in no other list.
    pub last_seen: Vec<LastSeen>,
    /// History rows of the transitions that the upserts cause. The store adds the rows of all other
    /// transitions.
    pub history: Vec<HistoryRow>,
    /// Events that the upserts cause. The store adds all other events.
    pub events: Vec<NewEvent>,
    /// Answers of clients to tracked messages, ordered by client id and message id. Contains each message
    /// at most once for each client.
    pub answers: Vec<MessageAnswer>,
}

/// The parts of a batch that the database rejected.
#[derive(Debug, Clone, PartialEq)]
pub enum SplitBatch {
    /// Smaller batches. Together they contain all rows of the batch.
    Parts(Vec<PresenceBatch>),
    /// The batch cannot be split: it contains either one dead letter, the presence changes of one
    /// client, or only delivered reports.
    Indivisible(PresenceBatch),
}

impl PresenceBatch {
    /// Returns whether the batch contains no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            upserts,
            heartbeats,
            connection_ends,
            dead_letters,
            dead_letter_limits: _,
            delivered_reports,
            last_seen,
            history,
            events,
            answers,
        } = self;
        upserts.is_empty()
            && heartbeats.is_empty()
            && connection_ends.is_empty()
            && dead_letters.is_empty()
            && delivered_reports.is_empty()
            && last_seen.is_empty()
            && history.is_empty()
            && events.is_empty()
            && answers.is_empty()
    }

    /// Returns the number of rows that presence messages of clients have caused, and of dead letters.
    /// Delivered reports, history, events and answers are not counted.
    #[must_use]
    pub fn message_row_count(&self) -> usize {
        let Self {
            upserts,
            heartbeats,
            connection_ends,
            dead_letters,
            dead_letter_limits: _,
            delivered_reports: _,
            last_seen,
            history: _,
            events: _,
            answers: _,
        } = self;
        last_seen.len()
            + upserts.len()
            + heartbeats.len()
            + connection_ends.len()
            + dead_letters.len()
    }

    /// Splits a batch into smaller batches, to find a row that the database rejects.
    ///
    /// Delivered reports are separated from all other rows first, and are not split further: finding
    /// a rejected one is not worth the transactions, because a host whose report is not stored is
    /// reported again.
    ///
    /// A batch of several clients is split into two batches with half of the clients each. All rows
    /// of one client are in the same batch. In a batch of one client, the dead letters are
    /// separated from each other and from the other rows.
    #[must_use]
    pub fn split(mut self) -> SplitBatch {
        if !self.delivered_reports.is_empty() {
            let reports = Self {
                delivered_reports: std::mem::take(&mut self.delivered_reports),
                ..Self::default()
            };
            return if self.is_empty() {
                SplitBatch::Indivisible(reports)
            } else {
                SplitBatch::Parts(vec![reports, self])
            };
        }
        let clients = self.clients();
        if clients.len() > 1 {
            let first_half = clients.iter().take(clients.len() / 2).cloned().collect();
            return SplitBatch::Parts(self.split_by_client(&first_half).into());
        }
        let parts = self.split_off_dead_letters();
        match <[Self; 1]>::try_from(parts) {
            Ok([batch]) => SplitBatch::Indivisible(batch),
            Err(parts) => SplitBatch::Parts(parts),
        }
    }

    /// Returns the clients in a batch without delivered reports. `None` stands for dead letters without
    /// a client.
    fn clients(&self) -> BTreeSet<Option<ClientId>> {
        let Self {
            upserts,
            heartbeats,
            connection_ends,
            dead_letters,
            dead_letter_limits: _,
            delivered_reports: _,
            last_seen,
            history,
            events,
            answers,
        } = self;
        let upsert_clients = upserts.iter().map(|row| Some(row.client_id.clone()));
        let heartbeat_clients = heartbeats.iter().map(|row| Some(row.client_id.clone()));
        let end_clients = connection_ends
            .iter()
            .map(|row| Some(row.client_id.clone()));
        let dead_letter_clients = dead_letters.iter().map(|row| row.client.clone());
        let seen_clients = last_seen.iter().map(|row| Some(row.client_id.clone()));
        let history_clients = history.iter().map(|row| Some(row.client_id.clone()));
        let event_clients = events.iter().map(|row| Some(row.client_id.clone()));
        upsert_clients
            .chain(heartbeat_clients)
            .chain(end_clients)
            .chain(seen_clients)
            .chain(history_clients)
            .chain(event_clients)
            .chain(answers.iter().map(|row| Some(row.client_id.clone())))
            .chain(dead_letter_clients)
            .collect()
    }

    /// Splits a batch without delivered reports into the rows of the clients in `first_half` and the
    /// other rows.
    fn split_by_client(self, first_half: &BTreeSet<Option<ClientId>>) -> [Self; 2] {
        let Self {
            upserts,
            heartbeats,
            connection_ends,
            dead_letters,
            dead_letter_limits,
            delivered_reports,
            last_seen,
            history,
            events,
            answers,
        } = self;
        let is_first = |client: &ClientId| first_half.contains(&Some(client.clone()));
        let upserts = partition(upserts, |row| is_first(&row.client_id));
        let heartbeats = partition(heartbeats, |row| is_first(&row.client_id));
        let connection_ends = partition(connection_ends, |row| is_first(&row.client_id));
        let dead_letters = partition(dead_letters, |row| first_half.contains(&row.client));
        let last_seen = partition(last_seen, |row| is_first(&row.client_id));
        let history = partition(history, |row| is_first(&row.client_id));
        let events = partition(events, |row| is_first(&row.client_id));
        let answers = partition(answers, |row| is_first(&row.client_id));
        [
            Self {
                upserts: upserts.0,
                heartbeats: heartbeats.0,
                connection_ends: connection_ends.0,
                dead_letters: dead_letters.0,
                dead_letter_limits,
                delivered_reports,
                last_seen: last_seen.0,
                history: history.0,
                events: events.0,
                answers: answers.0,
            },
            Self {
                upserts: upserts.1,
                heartbeats: heartbeats.1,
                connection_ends: connection_ends.1,
                dead_letters: dead_letters.1,
                dead_letter_limits,
                delivered_reports: Vec::new(),
                last_seen: last_seen.1,
                history: history.1,
                events: events.1,
                answers: answers.1,
            },
        ]
    }

    /// Splits the batch into one batch for each dead letter and one batch with the other rows.
    fn split_off_dead_letters(mut self) -> Vec<Self> {
        let dead_letters = std::mem::take(&mut self.dead_letters);
        let mut parts: Vec<Self> = dead_letters
            .into_iter()
            .map(|dead_letter| Self {
                dead_letters: vec![dead_letter],
                dead_letter_limits: self.dead_letter_limits,
                ..Self::default()
            })
            .collect();
        if !self.is_empty() || parts.is_empty() {
            parts.push(self);
        }
        parts
    }
}

fn partition<T>(rows: Vec<T>, is_first: impl Fn(&T) -> bool) -> (Vec<T>, Vec<T>) {
    rows.into_iter().partition(is_first)
}
