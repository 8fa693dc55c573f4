//! [`SqlDatabase`] for SQLite: runs statements on the writer connection or on the reader
//! connections.

use std::ops::ControlFlow;
use std::sync::LazyLock;

use async_trait::async_trait;
use const_format::concatcp;
use sqlx::SqlitePool;

use crate::driver::{Row, sqlite_query};
use crate::guarded_connection::{BEGIN_SNAPSHOT, BEGIN_WRITE, GuardedConnection};
use crate::transaction::SqliteTransaction;
use crate::{SqliteStore, search, tenant_changes};
use domain::{ClientId, OrgId, Tenant, Timestamp};
use store::sql::{
    Access, ColumnReader as _, EventOutboxStatements, LivenessStatements, Query, RowPage,
    RowVisitor, SELECT_CONNECTED_CLIENTS, SELECT_DISCONNECTED_CLIENTS, SharedStatements,
    SqlDatabase, SqlSyntax, Statement,
};
use store::sql::{LookupColumns, SqlTransaction as _};
use store::{ConnectionFilter, LookupOutcome, LookupResult, PageRequest, PageStart, Result};

/// SQLite needs no row locks, because a write transaction locks the whole database.
const SYNTAX: SqlSyntax = SqlSyntax {
    is_listed: "IN (SELECT value FROM json_each($1))",
    connection_count: "count(*) AS count FROM connections WHERE org_id <> ''",
    for_update: "",
    skip_locked: "",
    reported_connections: "connections",
    reported_at: "stale_timestamp",
    skip_locked_connections: "",
    current_time: "CAST(unixepoch('subsec') * 1000000 AS INTEGER)",
    search_hash: "NULL",
    lease_end: "CAST(unixepoch('subsec') * 1000000 AS INTEGER) + $1 * 1000000",
    one_day: "86400000000",
};

pub(crate) static SHARED_STATEMENTS: LazyLock<SharedStatements> =
    LazyLock::new(|| SharedStatements::new(SYNTAX));

/// Condition on clients that have the identifier `$1`.
const HAS_IDENTIFIER: &str = "$1 IN (client_id, CAST(canonical_facts ->> '$.fqdn' AS TEXT), \
     CAST(canonical_facts ->> '$.insights_id' AS TEXT), \
     CAST(canonical_facts ->> '$.subscription_manager_id' AS TEXT))";

