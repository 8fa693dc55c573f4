//! [`LivenessRepository`] of a SQL database.

use std::collections::HashMap;

use async_trait::async_trait;
use serde_json::json;

use domain::{ClientId, Timestamp};

use super::{Access, ColumnReader, SqlDatabase, SqlTransaction as _, Statement, batch, row};
use crate::error::{Result, StoreError};
use crate::history::log_transitions;
use crate::liveness::{
    ConnectionChunk, ExpiringConnection, IngestSession, LivenessRepository, RecordingProgress,
    SweepState, WatchedConnection,
};
use crate::partitions::QueueTopic;

/// The statements of the liveness sweep that differ between databases.
#[derive(Debug, Clone, Copy)]
pub struct LivenessStatements {
    /// Stores the progress of partitions. Its parameter is a JSON array of arrays: queue, partition, number
    /// of partitions, and time in microseconds since 1970.
    pub store_progress: Statement,
    /// Returns the columns `session`, `epoch`, `is_held` and `session_started_at` of the sessions of
    /// `ingest`.
    pub ingest_sessions: Statement,
}

#[async_trait]
impl<D: SqlDatabase> LivenessRepository for D {
    async fn current_time(&self) -> Result<Timestamp> {
        let query = self.statements().database_time.with([]);
        let rows = self.fetch_all(Access::Write, query).await?;
        let row = rows.first();
        let row = row.ok_or_else(|| StoreError::CorruptRow("no database time".to_owned()))?;
        row.timestamp("database_time")
    }

    async fn list_connections_seen_between(
        &self,
        after_client: Option<&ClientId>,
        limit: u32,
        from: Timestamp,
        until: Timestamp,
    ) -> Result<ConnectionChunk> {
        let after_client = after_client.map_or("", ClientId::as_str);
        let statements = self.statements();
        let query = statements
            .end_of_chunk
            .with([after_client.into(), limit.into()]);
        let rows = self.fetch_all(Access::Read, query).await?;
        let Some(end) = rows
            .first()
            .filter(|row| matches!(row.optional_text("client_id"), Ok(Some(_))))
        else {
            return Ok(ConnectionChunk::default());
        };
        let last_client = row::client_id(end)?;
        let query = statements.connections_seen_between.with([
            after_client.into(),
            (&last_client).into(),
            from.into(),
            until.into(),
        ]);
        let rows = self.fetch_all(Access::Read, query).await?;
        let connections = rows.iter().map(watched_connection);
        Ok(ConnectionChunk {
            connections: connections.collect::<Result<_>>()?,
            read_connections: end.count("count")?,
            last_client: Some(last_client),
        })
    }

    async fn find_watched_connections(
        &self,
        clients: &[ClientId],
    ) -> Result<Vec<WatchedConnection>> {
        let statement = self.statements().find_watched_connections;
        let rows = self
            .fetch_all(Access::Read, statement.with([clients.into()]))
            .await?;
        rows.iter().map(watched_connection).collect()
    }

    async fn expire_connections(
        &self,
        connections: &[ExpiringConnection],
    ) -> Result<Vec<ClientId>> {
        let expected: HashMap<&ClientId, &ExpiringConnection> = connections
            .iter()
            .map(|expiring| (&expiring.connection.client_id, expiring))
            .collect();
        let clients: Vec<ClientId> = expected.keys().map(|client| (*client).clone()).collect();
        let mut transaction = self.begin().await?;
        let lock = self.statements().lock_watched_connections;
        let mut expiring = Vec::with_capacity(clients.len());
        for row in transaction
            .fetch_all(lock.with([clients[..].into()]))
            .await?
        {
            let current = watched_connection(&row)?;
            if let Some(expected) = expected.get(&current.client_id)
                && expected.connection == current
            {
                expiring.push(*expected);
            }
        }
        let ended = batch::expire_connections(
            &mut transaction,
            self.statements(),
            &expiring,
            self.writes_events(),
        )
        .await?;
        transaction.commit().await?;
        log_transitions(&ended);
        Ok(ended.into_iter().map(|row| row.client_id).collect())
    }

