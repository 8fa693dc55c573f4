//! [`SqlDatabase`] for PostgreSQL: runs statements on the pool, or on the connections that are
//! reserved for the API.

use std::sync::LazyLock;

use async_trait::async_trait;
use sqlx::PgConnection;

use crate::driver::{self, ReadingConnection, Row, pg_query, set_based};
use crate::error::store_error;
use crate::transaction::PostgresTransaction;
use crate::{PostgresStore, connect, lookup_results, search};
use domain::{ClientId, OrgId, Tenant, Timestamp};
use store::sql::{Access, Query, RowPage, RowVisitor, SharedStatements, SqlDatabase, SqlSyntax};
use store::{LookupResult, PageRequest, Result, StoreError};

pub(crate) static SHARED_STATEMENTS: LazyLock<SharedStatements> = LazyLock::new(|| {
    SharedStatements::new(SqlSyntax {
        is_listed: "= ANY($1)",
        connection_count: "COALESCE(sum(delta), 0)::bigint AS count FROM org_connection_deltas",
        for_update: " FOR UPDATE",
        skip_locked: " FOR UPDATE SKIP LOCKED",
        current_time: "clock_timestamp()",
    })
});

store::statements! {
    NEXT_EPOCHS = "
        INSERT INTO partition_epoch (queue, partition, epoch, owner)
        SELECT $1, p, 1, $3 FROM UNNEST($2::int[]) AS p
        ON CONFLICT (queue, partition) DO UPDATE SET
               epoch = partition_epoch.epoch + 1, owner = excluded.owner, acquired_at = now()
        RETURNING partition, epoch";

    /// Also deletes the client's row in `connection_search`, unless the client has reconnected.
    DELETE_CLIENTS_DISCONNECTED_BEFORE = "
        WITH deleted AS (
            DELETE FROM disconnected_clients WHERE disconnected_at < $1 RETURNING client_id),
        deleted_search AS (
            DELETE FROM connection_search AS s USING deleted
             WHERE s.client_id = deleted.client_id AND NOT EXISTS (
                 SELECT FROM connections AS c WHERE c.client_id = s.client_id))
        SELECT count(*) AS count FROM deleted";

    /// Replaces the rows of each organization in `org_connection_deltas` by one row with the sum of
    /// the deltas.
    ///
    /// A concurrent query reads either the old rows or the new row. Two concurrent calls are safe,
    /// because each call adds only the deltas of rows that this call deleted.
    COMPACT_ORG_CONNECTION_DELTAS = "
        WITH deleted AS (
            DELETE FROM org_connection_deltas WHERE org_id IN (
                SELECT org_id FROM org_connection_deltas GROUP BY org_id HAVING count(*) > 1)
            RETURNING org_id, delta)
        INSERT INTO org_connection_deltas
        SELECT org_id, sum(delta) FROM deleted GROUP BY org_id HAVING sum(delta) <> 0";
}

#[async_trait]
impl SqlDatabase for PostgresStore {
    type Row = Row;
    type Transaction = PostgresTransaction;

    fn statements(&self) -> &'static SharedStatements {
        &SHARED_STATEMENTS
    }

    async fn fetch_all(&self, access: Access, query: Query<'_>) -> Result<Vec<Row>> {
        let query = pg_query(&query);
        if access != Access::ApiRead {
            return driver::fetch_all(&self.pool, query).await;
        }
        let fetch =
            async |connection: &mut PgConnection| driver::fetch_all(connection, query).await;
        self.reserved_connections.with_connection(fetch).await
    }

    async fn visit_rows(
        &self,
        access: Access,
        query: Query<'_>,
        visit: RowVisitor<'_, Row>,
    ) -> Result<()> {
        let query = pg_query(&query);
        if access != Access::ApiRead {
            let connection = ReadingConnection::acquire(&self.pool).await?;
            return connection.visit_rows(query, visit).await;
        }
        let mut is_finished = false;
        let read = async |connection: &mut PgConnection| {
            let is_reusable = driver::visit_rows(connection, query, visit).await?;
            is_finished = true;
            // The error closes the connection. The caller does not receive the error.
            let unread_rows = || StoreError::Unavailable("rows were not read".into());
            is_reusable.then_some(()).ok_or_else(unread_rows)
        };
        let result = self.reserved_connections.with_connection(read).await;
        if is_finished { Ok(()) } else { result }
    }

    async fn execute(&self, query: Query<'_>) -> Result<u64> {
        driver::execute(&self.pool, pg_query(&query)).await
    }

    async fn begin(&self) -> Result<PostgresTransaction> {
        let transaction = self.pool.begin().await.map_err(store_error)?;
        Ok(PostgresTransaction(transaction))
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
        lookup_results::restore_tenants(&self.pool, clients, now).await
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
        lookup_results::save_lookup_results(&self.pool, results, now).await
    }

    async fn delete_clients_disconnected_before(&self, time: Timestamp) -> Result<u64> {
        let query = DELETE_CLIENTS_DISCONNECTED_BEFORE.with([time.into()]);
        self.fetch_count(Access::Write, query).await
    }

    async fn compact(&self) -> Result<()> {
        let query = COMPACT_ORG_CONNECTION_DELTAS.with([]);
        self.execute(query).await.map(drop)
    }

    async fn ping(&self) -> Result<()> {
        let mut connection = self.pool.acquire().await.map_err(store_error)?;
        let versions = connect::applied_versions(&mut connection).await?;
        connect::check_all_migrations_applied(&versions).map_err(StoreError::Schema)
    }

    async fn close(&self) {
        self.reserved_connections.close().await;
        self.pool.close().await;
    }
}