store::statements! {
    NEXT_EPOCH =
        "INSERT INTO partition_epoch (queue, partition, epoch, owner)
         VALUES ($1, $2, unixepoch(), $3)
         ON CONFLICT (queue, partition) DO UPDATE SET
                epoch = max(partition_epoch.epoch + 1, excluded.epoch), owner = excluded.owner
         RETURNING partition, epoch";

    NEXT_INGEST_EPOCH =
        "INSERT INTO ingest_sessions (name, epoch, session_started_at)
         VALUES ($1, unixepoch(),
                CASE WHEN $2 = 0 THEN CAST(unixepoch('subsec') * 1000000 AS INTEGER) END)
         ON CONFLICT (name) DO UPDATE SET
                epoch = max(ingest_sessions.epoch + 1, excluded.epoch),
                session_started_at =
                    coalesce(excluded.session_started_at, ingest_sessions.session_started_at)
         RETURNING session, epoch";

    /// Parameters: JSON. `WHERE true`, because the parser would read `ON` as the start of a join.
    STORE_RECORDING_PROGRESS =
        "INSERT INTO recording_progress (queue, partition, partition_count, processed_until, stored_at)
         SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3,
                CAST(unixepoch('subsec') * 1000000 AS INTEGER)
           FROM json_each($1) WHERE true
         ON CONFLICT (queue, partition) DO UPDATE SET partition_count = excluded.partition_count,
                processed_until = max(recording_progress.processed_until, excluded.processed_until),
                stored_at = excluded.stored_at";

    /// The lease of the liveness sweep is no session at the broker.
    INGEST_SESSIONS =
        "SELECT session, epoch, coalesce(held_until >= unixepoch(), 0) AS is_held, session_started_at
           FROM ingest_sessions WHERE epoch > 0 ORDER BY session";

    /// Parameters: session, holder, seconds.
    HOLD_INGEST_SESSION =
        "INSERT INTO ingest_sessions (name, epoch, holder, held_until)
         VALUES ($1, 0, $2, unixepoch() + $3)
         ON CONFLICT (name) DO UPDATE SET
                holder = excluded.holder, held_until = excluded.held_until
          WHERE ingest_sessions.holder = excluded.holder OR ingest_sessions.held_until IS NULL
             OR ingest_sessions.held_until < unixepoch()
         RETURNING name";

    /// `sqlite_sequence` has a row for the table after its first insert.
    NEWEST_EVENT_POSITION =
        "SELECT max(seq) AS position FROM sqlite_sequence WHERE name = 'events'";

    RESTORE_TENANT =
        "UPDATE connections SET org_id = $2, account = $3, tenant_lookup_timestamp = NULL,
                updated_at = $4
          WHERE client_id = $1 AND org_id = ''";

    /// Each statement that saves a result also ends the claim.
    SAVE_FOUND_TENANT =
        "UPDATE connections SET org_id = $3, account = $4, tenant_lookup_timestamp = NULL,
                tenant_lookup_failure_count = 0, stale_timestamp = coalesce($5, stale_timestamp),
                inventory_eligible = inventory_eligible AND $6, updated_at = $7,
                lookup_claimed_until = $7, lookup_failed_at = CASE WHEN $8 THEN $7 END
          WHERE client_id = $1 AND updated_at = $2";

    SAVE_TENANT_NOT_FOUND =
        "UPDATE connections SET org_id = '', account = '', tenant_lookup_timestamp = $3,
                tenant_lookup_failure_count = tenant_lookup_failure_count + 1, updated_at = $3,
                lookup_claimed_until = $3, lookup_failed_at = NULL
          WHERE client_id = $1 AND updated_at = $2";

    SAVE_FAILED_LOOKUP =
        "UPDATE connections SET lookup_claimed_until = $3, lookup_failed_at = $3
          WHERE client_id = $1 AND updated_at = $2";

    /// Parameters: time, limit. Deletes the history of the clients that the next statement deletes.
    DELETE_HISTORY_OF_CLIENTS_DISCONNECTED_BEFORE =
        "DELETE FROM presence_history WHERE client_id IN (
             SELECT client_id FROM disconnected_clients WHERE disconnected_at < $1
              ORDER BY disconnected_at LIMIT $2)
            AND NOT EXISTS (SELECT 1 FROM connections AS c
                             WHERE c.client_id = presence_history.client_id)";

    /// Parameters: time, limit.
    DELETE_CLIENTS_DISCONNECTED_BEFORE =
        "DELETE FROM disconnected_clients WHERE client_id IN (
             SELECT client_id FROM disconnected_clients WHERE disconnected_at < $1
              ORDER BY disconnected_at LIMIT $2)";

    /// Parameters: text, limit. Reads all rows, because SQLite has no indexes on facts.
    SEARCH_CLIENTS = concatcp!(
        SELECT_CONNECTED_CLIENTS, HAS_IDENTIFIER, " UNION ALL ",
        SELECT_DISCONNECTED_CLIENTS, HAS_IDENTIFIER,
        " AND NOT EXISTS (SELECT 1 FROM connections AS c
                           WHERE c.client_id = disconnected_clients.client_id)
          ORDER BY client_id LIMIT $2"
    );

    PAGE_OF_ALL_CLIENTS =
        "SELECT client_id, org_id, account FROM connections
          WHERE org_id <> '' ORDER BY org_id, client_id LIMIT $1 OFFSET $2";

    PAGE_OF_ORG_CLIENTS =
        "SELECT client_id, org_id, account FROM connections
          WHERE org_id = $1 ORDER BY client_id LIMIT $2 OFFSET $3";

    pub(crate) FIND_MIGRATIONS_TABLE =
        "SELECT 1 FROM sqlite_master WHERE name = '_sqlx_migrations'";

    pub(crate) QUICK_CHECK = "PRAGMA quick_check(1)";

    CHECK_SCHEMA = "SELECT 1 FROM connections LIMIT 1";

    CHECKPOINT = "PRAGMA wal_checkpoint(TRUNCATE)";
}

static LIVENESS_STATEMENTS: LivenessStatements = LivenessStatements {
    store_progress: STORE_RECORDING_PROGRESS,
    ingest_sessions: INGEST_SESSIONS,
};

impl SqliteStore {
    async fn begin_with(&self, pool: &SqlitePool, begin: Statement) -> Result<GuardedConnection> {
        GuardedConnection::begin(pool, &self.files, begin).await
    }