    async fn store_recording_progress(&self, progress: &[RecordingProgress]) -> Result<Timestamp> {
        let rows = progress.iter().map(|row| {
            json!([
                row.queue.as_str(),
                row.partition,
                row.partition_count,
                row.processed_until.as_microsecond()
            ])
        });
        let rows = json!(rows.collect::<Vec<_>>()).to_string();
        let statement = self.liveness_statements().store_progress;
        self.execute(statement.with([rows.as_str().into()])).await?;
        self.current_time().await
    }

    async fn recording_progress(&self) -> Result<Vec<RecordingProgress>> {
        let query = self.statements().recording_progress.with([]);
        let rows = self.fetch_all(Access::Read, query).await?;
        let mut progress = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(partition) = recording_progress(row)? {
                progress.push(partition);
            }
        }
        Ok(progress)
    }

    async fn ingest_sessions(&self) -> Result<Vec<IngestSession>> {
        let query = self.liveness_statements().ingest_sessions.with([]);
        let rows = self.fetch_all(Access::Read, query).await?;
        rows.iter().map(ingest_session).collect()
    }

    async fn sweep_state(&self) -> Result<SweepState> {
        let query = self.statements().sweep_state.with([]);
        let rows = self.fetch_all(Access::Read, query).await?;
        let Some(row) = rows.first() else {
            return Ok(SweepState::default());
        };
        Ok(SweepState {
            completed_at: row.optional_timestamp("completed_at")?,
            swept_restart_at: row.optional_timestamp("swept_restart_at")?,
        })
    }

    async fn store_sweep_state(&self, state: SweepState) -> Result<()> {
        let statement = self.statements().store_sweep_state;
        let query = statement.with([state.completed_at.into(), state.swept_restart_at.into()]);
        self.execute(query).await.map(drop)
    }
}

fn watched_connection(row: &impl ColumnReader) -> Result<WatchedConnection> {
    let last_seen = row.timestamp("last_seen")?;
    let latest_presence_at = row.timestamp("presence_received_at")?;
    let last_heartbeat_at = row.optional_timestamp("last_heartbeat_at")?;
    Ok(WatchedConnection {
        client_id: row::client_id(row)?,
        dialect: row.text("dialect")?.into(),
        topic_prefix: row.text("topic_prefix")?,
        row_version: row.timestamp("updated_at")?,
        last_seen,
        latest_message_at: last_heartbeat_at
            .map_or(latest_presence_at, |time| time.max(latest_presence_at)),
    })
}

/// Reads a row of `recording_progress`. Returns `None` for a queue that this version does not have.
fn recording_progress(row: &impl ColumnReader) -> Result<Option<RecordingProgress>> {
    let queue = row.text("queue")?;
    let queues = [QueueTopic::Ingress, QueueTopic::Answers, QueueTopic::Slow];
    let Some(queue) = queues.into_iter().find(|it| it.as_str() == queue) else {
        return Ok(None);
    };
    let number = |column| {
        let number = row.count(column)?;
        i32::try_from(number)
            .map_err(|_| StoreError::CorruptRow(format!("{column} {number} is out of range")))
    };
    Ok(Some(RecordingProgress {
        queue,
        partition: number("partition")?,
        partition_count: number("partition_count")?,
        processed_until: row.timestamp("processed_until")?,
    }))
}

fn ingest_session(row: &impl ColumnReader) -> Result<IngestSession> {
    let epoch = row::ingest_epoch(row)?;
    Ok(IngestSession {
        session: epoch.session,
        epoch: epoch.epoch,
        is_held: row.count("is_held")? == 1,
        started_at: row.optional_timestamp("session_started_at")?,
    })
}
