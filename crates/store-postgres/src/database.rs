//! [`SqlDatabase`] for PostgreSQL: runs statements on the pool, or on the connections that are
//! reserved for the API or for the recorder.

use std::sync::LazyLock;

use async_trait::async_trait;
use const_format::concatcp;

use crate::driver::{self, Row, pg_query, set_based};
use crate::guarded_pool::GuardedConnection;
use crate::transaction::PostgresTransaction;
use crate::{PostgresStore, connect, lookup_results, search, upsert};
use domain::{ClientId, OrgId, Tenant, Timestamp};
use store::sql::{
    Access, ColumnReader as _, EventOutboxStatements, LivenessStatements, MovedEvents, Query,
    RowPage, RowVisitor, SELECT_CONNECTED_CLIENTS, SELECT_DISCONNECTED_CLIENTS, SharedStatements,
    SqlDatabase, SqlSyntax, Statement,
};
use store::{LookupResult, PageRequest, PartitionLease, PresenceBatch, Result, StoreError};

pub(crate) static SHARED_STATEMENTS: LazyLock<SharedStatements> = LazyLock::new(|| {
    SharedStatements::new(SqlSyntax {
        is_listed: "= ANY($1)",
        connection_count: "COALESCE(sum(delta), 0)::bigint AS count FROM org_connection_deltas",
        for_update: " FOR UPDATE",
        skip_locked: " FOR UPDATE SKIP LOCKED",
        reported_connections: "inventory_reports JOIN connections USING (client_id)",
        reported_at: "reported_at",
        skip_locked_connections: " FOR UPDATE OF connections SKIP LOCKED",
        current_time: "clock_timestamp()",
        search_hash: "search_hash",
        lease_end: "clock_timestamp() + make_interval(secs => $1::bigint)",
        one_day: "interval '1 day'",
    })
});

