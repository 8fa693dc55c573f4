//! The PostgreSQL implementation of the repositories, for distributed deployments.

mod connect;
mod dead_letters;
mod fencing;
mod lookup;
mod lookup_queue;
mod migrations;
mod presence;
mod reserved_connections;
mod row;
mod search;
mod settings;

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::PgPool;

pub use connect::{ConnectPostgresError, check_connection_and_schema, migrate};
pub use settings::{PostgresSettings, PostgresTls};

use domain::{ClientId, Connection, OrgId, Tenant, Timestamp};
use store::{
    ClaimedConnection, ClientPage, ConnectionPage, ConnectionRepository, DeadLetterFilter,
    DeadLetterRepository, LookupQueueRepository, LookupReason, LookupResult, MaintenanceRepository,
    OrgCount, PageRequest, PartitionLease, PresenceBatch, PresenceRepository, QueueTopic,
    StoreError, StoredDeadLetter, StoredState, TenantlessClient, TenantlessCounts, WriteOutcome,
};

/// A pool of connections to PostgreSQL. The pool connects on first use, so the process can
/// start while the database is down.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    pool: PgPool,
    reserved_connections: reserved_connections::ReservedConnections,
}

#[async_trait]
impl PresenceRepository for PostgresStore {
    async fn load_client_states(
        &self,
        clients: &[ClientId],
    ) -> Result<HashMap<ClientId, StoredState>, StoreError> {
        lookup::load_client_states(&self.pool, clients).await
    }

    async fn record_batch(
        &self,
        batch: &PresenceBatch,
        leases: &[PartitionLease],
        now: Timestamp,
    ) -> Result<WriteOutcome, StoreError> {
        presence::record_batch(&self.pool, batch, leases, now).await
    }

    async fn acquire_partitions(
        &self,
        queue: QueueTopic,
        partitions: &[i32],
        new_owner: &str,
    ) -> Result<Vec<PartitionLease>, StoreError> {
        fencing::acquire_partitions(&self.pool, queue, partitions, new_owner).await
    }

    async fn restore_tenants(
        &self,
        clients: &[(ClientId, Tenant)],
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        lookup_queue::restore_tenants(&self.pool, clients, now).await
    }
}

#[async_trait]
impl ConnectionRepository for PostgresStore {
    async fn find_connection_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError> {
        self.reserved_connections
            .with_connection(async |connection| {
                lookup::find_connection_for_org(connection, org, client).await
            })
            .await
    }

    async fn find_connections_for_org(
        &self,
        org: &OrgId,
        clients: &[ClientId],
    ) -> Result<Vec<Connection>, StoreError> {
        self.reserved_connections
            .with_connection(async |connection| {
                lookup::find_connections_for_org(connection, org, clients).await
            })
            .await
    }

    async fn find_org_or_satellite_connection(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError> {
        self.reserved_connections
            .with_connection(async |connection| {
                lookup::find_org_or_satellite_connection(connection, org, client).await
            })
            .await
    }

    async fn list_connections_for_org(
        &self,
        org: &OrgId,
        request: &PageRequest,
    ) -> Result<ConnectionPage, StoreError> {
        search::list_connections_for_org(&self.pool, org, request).await
    }

    async fn list_all_clients(&self, offset: u64, limit: u64) -> Result<ClientPage, StoreError> {
        search::list_all_clients(&self.pool, offset, limit).await
    }

    async fn mark_disconnected(
        &self,
        client: &ClientId,
        time: Timestamp,
    ) -> Result<bool, StoreError> {
        presence::mark_disconnected(&self.pool, client, time).await
    }
}

#[async_trait]
impl LookupQueueRepository for PostgresStore {
    async fn claim_for_lookup(
        &self,
        reason: LookupReason,
        limit: u32,
        claims_ended_before: Timestamp,
        claim_until: Timestamp,
    ) -> Result<Vec<ClaimedConnection>, StoreError> {
        lookup_queue::claim_for_lookup(&self.pool, reason, limit, claims_ended_before, claim_until)
            .await
    }

