//! The SQLite implementation of the repositories, for embedded deployments: one file, one writer
//! connection, several reader connections.

mod connect;
mod dead_letters;
mod fencing;
mod lookup;
mod lookup_queue;
mod migrations;
mod presence;
mod row;
mod search;

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::SqlitePool;

pub use connect::{check_integrity, is_schema_current};

use domain::{ClientId, Connection, OrgId, Tenant, Timestamp};
use store::{
    ClaimedConnection, ClientPage, ConnectionPage, ConnectionRepository, DeadLetterFilter,
    DeadLetterRepository, LookupQueueRepository, LookupReason, LookupResult, MaintenanceRepository,
    OrgCount, PageRequest, PartitionLease, PresenceBatch, PresenceRepository, QueueTopic,
    StoreError, StoredDeadLetter, StoredState, TenantlessClient, TenantlessCounts, WriteOutcome,
};

/// An open database file. A committed transaction remains stored after a power failure
/// (`synchronous=FULL`).
#[derive(Debug, Clone)]
pub struct SqliteStore {
    /// Pool of one connection, because SQLite allows only one writer at a time. Write operations
    /// wait for this connection. With several connections, a write could fail with SQLITE_BUSY.
    writer: SqlitePool,
    readers: SqlitePool,
}

#[async_trait]
impl PresenceRepository for SqliteStore {
    async fn load_client_states(
        &self,
        clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>, StoreError> {
        // Uses the writer connection, so API queries cannot delay the recorder.
        lookup::load_client_states(&self.writer, clients).await
    }

    async fn record_batch(
        &self,
        batch: &PresenceBatch,
        leases: &[PartitionLease],
        now: Timestamp,
    ) -> Result<WriteOutcome, StoreError> {
        presence::record_batch(&self.writer, batch, leases, now).await
    }

    async fn acquire_partitions(
        &self,
        queue: QueueTopic,
        partitions: &[i32],
        new_owner: &str,
    ) -> Result<Vec<PartitionLease>, StoreError> {
        fencing::acquire_partitions(&self.writer, queue, partitions, new_owner).await
    }

    async fn restore_tenants(
        &self,
        clients: &[(ClientId, Tenant)],
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        lookup_queue::restore_tenants(&self.writer, clients, now).await
    }
}

#[async_trait]
impl ConnectionRepository for SqliteStore {
    async fn find_connection_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError> {
        lookup::find_connection_for_org(&self.readers, org, client).await
    }

    async fn find_connections_for_org(
        &self,
        org: &OrgId,
        clients: &[ClientId],
    ) -> Result<Vec<Connection>, StoreError> {
        lookup::find_connections_for_org(&self.readers, org, clients).await
    }

    async fn find_org_or_satellite_connection(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError> {
        lookup::find_org_or_satellite_connection(&self.readers, org, client).await
    }

    async fn list_connections_for_org(
        &self,
        org: &OrgId,
        request: &PageRequest,
    ) -> Result<ConnectionPage, StoreError> {
        search::list_connections_for_org(&self.readers, org, request).await
    }

    async fn list_all_clients(&self, offset: u64, limit: u64) -> Result<ClientPage, StoreError> {
        search::list_all_clients(&self.readers, offset, limit).await
    }

    async fn mark_disconnected(
        &self,
        client: &ClientId,
        time: Timestamp,
    ) -> Result<bool, StoreError> {
        presence::mark_disconnected(&self.writer, client, time).await
    }
}

#[async_trait]
impl LookupQueueRepository for SqliteStore {
    async fn claim_for_lookup(
        &self,
        reason: LookupReason,
        limit: u32,
        claims_ended_before: Timestamp,
        claim_until: Timestamp,
    ) -> Result<Vec<ClaimedConnection>, StoreError> {
        lookup_queue::claim_for_lookup(
            &self.writer,
            reason,
            limit,
            claims_ended_before,
            claim_until,
        )
        .await
    }

    async fn count_due_rows(
        &self,
        reason: LookupReason,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        lookup_queue::count_due_rows(&self.readers, reason, now).await
    }

    async fn save_lookup_results(
        &self,
        results: &[LookupResult],
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        lookup_queue::save_lookup_results(&self.writer, results, now).await
    }

    async fn count_tenantless_clients(
        &self,
        max_attempts: u32,
    ) -> Result<TenantlessCounts, StoreError> {
        lookup_queue::count_tenantless_clients(&self.readers, max_attempts).await
    }

    async fn list_tenantless_clients(
        &self,
        limit: u32,
    ) -> Result<Vec<TenantlessClient>, StoreError> {
        lookup_queue::list_tenantless_clients(&self.readers, limit).await
    }

    async fn reset_tenantless_clients(
        &self,
        clients: Option<&[ClientId]>,
    ) -> Result<u64, StoreError> {
        lookup_queue::reset_tenantless_clients(&self.writer, clients).await
    }

    async fn delete_tenantless_clients(&self, clients: &[ClientId]) -> Result<u64, StoreError> {
        lookup_queue::delete_tenantless_clients(&self.writer, clients).await
    }
}

#[async_trait]
impl DeadLetterRepository for SqliteStore {
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        dead_letters::list_dead_letters(&self.readers, filter, limit).await
    }

    async fn find_dead_letter(
        &self,
        dead_letter_id: i64,
    ) -> Result<Option<StoredDeadLetter>, StoreError> {
        dead_letters::find_dead_letter(&self.readers, dead_letter_id).await
    }

    async fn request_replay(
        &self,
        dead_letter_id: i64,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        dead_letters::request_replay(&self.writer, dead_letter_id, now).await
    }

    async fn finish_replay(
        &self,
        dead_letter_id: i64,
        occurrences: u64,
    ) -> Result<bool, StoreError> {
        dead_letters::finish_replay(&self.writer, dead_letter_id, occurrences).await
    }

    async fn purge_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError> {
        dead_letters::purge_dead_letters(&self.writer, filter).await
    }
}

#[async_trait]
impl MaintenanceRepository for SqliteStore {
    async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1 FROM connections LIMIT 1")
            .fetch_optional(&self.readers)
            .await?;
        Ok(())
    }

    async fn close(&self) {
        // When the last connection closes, SQLite copies the write-ahead log into the database
        // file. The writer closes last, so the writer makes this copy.
        self.readers.close().await;
        self.writer.close().await;
    }

    async fn delete_clients_disconnected_before(&self, time: Timestamp) -> Result<u64, StoreError> {
        let result = sqlx::query("DELETE FROM disconnected_clients WHERE disconnected_at < ?")
            .bind(time.as_microsecond())
            .execute(&self.writer)
            .await?;
        Ok(result.rows_affected())
    }

    async fn compact(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list_client_ids(
        &self,
        after_client: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>, StoreError> {
        lookup::list_client_ids(&self.readers, after_client, limit).await
    }

    async fn count_connections_with_tenant(&self) -> Result<u64, StoreError> {
        lookup_queue::count_connections_with_tenant(&self.readers).await
    }

    async fn count_by_org(&self, limit: u32) -> Result<(Vec<OrgCount>, u64), StoreError> {
        lookup_queue::count_by_org(&self.readers, limit).await
    }
}