    /// Reads a page and its count, and returns all rows.
    async fn fetch_page(&self, count: Query<'_>, page: Query<'_>) -> Result<RowPage<Row>> {
        let mut rows = Vec::new();
        let mut collect = |row| {
            rows.push(row);
            Ok(ControlFlow::Continue(()))
        };
        let total_count = self.visit_page(Some(count), page, &mut collect).await?;
        Ok(RowPage { total_count, rows })
    }

    /// Reads a page, and returns its count. One transaction reads the count and the rows, so both
    /// belong to the same snapshot.
    async fn visit_page(
        &self,
        count: Option<Query<'_>>,
        page: Query<'_>,
        visit: RowVisitor<'_, Row>,
    ) -> Result<u64> {
        let mut snapshot = self.begin_with(&self.readers, BEGIN_SNAPSHOT).await?;
        let mut total_count = 0;
        if let Some(count) = count {
            for row in snapshot.fetch_all(sqlite_query(&count)).await? {
                total_count = row.count("count")?;
            }
        }
        snapshot.visit_rows(sqlite_query(&page), visit).await?;
        snapshot.commit().await?;
        Ok(total_count)
    }
}

impl SqliteStore {
    /// Runs several statements in one transaction. Returns the numbers of changed rows.
    async fn execute_all(&self, queries: Vec<Query<'_>>) -> Result<Vec<u64>> {
        let mut transaction = self.begin().await?;
        let mut changed_rows = Vec::with_capacity(queries.len());
        for query in queries {
            changed_rows.push(transaction.execute(query).await?);
        }
        transaction.commit().await?;
        Ok(changed_rows)
    }
}

#[async_trait]
impl SqlDatabase for SqliteStore {
    type Row = Row;
    type Transaction = SqliteTransaction;

