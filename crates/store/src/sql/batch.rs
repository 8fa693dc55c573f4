//! The steps of a transaction that writes a batch, in their order.

use std::collections::HashMap;

use async_trait::async_trait;

use domain::{ClientId, Connection, OfflineReason, OnlineCause, Timestamp};

use super::messages::{self, MessageChange};
use super::query::Query;
use super::row::{self, ColumnReader, EndedConnection, RestoredConnection};
use super::statements::SharedStatements;
use crate::batch::{
    ConnectionEnd, ConnectionUpsert, DeliveredReport, HeartbeatUpdate, LastSeen, PresenceBatch,
    TenantChange,
};
use crate::dead_letters::{DeadLetter, DeadLetterLimits};
use crate::error::{Result, StoreError};
use crate::history::{HistoryRow, NewEvent, Transition, event_data, log_transitions};
use crate::liveness::ExpiringConnection;
use crate::messages::MessageAnswer;
use crate::partitions::{PartitionLease, ReceivedAt};
use crate::presence::WriteOutcome;

/// A transaction that writes a batch. Dropping the transaction rolls it back.
///
/// Each list of [`PresenceBatch`] has one method `write_…`, which each backend must implement.
#[async_trait]
pub trait SqlTransaction: Send + Sized {
    /// A row of a result.
    type Row: ColumnReader;