/// The clients that can have the identifier `$1`. The search table has the FQDN in lower case, and only the
/// start of a long identifier. The limits bound the time of a search for an identifier that many clients have,
/// such as `localhost`.
const CANDIDATES: &str = "WITH candidates AS MATERIALIZED (
            SELECT $1::text AS client_id
             UNION (SELECT client_id FROM connection_search
                     WHERE fqdn = left(lower($1 COLLATE \"C\"), 255) LIMIT 10000)
             UNION (SELECT client_id FROM connection_search
                     WHERE insights_id = left($1, 255) LIMIT 10000)
             UNION (SELECT client_id FROM connection_search
                     WHERE subscription_manager_id = left($1, 255) LIMIT 10000)) ";

/// Condition on clients that have the identifier `$1`.
const HAS_IDENTIFIER: &str = "client_id IN (SELECT client_id FROM candidates) \
     AND (client_id = $1 OR canonical_facts ->> 'fqdn' = $1 \
         OR canonical_facts ->> 'insights_id' = $1 \
         OR canonical_facts ->> 'subscription_manager_id' = $1)";

store::statements! {
    NEXT_EPOCHS = "
        INSERT INTO partition_epoch (queue, partition, epoch, owner)
        SELECT $1, p, extract(epoch FROM now())::bigint, $3 FROM UNNEST($2::int[]) AS p
        ON CONFLICT (queue, partition) DO UPDATE SET
               epoch = GREATEST(partition_epoch.epoch + 1, excluded.epoch),
               owner = excluded.owner, acquired_at = now()
        RETURNING partition, epoch";

    NEXT_INGEST_EPOCH = "
        INSERT INTO ingest_sessions (name, epoch, session_started_at)
        VALUES ($1, extract(epoch FROM now())::bigint, CASE WHEN $2::bigint = 0 THEN now() END)
        ON CONFLICT (name) DO UPDATE SET
               epoch = GREATEST(ingest_sessions.epoch + 1, excluded.epoch), acquired_at = now(),
               session_started_at =
                   COALESCE(excluded.session_started_at, ingest_sessions.session_started_at)
        RETURNING session, epoch";

    /// Parameters: session, holder, seconds.
    HOLD_INGEST_SESSION = "
        INSERT INTO ingest_sessions (name, epoch, holder, held_until)
        VALUES ($1, 0, $2, now() + make_interval(secs => $3::bigint))
        ON CONFLICT (name) DO UPDATE SET
               holder = excluded.holder, held_until = excluded.held_until
         WHERE ingest_sessions.holder = excluded.holder OR ingest_sessions.held_until IS NULL
            OR ingest_sessions.held_until < now()
        RETURNING name";

    /// Parameters: JSON.
    STORE_RECORDING_PROGRESS = "
        INSERT INTO recording_progress (queue, partition, partition_count, processed_until, stored_at)
        SELECT p ->> 0, (p ->> 1)::int, (p ->> 2)::int,
               timestamptz 'epoch' + (p ->> 3)::bigint * interval '1 microsecond', clock_timestamp()
          FROM jsonb_array_elements($1::text::jsonb) AS p ORDER BY p ->> 0, (p ->> 1)::int
        ON CONFLICT (queue, partition) DO UPDATE SET partition_count = excluded.partition_count,
               processed_until =
                   GREATEST(recording_progress.processed_until, excluded.processed_until),
               stored_at = excluded.stored_at";

    /// The lease of the liveness sweep is no session at the broker.
    INGEST_SESSIONS = "
        SELECT session, epoch, (COALESCE(held_until >= now(), false))::int AS is_held,
               session_started_at
          FROM ingest_sessions WHERE epoch > 0 ORDER BY session";

    FLUSH_SEARCH_INDEX = "SELECT gin_clean_pending_list('connection_search_term_hashes')";

    NEWEST_EVENT_POSITION = "SELECT position FROM event_positions WHERE name = 'sequencer'";

    /// Parameters: id below the ids of the rows.
    FIND_OUTBOX_EVENT = "SELECT id FROM event_outbox WHERE id > $1 ORDER BY id LIMIT 1";

    LOCK_SEQUENCER =
        "SELECT position FROM event_positions WHERE name = 'sequencer' FOR UPDATE SKIP LOCKED";

    /// Parameters: limit, id below the ids of the rows. All parts of the statement have the same
    /// snapshot, so `sequencer` has the position before the update.
    ///
    /// The rows are selected by a range of ids, because a list of ids would be joined with the table. After a
    /// vacuum of the empty table PostgreSQL expects one row, and joins without a hash or an index: with many
    /// events, the statement would exceed its timeout, again and again.
    SEQUENCE_EVENTS = "
        WITH moved AS (
            DELETE FROM event_outbox
             WHERE id > $2 AND id <= (SELECT max(id) FROM (
                       SELECT id FROM event_outbox WHERE id > $2 ORDER BY id LIMIT $1) AS oldest)
            RETURNING *),
        inserted AS (
            INSERT INTO events (position, at, type, org_id, account, client_id, data,
                   previous_dispatchers)
            SELECT sequencer.position + row_number() OVER (ORDER BY moved.id), at, type, org_id,
                   account, client_id, data, previous_dispatchers
              FROM moved CROSS JOIN event_positions AS sequencer
             WHERE sequencer.name = 'sequencer'),
        moved_count AS (SELECT count(*) AS count, max(id) AS highest_id FROM moved),
        updated AS (
            UPDATE event_positions SET position = position + moved_count.count
              FROM moved_count WHERE name = 'sequencer' AND moved_count.count > 0)
        SELECT count, highest_id FROM moved_count";

    /// Parameters: maximum count, id below the ids of the rows.
    COUNT_OUTBOX_EVENTS = "SELECT count(*) AS count FROM (
        SELECT id FROM event_outbox WHERE id > $2 ORDER BY id LIMIT $1) AS oldest";

    /// Parameters: holder, seconds.
    HOLD_FORWARDER = "
        UPDATE event_positions
           SET holder = $1, held_until = clock_timestamp() + make_interval(secs => $2::bigint)
         WHERE name = 'forwarder'
           AND (holder = $1 OR held_until IS NULL OR held_until < clock_timestamp())
        RETURNING position";

    /// Parameters: holder, position.
    STORE_FORWARDED_POSITION = "
        UPDATE event_positions SET position = $2
         WHERE name = 'forwarder' AND holder = $1 AND held_until >= clock_timestamp()
           AND position <= $2";

    FORWARDED_POSITION = "SELECT position FROM event_positions WHERE name = 'forwarder'";

    /// Parameters: time, limit. Also deletes the client's row in `connection_search` and its history,
    /// unless the client has reconnected.
    ///
    /// Skips rows that a batch has locked, because the client of such a row is reconnecting. The
    /// statement therefore never waits, and cannot deadlock with a batch.
    DELETE_CLIENTS_DISCONNECTED_BEFORE = "
        WITH expired AS (
            SELECT client_id FROM disconnected_clients WHERE disconnected_at < $1
             ORDER BY disconnected_at LIMIT $2 FOR UPDATE SKIP LOCKED),
        deleted AS (
            DELETE FROM disconnected_clients AS d USING expired
             WHERE d.client_id = expired.client_id RETURNING d.client_id),
        expired_search AS (
            SELECT s.client_id FROM connection_search AS s JOIN deleted USING (client_id)
             WHERE NOT EXISTS (SELECT FROM connections AS c WHERE c.client_id = s.client_id)
               FOR UPDATE OF s SKIP LOCKED),
        deleted_search AS (
            DELETE FROM connection_search AS s USING expired_search
             WHERE s.client_id = expired_search.client_id),
        deleted_history AS (
            DELETE FROM presence_history AS h USING deleted
             WHERE h.client_id = deleted.client_id
               AND NOT EXISTS (SELECT FROM connections AS c WHERE c.client_id = h.client_id))
        SELECT count(*) AS count FROM deleted";

    /// Parameters: text, limit.
    SEARCH_CLIENTS = concatcp!(
        CANDIDATES, SELECT_CONNECTED_CLIENTS, HAS_IDENTIFIER, " UNION ALL ",
        SELECT_DISCONNECTED_CLIENTS, HAS_IDENTIFIER,
        " AND NOT EXISTS (SELECT FROM connections AS c
                           WHERE c.client_id = disconnected_clients.client_id)
          ORDER BY client_id LIMIT $2"
    );
}