    fn statements(&self) -> &'static SharedStatements {
        &SHARED_STATEMENTS
    }

    async fn fetch_all(&self, access: Access, query: Query<'_>) -> Result<Vec<Row>> {
        let is_write = matches!(access, Access::Write | Access::Record);
        let pool = if is_write {
            &self.writer
        } else {
            &self.readers
        };
        let mut connection = GuardedConnection::acquire(pool, &self.files).await?;
        let rows = connection.fetch_all(sqlite_query(&query)).await?;
        if is_write {
            self.files.check()?;
        }
        Ok(rows)
    }

    async fn visit_rows(
        &self,
        access: Access,
        query: Query<'_>,
        visit: RowVisitor<'_, Row>,
    ) -> Result<()> {
        let pool = match access {
            Access::Write | Access::Record => &self.writer,
            Access::Read | Access::ApiRead => &self.readers,
        };
        let mut connection = GuardedConnection::acquire(pool, &self.files).await?;
        connection.visit_rows(sqlite_query(&query), visit).await
    }

    async fn execute(&self, query: Query<'_>) -> Result<u64> {
        let mut connection = GuardedConnection::acquire(&self.writer, &self.files).await?;
        let changed_rows = connection.execute(sqlite_query(&query)).await?;
        self.files.check()?;
        Ok(changed_rows)
    }

    fn writes_events(&self) -> bool {
        self.writes_events
    }

    async fn begin(&self) -> Result<SqliteTransaction> {
        Ok(SqliteTransaction {
            connection: self.begin_with(&self.writer, BEGIN_WRITE).await?,
            files: self.files.clone(),
        })
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
        None
    }

    fn search_clients_statement(&self) -> Statement {
        SEARCH_CLIENTS
    }

    fn newest_event_position_statement(&self) -> Statement {
        NEWEST_EVENT_POSITION
    }

    fn event_outbox_statements(&self) -> Option<&'static EventOutboxStatements> {
        None
    }

    async fn next_epochs(&self, queue: &str, partitions: &[i32], owner: &str) -> Result<Vec<Row>> {
        let mut transaction = self.begin().await?;
        let mut epochs = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let parameters = [queue.into(), i64::from(*partition).into(), owner.into()];
            epochs.extend(transaction.fetch_all(NEXT_EPOCH.with(parameters)).await?);
        }
        transaction.commit().await?;
        Ok(epochs)
    }

    async fn restore_tenants(&self, clients: &[(ClientId, Tenant)], now: Timestamp) -> Result<u64> {
        let mut transaction = self.begin().await?;
        let mut restored_rows = 0;
        for (client, Tenant { org_id, account }) in clients {
            let restore = RESTORE_TENANT.with([
                client.into(),
                org_id.into(),
                account.as_str().into(),
                now.into(),
            ]);
            let events = self.writes_events;
            restored_rows +=
                tenant_changes::save(&mut transaction, client, restore, now, events).await?;
        }
        transaction.commit().await?;
        Ok(restored_rows)
    }

    async fn visit_connections(
        &self,
        org: &OrgId,
        request: &PageRequest,
        visit: RowVisitor<'_, Row>,
    ) -> Result<u64> {
        let count = match request.start {
            PageStart::Offset(_) => Some(search::count_query(org, &request.filter)),
            PageStart::After(_) => None,
        };
        self.visit_page(count, search::page_query(org, request), visit)
            .await
    }

    async fn fetch_org_clients(
        &self,
        org: &OrgId,
        offset: u64,
        limit: u64,
    ) -> Result<RowPage<Row>> {
        let filter = ConnectionFilter::default();
        let count = search::count_query(org, &filter);
        let page = PAGE_OF_ORG_CLIENTS.with([org.into(), limit.into(), offset.into()]);
        self.fetch_page(count, page).await
    }

    async fn fetch_all_clients(&self, offset: u64, limit: u64) -> Result<RowPage<Row>> {
        let count = SHARED_STATEMENTS.connection_count();
        let page = PAGE_OF_ALL_CLIENTS.with([limit.into(), offset.into()]);
        self.fetch_page(count, page).await
    }

    async fn save_lookup_results(&self, results: &[LookupResult], now: Timestamp) -> Result<u64> {
        let mut transaction = self.begin().await?;
        let mut counted_rows = 0;
        for result in results {
            let (client, query) = (&result.client_id, save_query(result, now));
            let changed_rows =
                tenant_changes::save(&mut transaction, client, query, now, self.writes_events)
                    .await?;
            if result.outcome != LookupOutcome::Unavailable {
                counted_rows += changed_rows;
            }
        }
        transaction.commit().await?;
        Ok(counted_rows)
    }

    async fn delete_clients_disconnected_before(&self, time: Timestamp, limit: u32) -> Result<u64> {
        let statements = [
            DELETE_HISTORY_OF_CLIENTS_DISCONNECTED_BEFORE,
            DELETE_CLIENTS_DISCONNECTED_BEFORE,
        ];
        let queries = statements.map(|statement| statement.with([time.into(), limit.into()]));
        let deleted_rows = self.execute_all(queries.into()).await?;
        Ok(deleted_rows.last().copied().unwrap_or_default())
    }

    async fn ping(&self) -> Result<()> {
        self.files.check()?;
        self.fetch_all(Access::Read, CHECK_SCHEMA.with([]))
            .await
            .map(drop)
    }

    async fn close(&self) {
        if !self.files.can_close() {
            // The connections stay open until the process exits.
            std::mem::forget(self.clone());
            return;
        }
        self.readers.close().await;
        self.writer.close().await;
        // SQLite copies the write-ahead log into the database file when the last connection closes.
        // A connection that was removed from a pool after an error may be closed later, or not before
        // the process exits, so the log is copied here. If that fails, the next start does it.
        if let Ok(mut connection) = self.idle_connection.acquire().await {
            let _ = sqlite_query(&CHECKPOINT.with([]))
                .fetch_one(&mut *connection)
                .await;
        }
        self.idle_connection.close().await;
    }
}

fn save_query(result: &LookupResult, now: Timestamp) -> Query<'_> {
    let (client, row_version) = (&result.client_id, result.row_version);
    let columns = LookupColumns::from(&result.outcome);
    match &result.outcome {
        LookupOutcome::Found { .. } => SAVE_FOUND_TENANT.with([
            client.into(),
            row_version.into(),
            columns.org_id.into(),
            columns.account.into(),
            columns.reported_to_inventory_at.into(),
            i64::from(columns.inventory_eligible).into(),
            now.into(),
            i64::from(columns.has_failed).into(),
        ]),
        LookupOutcome::NotFound => {
            SAVE_TENANT_NOT_FOUND.with([client.into(), row_version.into(), now.into()])
        }
        LookupOutcome::Unavailable => {
            SAVE_FAILED_LOOKUP.with([client.into(), row_version.into(), now.into()])
        }
    }
}