    async fn count_due_rows(
        &self,
        reason: LookupReason,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        lookup_queue::count_due_rows(&self.pool, reason, now).await
    }

    async fn save_lookup_results(
        &self,
        results: &[LookupResult],
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        lookup_queue::save_lookup_results(&self.pool, results, now).await
    }

    async fn count_tenantless_clients(
        &self,
        max_attempts: u32,
    ) -> Result<TenantlessCounts, StoreError> {
        lookup_queue::count_tenantless_clients(&self.pool, max_attempts).await
    }

    async fn list_tenantless_clients(
        &self,
        limit: u32,
    ) -> Result<Vec<TenantlessClient>, StoreError> {
        lookup_queue::list_tenantless_clients(&self.pool, limit).await
    }

    async fn reset_tenantless_clients(
        &self,
        clients: Option<&[ClientId]>,
    ) -> Result<u64, StoreError> {
        lookup_queue::reset_tenantless_clients(&self.pool, clients).await
    }

    async fn delete_tenantless_clients(&self, clients: &[ClientId]) -> Result<u64, StoreError> {
        lookup_queue::delete_tenantless_clients(&self.pool, clients).await
    }
}

#[async_trait]
impl DeadLetterRepository for PostgresStore {
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        dead_letters::list_dead_letters(&self.pool, filter, limit).await
    }

    async fn find_dead_letter(
        &self,
        dead_letter_id: i64,
    ) -> Result<Option<StoredDeadLetter>, StoreError> {
        dead_letters::find_dead_letter(&self.pool, dead_letter_id).await
    }

    async fn request_replay(
        &self,
        dead_letter_id: i64,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        dead_letters::request_replay(&self.pool, dead_letter_id, now).await
    }

    async fn finish_replay(
        &self,
        dead_letter_id: i64,
        occurrences: u64,
    ) -> Result<bool, StoreError> {
        dead_letters::finish_replay(&self.pool, dead_letter_id, occurrences).await
    }

    async fn purge_dead_letters(&self, filter: &DeadLetterFilter) -> Result<u64, StoreError> {
        dead_letters::purge_dead_letters(&self.pool, filter).await
    }
}

#[async_trait]
impl MaintenanceRepository for PostgresStore {
    async fn ping(&self) -> Result<(), StoreError> {
        connect::check_schema(&self.pool).await
    }

    async fn close(&self) {
        self.reserved_connections.close().await;
        self.pool.close().await;
    }

    async fn delete_clients_disconnected_before(&self, time: Timestamp) -> Result<u64, StoreError> {
        // Also deletes the client's row in `connection_search`, unless the client has reconnected.
        let deleted_clients: i64 = sqlx::query_scalar(
            "WITH deleted AS (
                 DELETE FROM disconnected_clients WHERE disconnected_at < $1 RETURNING client_id),
             deleted_search AS (
                 DELETE FROM connection_search AS s USING deleted
                  WHERE s.client_id = deleted.client_id AND NOT EXISTS (
                      SELECT FROM connections AS c WHERE c.client_id = s.client_id))
             SELECT count(*) FROM deleted",
        )
        .bind(row::to_sql(time))
        .fetch_one(&self.pool)
        .await?;
        Ok(u64::try_from(deleted_clients).unwrap_or(0))
    }

    async fn compact(&self) -> Result<(), StoreError> {
        search::compact_org_connection_deltas(&self.pool).await
    }

    async fn list_client_ids(
        &self,
        after_client: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>, StoreError> {
        lookup::list_client_ids(&self.pool, after_client, limit).await
    }

    async fn count_connections_with_tenant(&self) -> Result<u64, StoreError> {
        lookup_queue::count_connections_with_tenant(&self.pool).await
    }

    async fn count_by_org(&self, limit: u32) -> Result<(Vec<OrgCount>, u64), StoreError> {
        lookup_queue::count_by_org(&self.pool, limit).await
    }
}
