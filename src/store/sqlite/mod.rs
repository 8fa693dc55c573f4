//! SQLite: one file in the data folder, one writer, several readers.

mod connect;
mod dead_letters;
mod fencing;
mod lookup;
mod lookup_queue;
mod presence;
mod row;
mod search;

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::SqlitePool;

pub use connect::{check, schema_is_current};

use super::{
    ClaimedConnection, ClientPage, ConnectionPage, DeadLetterFilter, LookupReason, LookupResult,
    OrgCount, PageRequest, PartitionLease, PresenceBatch, QueueTopic, Store, StoreError,
    StoredDeadLetter, StoredState, TenantlessClient, TenantlessCounts, WriteOutcome,
};
use crate::domain::{ClientId, Connection, OrgId, Tenant, Timestamp};

/// A database file that is open. `synchronous=FULL`: a commit that returned survives a power cut.
#[derive(Debug, Clone)]
pub struct SqliteStore {
    /// One connection: SQLite has one writer at a time, so waiting happens here and not there.
    writer: SqlitePool,
    readers: SqlitePool,
}

#[async_trait]
impl Store for SqliteStore {
    async fn load_states(
        &self,
        clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>, StoreError> {
        // By the writer's connection: callers' lists must not hold recording up.
        lookup::load_states(&self.writer, clients).await
    }

    async fn record_batch(
        &self,
        batch: &PresenceBatch,
        fences: &[PartitionLease],
        now: Timestamp,
    ) -> Result<WriteOutcome, StoreError> {
        presence::record_batch(&self.writer, batch, fences, now).await
    }

    async fn acquire_partitions(
        &self,
        queue: QueueTopic,
        partitions: &[i32],
        owner: &str,
    ) -> Result<Vec<PartitionLease>, StoreError> {
        fencing::take(&self.writer, queue, partitions, owner).await
    }

    async fn delete_disconnected_before(&self, before: Timestamp) -> Result<u64, StoreError> {
        let done = sqlx::query("DELETE FROM disconnected_clients WHERE disconnected_at < ?")
            .bind(before.as_microsecond())
            .execute(&self.writer)
            .await?;
        Ok(done.rows_affected())
    }

    async fn tidy(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn find_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError> {
        lookup::find_for_org(&self.readers, org, client).await
    }

    async fn find_many_for_org(
        &self,
        org: &OrgId,
        clients: &[ClientId],
    ) -> Result<Vec<Connection>, StoreError> {
        lookup::find_many_for_org(&self.readers, org, clients).await
    }

    async fn find_for_org_or_satellite(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError> {
        lookup::find_for_org_or_satellite(&self.readers, org, client).await
    }

    async fn list_all(&self, offset: u64, limit: u64) -> Result<ClientPage, StoreError> {
        search::owned(&self.readers, offset, limit).await
    }

    async fn list_for_org(
        &self,
        org: &OrgId,
        wanted: &PageRequest,
    ) -> Result<ConnectionPage, StoreError> {
        search::for_org(&self.readers, org, wanted).await
    }

    async fn client_ids(
        &self,
        after: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>, StoreError> {
        lookup::client_ids(&self.readers, after, limit).await
    }

    async fn claim_for_lookup(
        &self,
        due: LookupReason,
        limit: u32,
        unclaimed: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<ClaimedConnection>, StoreError> {
        lookup_queue::claim(&self.writer, due, limit, unclaimed, until).await
    }

    async fn count_due(&self, due: LookupReason, now: Timestamp) -> Result<u64, StoreError> {
        lookup_queue::count(&self.readers, due, now).await
    }

    async fn save_lookup_results(
        &self,
        findings: &[LookupResult],
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        lookup_queue::settle(&self.writer, findings, now).await
    }

    async fn restore_tenants(
        &self,
        clients: &[(ClientId, Tenant)],
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        lookup_queue::restore_tenants(&self.writer, clients, now).await
    }

    async fn count_tenantless(&self, max_attempts: u32) -> Result<TenantlessCounts, StoreError> {
        lookup_queue::count_tenantless(&self.readers, max_attempts).await
    }

    async fn list_tenantless(&self, limit: u32) -> Result<Vec<TenantlessClient>, StoreError> {
        lookup_queue::list_tenantless(&self.readers, limit).await
    }

    async fn reset_tenantless(&self, clients: Option<&[ClientId]>) -> Result<u64, StoreError> {
        lookup_queue::reset_tenantless(&self.writer, clients).await
    }

    async fn delete_tenantless(&self, clients: &[ClientId]) -> Result<u64, StoreError> {
        lookup_queue::delete_tenantless(&self.writer, clients).await
    }

    async fn count_connected(&self) -> Result<u64, StoreError> {
        lookup_queue::count_connected(&self.readers).await
    }

    async fn count_by_org(&self, limit: u32) -> Result<(Vec<OrgCount>, u64), StoreError> {
        lookup_queue::count_by_org(&self.readers, limit).await
    }

    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        dead_letters::list(&self.readers, filter, limit).await
    }

    async fn dead_letter(&self, id: i64) -> Result<Option<StoredDeadLetter>, StoreError> {
        dead_letters::find(&self.readers, id).await
    }

    async fn request_replay(&self, id: i64, now: Timestamp) -> Result<bool, StoreError> {
        dead_letters::request_replay(&self.writer, id, now).await
    }

    async fn finish_replay(&self, id: i64, times: u64) -> Result<bool, StoreError> {
        dead_letters::finish_replay(&self.writer, id, times).await
    }

    async fn purge_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError> {
        dead_letters::purge(&self.writer, filter).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1 FROM connections LIMIT 1")
            .fetch_optional(&self.readers)
            .await?;
        Ok(())
    }

    async fn close(&self) {
        // ReservedConnections first: the last one to leave folds the write-ahead log back into the file.
        self.readers.close().await;
        self.writer.close().await;
    }
}
