//! [`EventRepository`] of a SQL database.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::Value;

use domain::{OrgId, Timestamp};

use super::moved_events::MovedEvents;
use super::row::{self, ColumnReader, invalid_json};
use super::{Access, Query, SqlDatabase, SqlTransaction as _, Statement};
use crate::error::Result;
use crate::events::{EventRepository, MAX_OUTBOX_COUNT, StoredEvent};

/// Maximum size of the data of the events that one call reads. The last event can exceed it.
const MAX_READ_BYTES: usize = 4 * 1024 * 1024;

/// The statements of a database in which transactions can commit in another order than they insert
/// events: `event_outbox` contains the committed events without a position, and `event_positions`
/// the positions of the sequencer and of the forwarder.
#[derive(Debug, Clone, Copy)]
pub struct EventOutboxStatements {
    /// Returns a row if `event_outbox` has a row whose id is higher than the parameter.
    pub find: Statement,
    /// Locks the row of the sequencer until the end of the transaction. Returns no row if another
    /// transaction has the lock.
    pub lock_sequencer: Statement,
    /// Moves the oldest rows of `event_outbox` to `events`. Its parameters are the maximum number, and
    /// the id below the ids of the rows. Its row has the columns `count` and `highest_id`.
    pub sequence: Statement,
    /// Counts rows of `event_outbox`, in the column `count`. Its parameters are the maximum count, and the
    /// id below the ids of the rows.
    pub count: Statement,
    /// Acquires or renews the lease of the forwarder. Its parameters are the holder and the duration
    /// in seconds. It returns the column `position` if the holder has the lease.
    pub hold_forwarder: Statement,
    /// Stores the position of the forwarder. Its parameters are the holder and the position.
    pub store_forwarded_position: Statement,
    /// Returns the position of the forwarder in the column `position`.
    pub forwarded_position: Statement,
}

#[async_trait]
impl<D: SqlDatabase> EventRepository for D {
    /// Why the events of a client keep their order, and why positions have no gaps:
    ///
    /// - One sequencer at a time has the lock. The statement that moves events starts after the lock is
    ///   acquired, and in READ COMMITTED each statement has its own snapshot. So the snapshot contains
    ///   everything that the previous holder of the lock has committed, and no event is moved twice. A
    ///   single statement would have the snapshot of the time before the lock.
    /// - The new positions and the position of the sequencer are written in one transaction. If it
    ///   fails, neither is visible, and the next sequencer gives the same positions.
    /// - A transaction draws the ids of a client's events while it has the lock of the client's row.
    ///   The sequence has no cache, so the ids of a later transaction of the client are higher. The
    ///   later transaction gets the lock only after the earlier one is committed. A snapshot that
    ///   contains the later event therefore also contains the earlier event, and it has the lower id.
    ///   The sequencer moves the lowest ids first.
    /// - An event that commits late, with a lower id than events of other clients that are already
    ///   moved, gets the next position. Readers read by position, so they do not skip the event.
    async fn sequence_events(&self, limit: u32) -> Result<u64> {
        let (Some(outbox), Some(moved)) = (self.event_outbox_statements(), self.moved_events())
        else {
            return Ok(0);
        };
        let search = moved.next_search(Instant::now());
        // Without this query, an idle sequencer would use up transaction ids for its lock.
        let find = outbox.find.with([search.after_id.into()]);
        if self.fetch_all(Access::Write, find).await?.is_empty() {
            moved.on_searched(search, None, true, Instant::now());
            return Ok(0);
        }
        let mut transaction = self.begin().await?;
        let locked = transaction
            .fetch_all(outbox.lock_sequencer.with([]))
            .await?;
        if locked.is_empty() {
            return Ok(0);
        }
        let parameters = [limit.into(), search.after_id.into()];
        let rows = transaction
            .fetch_all(outbox.sequence.with(parameters))
            .await?;
        let count = rows.first().map_or(Ok(0), |row| row.count("count"))?;
        let highest_id = rows.first().map(|row| row.optional_integer("highest_id"));
        let highest_id = highest_id.transpose()?.flatten();
        transaction.commit().await?;
        let is_empty = count < u64::from(limit);
        moved.on_searched(search, highest_id, is_empty, Instant::now());
        Ok(count)
    }