    /// Runs a query and returns all rows.
    async fn fetch_all(&mut self, query: Query<'_>) -> Result<Vec<Self::Row>>;

    /// Runs a statement and returns the number of changed rows.
    async fn execute(&mut self, query: Query<'_>) -> Result<u64>;

    /// Reads the columns `queue`, `partition` and `epoch` of at least the partitions in `leases`.
    /// No process can acquire one of these partitions until the end of the transaction.
    async fn lock_partitions(&mut self, leases: &[PartitionLease]) -> Result<Vec<Self::Row>>;

    /// Returns whether a client of `rows` has another row in `connections` than the one that its upsert
    /// replaces. A backend whose [`Self::write_upserts`] checks this returns false.
    async fn has_outdated_rows(&mut self, rows: &[ConnectionUpsert]) -> Result<bool>;

    /// Inserts or updates rows in `connections`, and inserts the history rows and the events that the
    /// upserts cause. Fails with [`StoreError::OutdatedBatch`] if a client has another row than the one
    /// that its upsert replaces.
    ///
    /// Three columns of an existing row need special rules:
    /// - `tenant_lookup_failure_count` is reset if the client has a tenant. For a tenantless client,
    ///   only the tenantless job changes the number.
    /// - `last_heartbeat_at` is kept if the stored heartbeat is later than this online message.
    /// - `stale_timestamp` is kept for a tenantless client, because a tenantless client is never
    ///   reported to inventory.
    async fn write_upserts(
        &mut self,
        rows: &[ConnectionUpsert],
        history: &[HistoryRow],
        events: &[NewEvent],
        now: Timestamp,
    ) -> Result<()>;

    /// Applies heartbeats to connected and to disconnected clients. Tries both for each heartbeat,
    /// because a client can have connected or disconnected after its state was loaded. Returns the
    /// restored connections, as they are now: the columns of a tenant, of the client's content, and
    /// `connected_since` and `transition_count`.
    async fn write_heartbeats(
        &mut self,
        rows: &[HeartbeatUpdate],
        now: Timestamp,
    ) -> Result<Vec<Self::Row>>;

    /// Stores the times at which clients were last seen. Never makes a stored time earlier.
    async fn write_last_seen(&mut self, rows: &[LastSeen]) -> Result<()>;

    /// Applies offline messages. Returns the ended connections, as they are in `disconnected_clients`:
    /// the columns of a tenant, `dispatchers`, `connected_since`, `disconnected_at` and
    /// `transition_count`.
    ///
    /// A client with a later heartbeat stays connected, and its row stores the receive time of the
    /// offline message. If a client is already disconnected, its row stores the receive time of the
    /// latest offline message.
    async fn write_connection_ends(&mut self, rows: &[ConnectionEnd]) -> Result<Vec<Self::Row>>;

    /// Inserts history rows. Replaces a row with the same client and number.
    async fn write_history(&mut self, rows: &[HistoryRow]) -> Result<()>;

    /// Inserts events, in their order.
    async fn write_events(&mut self, rows: &[NewEvent]) -> Result<()>;

    /// Inserts dead letters. If a message is already stored, updates its row and increments
    /// `occurrences`.
    async fn write_dead_letters(&mut self, rows: &[DeadLetter]) -> Result<()>;

    /// Stores the times of delivered reports to inventory in `stale_timestamp`. Skips rows that have
    /// changed since the report was created.
    ///
    /// Also skips rows that another transaction has locked: such a row is just being changed. The
    /// statement therefore never waits, and cannot deadlock with other batches and with jobs.
    async fn write_delivered_reports(&mut self, rows: &[DeliveredReport]) -> Result<()>;

    /// Applies answers to tracked messages. Changes only a message that was sent to the client, whose client
    /// has not changed its organization since then, and that is not cancelled. The first answer sets the
    /// state and is stored; the others are counted. Returns the messages with a first answer: the columns
    /// of [`MESSAGE_CHANGE_COLUMNS`](super::MESSAGE_CHANGE_COLUMNS).
    async fn write_answers(&mut self, rows: &[MessageAnswer]) -> Result<Vec<Self::Row>>;

    /// Commits the transaction.
    async fn commit(self) -> Result<()>;
}

/// Writes a batch and commits the transaction. Writes nothing if a lease is lost.
pub(super) async fn record_batch(
    mut transaction: impl SqlTransaction,
    statements: &SharedStatements,
    batch: &PresenceBatch,
    leases: &[PartitionLease],
    now: Timestamp,
    writes_events: bool,
) -> Result<WriteOutcome> {
    let PresenceBatch {
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
    } = batch;
    let lost_leases = find_lost_leases(&mut transaction, leases).await?;
    if !lost_leases.is_empty() {
        return Ok(WriteOutcome::Fenced(lost_leases));
    }
    if !upserts.is_empty() {
        if transaction.has_outdated_rows(upserts).await? {
            return Ok(WriteOutcome::Conflict);
        }
        let events = if writes_events { &events[..] } else { &[] };
        transaction
            .write_upserts(upserts, history, events, now)
            .await?;
        delete_disconnects(&mut transaction, statements, upserts).await?;
    }
    let mut derived_history = Vec::new();
    if !heartbeats.is_empty() {
        let restored = transaction.write_heartbeats(heartbeats, now).await?;
        derived_history = record_restored(&mut transaction, &restored, now, writes_events).await?;
    }
    if !last_seen.is_empty() {
        transaction.write_last_seen(last_seen).await?;
    }
    if !connection_ends.is_empty() {
        let ended = transaction.write_connection_ends(connection_ends).await?;
        let ends = connection_ends;
        let ended = record_ended(&mut transaction, ends, &ended, now, writes_events).await?;
        derived_history.extend(ended);
    }
    if !dead_letters.is_empty() {
        transaction.write_dead_letters(dead_letters).await?;
        let limits = *dead_letter_limits;
        enforce_limits(&mut transaction, statements, dead_letters, limits).await?;
    }
    if !delivered_reports.is_empty() {
        transaction
            .write_delivered_reports(delivered_reports)
            .await?;
    }
    let answered = if answers.is_empty() {
        Vec::new()
    } else {
        record_answers(&mut transaction, answers, now, writes_events).await?
    };
    transaction.commit().await?;
    log_transitions(history);
    log_transitions(&derived_history);
    messages::count_changes(&answered);
    Ok(WriteOutcome::Committed)
}

/// Applies answers to tracked messages, and writes the events of the messages with a first answer.
async fn record_answers(
    transaction: &mut impl SqlTransaction,
    answers: &[MessageAnswer],
    now: Timestamp,
    writes_events: bool,
) -> Result<Vec<MessageChange>> {
    let rows = transaction.write_answers(answers).await?;
    let answered = rows
        .iter()
        .map(MessageChange::from_row)
        .collect::<Result<Vec<_>>>()?;
    messages::write_message_events(transaction, &answered, now, writes_events).await?;
    Ok(answered)
}

/// Writes the history and the events of connections that heartbeats have restored. No row has a later
/// time than `now`. Returns the history rows.
async fn record_restored<T: SqlTransaction>(
    transaction: &mut T,
    rows: &[T::Row],
    now: Timestamp,
    writes_events: bool,
) -> Result<Vec<HistoryRow>> {
    let cause = OnlineCause::Heartbeat;
    let mut history = Vec::with_capacity(rows.len());
    let mut events = Vec::new();
    for row in rows {
        let RestoredConnection {
            client_id,
            tenant,
            transition_count,
            connected_since,
            info,
        } = row::restored_connection(row)?;
        if let Some(tenant) = tenant.clone().filter(|_| writes_events) {
            events.push(NewEvent {
                client_id: client_id.clone(),
                tenant,
                at: connected_since.min(now),
                event_type: event_data::ONLINE,
                data: event_data::online(&info, cause),
                dispatchers_changed: false,
            });
        }
        history.push(HistoryRow {
            client_id,
            number: transition_count,
            at: connected_since.min(now),
            tenant,
            transition: Transition::Online(cause),
        });
    }
    write_history_and_events(transaction, &history, &events).await?;
    Ok(history)
}

/// Writes the history and the events of ended connections. No row has a later time than `now`. Returns
/// the history rows.
async fn record_ended<T: SqlTransaction>(
    transaction: &mut T,
    ends: &[ConnectionEnd],
    rows: &[T::Row],
    now: Timestamp,
    writes_events: bool,
) -> Result<Vec<HistoryRow>> {
    let reasons: HashMap<&ClientId, OfflineReason> = ends
        .iter()
        .map(|end| (&end.client_id, end.reason))
        .collect();
    let mut history = Vec::with_capacity(rows.len());
    let mut events = Vec::new();
    for row in rows {
        let EndedConnection {
            client_id,
            tenant,
            transition_count,
            connected_since,
            disconnected_at,
            dispatchers,
        } = row::ended_connection(row)?;
        let Some(reason) = reasons.get(&client_id).copied() else {
            continue;
        };
        if let Some(tenant) = tenant.clone().filter(|_| writes_events) {
            let connected_for = disconnected_at.duration_since(connected_since);
            events.push(NewEvent {
                client_id: client_id.clone(),
                tenant,
                at: disconnected_at.min(now),
                event_type: event_data::OFFLINE,
                data: event_data::offline(reason, connected_for.as_secs(), &dispatchers),
                dispatchers_changed: false,
            });
        }
        history.push(HistoryRow {
            client_id,
            number: transition_count,
            at: disconnected_at.min(now),
            tenant,
            transition: Transition::Offline(reason),
        });
    }
    write_history_and_events(transaction, &history, &events).await?;
    Ok(history)
}

async fn write_history_and_events(
    transaction: &mut impl SqlTransaction,
    history: &[HistoryRow],
    events: &[NewEvent],
) -> Result<()> {
    if !history.is_empty() {
        transaction.write_history(history).await?;
    }
    if !events.is_empty() {
        transaction.write_events(events).await?;
    }
    Ok(())
}

/// Returns the leases whose epoch is not the current epoch of the partition.
async fn find_lost_leases(
    transaction: &mut impl SqlTransaction,
    leases: &[PartitionLease],
) -> Result<Vec<PartitionLease>> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let mut current_epochs = Vec::new();
    for row in transaction.lock_partitions(leases).await? {
        current_epochs.push((
            row.text("queue")?,
            row.optional_integer("partition")?,
            row.optional_integer("epoch")?,
        ));
    }
    let is_current = |lease: &&PartitionLease| {
        let partition = Some(lease.partition.into());
        let epoch = Some(lease.epoch);
        current_epochs.contains(&(lease.queue.as_str().to_owned(), partition, epoch))
    };
    Ok(leases
        .iter()
        .filter(|lease| !is_current(lease))
        .copied()
        .collect())
}

/// Deletes the rows of connected clients in `disconnected_clients`.
async fn delete_disconnects(
    transaction: &mut impl SqlTransaction,
    statements: &SharedStatements,
    upserts: &[ConnectionUpsert],
) -> Result<()> {
    let clients: Vec<ClientId> = upserts.iter().map(|row| row.client_id.clone()).collect();
    let has_tenantless_client = upserts
        .iter()
        .any(|row| TenantColumns::from(&row.tenant).org_id.is_empty());
    if has_tenantless_client {
        let query = statements.keep_failed_lookups.with([clients[..].into()]);
        transaction.execute(query).await?;
    }
    let query = statements.delete_disconnects.with([clients[..].into()]);
    transaction.execute(query).await?;
    Ok(())
}

/// Deletes the oldest dead letters of each client of the batch above the limit per client.
async fn enforce_limits(
    transaction: &mut impl SqlTransaction,
    statements: &SharedStatements,
    dead_letters: &[DeadLetter],
    limits: DeadLetterLimits,
) -> Result<()> {
    let mut client_ids: Vec<&str> = dead_letters
        .iter()
        .map(DeadLetter::client_id_column)
        .collect();
    client_ids.sort_unstable();
    client_ids.dedup();
    let query = statements.delete_dead_letters_above_client_limit.with([
        super::Parameter::TextList(client_ids),
        limits.max_dead_letters_per_client.into(),
    ]);
    transaction.execute(query).await?;
    Ok(())
}

/// Ends a connection, unless the client has reconnected since the connection was read.
///
/// The disconnect has the time of the database, because the clock of this host can differ from the
/// clocks of other hosts. If the client's latest message has a later time, the disconnect has the
/// time of that message: the message was recorded before the disconnect.
pub(super) async fn mark_disconnected(
    mut transaction: impl SqlTransaction,
    statements: &SharedStatements,
    connection: &Connection,
    reason: OfflineReason,
    writes_events: bool,
) -> Result<bool> {
    let client = &connection.client_id;
    let query = statements.current_connection.with([client.into()]);
    let rows = transaction.fetch_all(query).await?;
    let current = rows.first().map(row::current_connection).transpose()?;
    // The time is read after the row is locked, so no message of the client is recorded
    // after this time and before the disconnect.
    let database_time = database_time(&mut transaction, statements).await?;
    let history = match current {
        Some(current) if !current.is_same_as(connection) => return Ok(false),
        Some(current) => {
            let time = database_time.max(current.latest_message_at);
            let end = ConnectionEnd {
                client_id: client.clone(),
                received_at: ReceivedAt::from_time(time),
                reason,
            };
            let ends = [end];
            let ended = transaction.write_connection_ends(&ends).await?;
            record_ended(
                &mut transaction,
                &ends,
                &ended,
                database_time,
                writes_events,
            )
            .await?
        }
        // Does not end connections, because the client can connect at this moment.
        None => {
            let statement = statements.update_disconnect_time;
            let query = statement.with([client.into(), database_time.into()]);
            transaction.execute(query).await?;
            Vec::new()
        }
    };
    transaction.commit().await?;
    log_transitions(&history);
    Ok(!history.is_empty())
}

/// Ends connections that did not respond to pings. The caller has locked their rows and compared them with
/// the rows before the pings. Returns the history rows of the connections that ended.
pub(super) async fn expire_connections(
    transaction: &mut impl SqlTransaction,
    statements: &SharedStatements,
    expiring: &[&ExpiringConnection],
    writes_events: bool,
) -> Result<Vec<HistoryRow>> {
    if expiring.is_empty() {
        return Ok(Vec::new());
    }
    let end = |expiring: &&ExpiringConnection| {
        let connection = &expiring.connection;
        let latest_message_at = connection.last_seen.max(connection.latest_message_at);
        let time = expiring.unanswered_since.max(latest_message_at);
        ConnectionEnd {
            client_id: connection.client_id.clone(),
            received_at: ReceivedAt::from_time(time),
            reason: OfflineReason::Expired,
        }
    };
    let ends: Vec<ConnectionEnd> = expiring.iter().map(end).collect();
    let ended = transaction.write_connection_ends(&ends).await?;
    let now = database_time(transaction, statements).await?;
    record_ended(transaction, &ends, &ended, now, writes_events).await
}

async fn database_time(
    transaction: &mut impl SqlTransaction,
    statements: &SharedStatements,
) -> Result<Timestamp> {
    let rows = transaction
        .fetch_all(statements.database_time.with([]))
        .await?;
    let row = rows.first();
    let row = row.ok_or_else(|| StoreError::CorruptRow("no database time".to_owned()))?;
    row.timestamp("database_time")
}

/// The columns of a row that a [`TenantChange`] sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantColumns<'a> {
    /// Organization id. Empty for a tenantless client.
    pub org_id: &'a str,
    /// Account number. Empty for a tenantless client.
    pub account: &'a str,
    /// Time of the lookup that found no tenant. `None` for a client with a tenant.
    pub lookup_timestamp: Option<Timestamp>,
}

impl<'a> From<&'a TenantChange> for TenantColumns<'a> {
    fn from(change: &'a TenantChange) -> Self {
        let tenantless = |lookup_timestamp| Self {
            org_id: "",
            account: "",
            lookup_timestamp: Some(lookup_timestamp),
        };
        match change {
            TenantChange::Found(tenant) | TenantChange::Keep(tenant) => Self {
                org_id: tenant.org_id.as_str(),
                account: &tenant.account,
                lookup_timestamp: None,
            },
            TenantChange::NotFound(time) => tenantless(*time),
            // If the lookup time is the Unix epoch, the client is due for a lookup immediately.
            TenantChange::PendingLookup => tenantless(Timestamp::UNIX_EPOCH),
        }
    }
}