static LIVENESS_STATEMENTS: LivenessStatements = LivenessStatements {
    store_progress: STORE_RECORDING_PROGRESS,
    ingest_sessions: INGEST_SESSIONS,
};

static EVENT_OUTBOX_STATEMENTS: EventOutboxStatements = EventOutboxStatements {
    find: FIND_OUTBOX_EVENT,
    lock_sequencer: LOCK_SEQUENCER,
    sequence: SEQUENCE_EVENTS,
    count: COUNT_OUTBOX_EVENTS,
    hold_forwarder: HOLD_FORWARDER,
    store_forwarded_position: STORE_FORWARDED_POSITION,
    forwarded_position: FORWARDED_POSITION,
};

#[async_trait]
impl SqlDatabase for PostgresStore {
    type Row = Row;
    type Transaction = PostgresTransaction;

    fn statements(&self) -> &'static SharedStatements {
        &SHARED_STATEMENTS
    }

    async fn fetch_all(&self, access: Access, query: Query<'_>) -> Result<Vec<Row>> {
        let query = pg_query(&query);
        let connections = match access {
            Access::Write | Access::Read => return driver::fetch_all(&self.pool, query).await,
            Access::ApiRead => &self.api_connections,
            Access::Record => &self.recorder_connections,
        };
        let fetch =
            async |connection: &mut GuardedConnection| driver::fetch_all(connection, query).await;
        connections.with_connection(fetch).await
    }

    async fn visit_rows(
        &self,
        access: Access,
        query: Query<'_>,
        visit: RowVisitor<'_, Row>,
    ) -> Result<()> {
        let query = pg_query(&query);
        if access != Access::ApiRead {
            let mut connection = self.pool.acquire().await?.close_when_canceled();
            return connection.visit_rows(query, visit).await;
        }
        let read =
            async |connection: &mut GuardedConnection| connection.visit_rows(query, visit).await;
        self.api_connections.with_connection(read).await
    }

    async fn execute(&self, query: Query<'_>) -> Result<u64> {
        driver::execute(&self.pool, pg_query(&query)).await
    }

    fn writes_events(&self) -> bool {
        self.writes_events
    }

    async fn begin(&self) -> Result<PostgresTransaction> {
        Ok(PostgresTransaction(self.pool.begin_recording().await?))
    }

    async fn record_in_one_statement(
        &self,
        batch: &PresenceBatch,
        leases: &[PartitionLease],
        now: Timestamp,
    ) -> Result<bool> {
        // Without reserved connections, the settings of the session would be missing.
        if self.recorder_connections.is_disabled() || !upsert::is_single_statement(batch) {
            return Ok(false);
        }
        let query = upsert::record_upserts(batch, leases, now, self.writes_events);
        let record =
            async |connection: &mut GuardedConnection| driver::fetch_all(connection, query).await;
        let rows = self.recorder_connections.with_connection(record).await?;
        let is_held = rows.first().map(|row| row.optional_integer("is_held"));
        Ok(is_held.transpose()?.flatten() == Some(1))
    }

    fn liveness_statements(&self) -> &'static LivenessStatements {
        &LIVENESS_STATEMENTS
    }

    fn next_ingest_epoch_statement(&self) -> Statement {
        NEXT_INGEST_EPOCH
    }

    fn hold_ingest_session_statement(&self) -> Statement {
        HOLD_INGEST_SESSION
    }

    fn flush_search_index_statement(&self) -> Option<Statement> {
        Some(FLUSH_SEARCH_INDEX)
    }

    fn search_clients_statement(&self) -> Statement {
        SEARCH_CLIENTS
    }

    fn newest_event_position_statement(&self) -> Statement {
        NEWEST_EVENT_POSITION
    }

    fn event_outbox_statements(&self) -> Option<&'static EventOutboxStatements> {
        Some(&EVENT_OUTBOX_STATEMENTS)
    }

    fn moved_events(&self) -> Option<&MovedEvents> {
        Some(&self.moved_events)
    }

    async fn next_epochs(&self, queue: &str, partitions: &[i32], owner: &str) -> Result<Vec<Row>> {
        // Every process locks the rows in the same order, which prevents deadlocks.
        let mut partitions = partitions.to_vec();
        partitions.sort_unstable();
        let query = set_based(NEXT_EPOCHS)
            .bind(queue)
            .bind(partitions)
            .bind(owner);
        driver::fetch_all(&self.pool, query).await
    }

    async fn restore_tenants(&self, clients: &[(ClientId, Tenant)], now: Timestamp) -> Result<u64> {
        lookup_results::restore_tenants(&self.pool, clients, now, self.writes_events).await
    }

    async fn visit_connections(
        &self,
        org: &OrgId,
        request: &PageRequest,
        visit: RowVisitor<'_, Row>,
    ) -> Result<u64> {
        search::visit_connections(self, org, request, visit).await
    }

    async fn fetch_org_clients(
        &self,
        org: &OrgId,
        offset: u64,
        limit: u64,
    ) -> Result<RowPage<Row>> {
        search::fetch_org_clients(self, org, offset, limit).await
    }

    async fn fetch_all_clients(&self, offset: u64, limit: u64) -> Result<RowPage<Row>> {
        search::fetch_all_clients(self, offset, limit).await
    }

    async fn save_lookup_results(&self, results: &[LookupResult], now: Timestamp) -> Result<u64> {
        lookup_results::save_lookup_results(&self.pool, results, now, self.writes_events).await
    }

    async fn delete_clients_disconnected_before(&self, time: Timestamp, limit: u32) -> Result<u64> {
        let query = DELETE_CLIENTS_DISCONNECTED_BEFORE.with([time.into(), limit.into()]);
        self.fetch_count(Access::Write, query).await
    }

    async fn ping(&self) -> Result<()> {
        // Readiness probes have a shorter timeout than statements. While the server does not
        // respond, they must not use up the connections of the pool.
        let connection = self.pool.acquire_or_explain().await?;
        let mut connection = connection.close_when_canceled();
        let versions = connect::applied_versions(&mut connection).await?;
        connect::check_all_migrations_applied(&versions).map_err(StoreError::Schema)
    }

    async fn close(&self) {
        self.api_connections.close().await;
        self.recorder_connections.close().await;
        self.pool.close().await;
    }
}
