//! PostgreSQL: for fleets. Rows go in by arrays, a batch a statement.

mod connect;
mod dead_letters;
mod fencing;
mod lookup;
mod lookup_queue;
mod presence;
mod reserved_connections;
mod row;
mod search;

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::PgPool;

pub use connect::{ConnectPostgresError, migrate, probe};

use super::{
    ClaimedConnection, ClientPage, ConnectionPage, DeadLetterFilter, LookupReason, LookupResult,
    OrgCount, PageRequest, PartitionLease, PresenceBatch, QueueTopic, Store, StoreError,
    StoredDeadLetter, StoredState, TenantlessClient, TenantlessCounts, WriteOutcome,
};
use crate::domain::{ClientId, Connection, OrgId, Tenant, Timestamp};

/// A pool of connections, made when they are first needed: a database that is away at the start is
/// waited for, not a reason to end.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    pool: PgPool,
    readers: reserved_connections::ReservedConnections,
}

#[async_trait]
impl Store for PostgresStore {
    async fn load_states(
        &self,
        clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>, StoreError> {
        lookup::load_states(&self.pool, clients).await
    }

    async fn record_batch(
        &self,
        batch: &PresenceBatch,
        fences: &[PartitionLease],
        now: Timestamp,
    ) -> Result<WriteOutcome, StoreError> {
        presence::record_batch(&self.pool, batch, fences, now).await
    }

    async fn acquire_partitions(
        &self,
        queue: QueueTopic,
        partitions: &[i32],
        owner: &str,
    ) -> Result<Vec<PartitionLease>, StoreError> {
        fencing::take(&self.pool, queue, partitions, owner).await
    }

    async fn delete_disconnected_before(&self, before: Timestamp) -> Result<u64, StoreError> {
        // Who is gone for good is not looked for any more.
        let forgotten: i64 = sqlx::query_scalar(
            "WITH forgotten AS (
                 DELETE FROM disconnected_clients WHERE disconnected_at < $1 RETURNING client_id),
             unfindable AS (
                 DELETE FROM connection_search AS f USING forgotten
                  WHERE f.client_id = forgotten.client_id AND NOT EXISTS (
                      SELECT FROM connections AS c WHERE c.client_id = f.client_id))
             SELECT count(*) FROM forgotten",
        )
        .bind(row::to_sql(before))
        .fetch_one(&self.pool)
        .await?;
        Ok(u64::try_from(forgotten).unwrap_or(0))
    }

    async fn tidy(&self) -> Result<(), StoreError> {
        search::fold_counts(&self.pool).await
    }

    async fn find_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError> {
        self.readers
            .ask(async |connection| lookup::find_for_org(connection, org, client).await)
            .await
    }

    async fn find_many_for_org(
        &self,
        org: &OrgId,
        clients: &[ClientId],
    ) -> Result<Vec<Connection>, StoreError> {
        self.readers
            .ask(async |connection| lookup::find_many_for_org(connection, org, clients).await)
            .await
    }

    async fn find_for_org_or_satellite(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError> {
        self.readers
            .ask(async |connection| {
                lookup::find_for_org_or_satellite(connection, org, client).await
            })
            .await
    }

    async fn list_all(&self, offset: u64, limit: u64) -> Result<ClientPage, StoreError> {
        search::owned(&self.pool, offset, limit).await
    }

    async fn list_for_org(
        &self,
        org: &OrgId,
        wanted: &PageRequest,
    ) -> Result<ConnectionPage, StoreError> {
        search::for_org(&self.pool, org, wanted).await
    }

    async fn client_ids(
        &self,
        after: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>, StoreError> {
        lookup::client_ids(&self.pool, after, limit).await
    }

    async fn claim_for_lookup(
        &self,
        due: LookupReason,
        limit: u32,
        unclaimed: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<ClaimedConnection>, StoreError> {
        lookup_queue::claim(&self.pool, due, limit, unclaimed, until).await
    }

    async fn count_due(&self, due: LookupReason, now: Timestamp) -> Result<u64, StoreError> {
        lookup_queue::count(&self.pool, due, now).await
    }

    async fn save_lookup_results(
        &self,
        findings: &[LookupResult],
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        lookup_queue::settle(&self.pool, findings, now).await
    }

    async fn restore_tenants(
        &self,
        clients: &[(ClientId, Tenant)],
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        lookup_queue::restore_tenants(&self.pool, clients, now).await
    }

    async fn count_tenantless(&self, max_attempts: u32) -> Result<TenantlessCounts, StoreError> {
        lookup_queue::count_tenantless(&self.pool, max_attempts).await
    }

    async fn list_tenantless(&self, limit: u32) -> Result<Vec<TenantlessClient>, StoreError> {
        lookup_queue::list_tenantless(&self.pool, limit).await
    }

    async fn reset_tenantless(&self, clients: Option<&[ClientId]>) -> Result<u64, StoreError> {
        lookup_queue::reset_tenantless(&self.pool, clients).await
    }

    async fn delete_tenantless(&self, clients: &[ClientId]) -> Result<u64, StoreError> {
        lookup_queue::delete_tenantless(&self.pool, clients).await
    }

    async fn count_connected(&self) -> Result<u64, StoreError> {
        lookup_queue::count_connected(&self.pool).await
    }

    async fn count_by_org(&self, limit: u32) -> Result<(Vec<OrgCount>, u64), StoreError> {
        lookup_queue::count_by_org(&self.pool, limit).await
    }

    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        dead_letters::list(&self.pool, filter, limit).await
    }

    async fn dead_letter(&self, id: i64) -> Result<Option<StoredDeadLetter>, StoreError> {
        dead_letters::find(&self.pool, id).await
    }

    async fn request_replay(&self, id: i64, now: Timestamp) -> Result<bool, StoreError> {
        dead_letters::request_replay(&self.pool, id, now).await
    }

    async fn finish_replay(&self, id: i64, times: u64) -> Result<bool, StoreError> {
        dead_letters::finish_replay(&self.pool, id, times).await
    }

    async fn purge_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError> {
        dead_letters::purge(&self.pool, filter).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        connect::check_schema(&self.pool).await
    }

    async fn close(&self) {
        self.readers.close().await;
        self.pool.close().await;
    }
}