    async fn newest_position(&self) -> Result<u64> {
        let query = self.newest_event_position_statement().with([]);
        Ok(fetch_position(self, query).await?.unwrap_or(0))
    }

    async fn oldest_position(&self) -> Result<Option<u64>> {
        let query = self.statements().oldest_event_position.with([]);
        fetch_position(self, query).await
    }

    async fn read_events(
        &self,
        org: Option<&OrgId>,
        after_position: u64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>> {
        let statements = self.statements();
        let query = if let Some(org) = org {
            let parameters = [after_position.into(), limit.into(), org.into()];
            statements.read_org_events.with(parameters)
        } else {
            let parameters = [after_position.into(), limit.into()];
            statements.read_events.with(parameters)
        };
        let mut events = Vec::new();
        let mut byte_count = 0;
        let mut collect = |row: D::Row| {
            byte_count += row.text("data")?.len();
            events.push(stored_event(&row)?);
            Ok(if byte_count < MAX_READ_BYTES {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        };
        self.visit_rows(Access::Read, query, &mut collect).await?;
        Ok(events)
    }

    async fn delete_events_before(
        &self,
        time: Timestamp,
        now: Timestamp,
        limit: u32,
        up_to_position: u64,
    ) -> Result<u64> {
        let statement = self.statements().delete_events_before;
        let query = statement.with([time.into(), limit.into(), up_to_position.into(), now.into()]);
        self.execute(query).await
    }

    async fn hold_forwarder(&self, holder: &str, duration: Duration) -> Result<Option<u64>> {
        let Some(outbox) = self.event_outbox_statements() else {
            return Ok(None);
        };
        let parameters = [holder.into(), duration.as_secs().into()];
        fetch_position(self, outbox.hold_forwarder.with(parameters)).await
    }

    async fn store_forwarded_position(&self, holder: &str, position: u64) -> Result<bool> {
        let Some(outbox) = self.event_outbox_statements() else {
            return Ok(false);
        };
        let parameters = [holder.into(), position.into()];
        let query = outbox.store_forwarded_position.with(parameters);
        Ok(self.execute(query).await? > 0)
    }

    async fn forwarded_position(&self) -> Result<Option<u64>> {
        let Some(outbox) = self.event_outbox_statements() else {
            return Ok(None);
        };
        fetch_position(self, outbox.forwarded_position.with([])).await
    }

    async fn outbox_len(&self) -> Result<u64> {
        let Some(outbox) = self.event_outbox_statements() else {
            return Ok(0);
        };
        let after_id = self.moved_events().map_or(0, MovedEvents::limit);
        let query = outbox
            .count
            .with([MAX_OUTBOX_COUNT.into(), after_id.into()]);
        self.fetch_count(Access::Write, query).await
    }
}

/// Runs a query that returns at most one row with the column `position`. Uses the connections for
/// writing, because the query can change the row.
async fn fetch_position<D: SqlDatabase>(database: &D, query: Query<'_>) -> Result<Option<u64>> {
    let rows = database.fetch_all(Access::Write, query).await?;
    let position = rows.first().map(|row| row.optional_integer("position"));
    let position = position.transpose()?.flatten();
    Ok(position.map(|position| u64::try_from(position).unwrap_or(0)))
}

fn stored_event(row: &impl ColumnReader) -> Result<StoredEvent> {
    let parse_json = |column: &str, text: &str| {
        serde_json::from_str::<Value>(text).unwrap_or_else(|error| invalid_json(column, &error))
    };
    let previous_dispatchers = row.optional_text("previous_dispatchers")?;
    Ok(StoredEvent {
        position: row.count("position")?,
        at: row.timestamp("at")?,
        event_type: row.text("type")?,
        tenant: row::tenant(row)?,
        client_id: row::client_id(row)?,
        data: parse_json("data", &row.text("data")?),
        previous_dispatchers: previous_dispatchers
            .map(|text| parse_json("previous_dispatchers", &text)),
    })
}
