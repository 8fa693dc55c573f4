//! PostgreSQL: for fleets. Rows go in by arrays, a batch a statement.

mod dead_letters;
mod due;
mod fence;
mod list;
mod open;
mod read;
mod readers;
mod row;
mod write;

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::PgPool;

pub use open::{PostgresOpenError, migrate, probe};

use super::{
    Batch, Due, DueFor, Fence, Finding, KeptLetter, Known, LetterFilter, Listing, OrgCount, Owned,
    Queue, Store, StoreError, Tenantless, TenantlessCounts, Wanted, Written,
};
use crate::domain::{ClientId, Connection, OrgId, Tenant, Timestamp};

/// A pool of connections, made when they are first needed: a database that is away at the start is
/// waited for, not a reason to end.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    pool: PgPool,
    readers: readers::Readers,
}

#[async_trait]
impl Store for PostgresStore {
    async fn known(&self, clients: &[ClientId]) -> Result<HashMap<ClientId, Known>, StoreError> {
        read::known(&self.pool, clients).await
    }

    async fn record_batch(
        &self,
        batch: &Batch,
        fences: &[Fence],
        now: Timestamp,
    ) -> Result<Written, StoreError> {
        write::record_batch(&self.pool, batch, fences, now).await
    }

    async fn take_partitions(
        &self,
        queue: Queue,
        partitions: &[i32],
        owner: &str,
    ) -> Result<Vec<Fence>, StoreError> {
        fence::take(&self.pool, queue, partitions, owner).await
    }

    async fn forget_departed(&self, before: Timestamp) -> Result<u64, StoreError> {
        // Who is gone for good is not looked for any more.
        let forgotten: i64 = sqlx::query_scalar(
            "WITH forgotten AS (
                 DELETE FROM departed WHERE departed_at < $1 RETURNING client_id),
             unfindable AS (
                 DELETE FROM findable AS f USING forgotten
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
        list::fold_counts(&self.pool).await
    }

    async fn find_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError> {
        self.readers
            .ask(async |connection| read::find_for_org(connection, org, client).await)
            .await
    }

    async fn find_many_for_org(
        &self,
        org: &OrgId,
        clients: &[ClientId],
    ) -> Result<Vec<Connection>, StoreError> {
        self.readers
            .ask(async |connection| read::find_many_for_org(connection, org, clients).await)
            .await
    }

    async fn find_for_org_or_satellite(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError> {
        self.readers
            .ask(async |connection| read::find_for_org_or_satellite(connection, org, client).await)
            .await
    }

    async fn list_owned(&self, offset: u64, limit: u64) -> Result<Owned, StoreError> {
        list::owned(&self.pool, offset, limit).await
    }

    async fn list_for_org(&self, org: &OrgId, wanted: &Wanted) -> Result<Listing, StoreError> {
        list::for_org(&self.pool, org, wanted).await
    }

    async fn client_ids(
        &self,
        after: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>, StoreError> {
        read::client_ids(&self.pool, after, limit).await
    }

    async fn claim_due(
        &self,
        due: DueFor,
        limit: u32,
        unclaimed: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<Due>, StoreError> {
        due::claim(&self.pool, due, limit, unclaimed, until).await
    }

    async fn count_due(&self, due: DueFor, now: Timestamp) -> Result<u64, StoreError> {
        due::count(&self.pool, due, now).await
    }

    async fn settle_due(&self, findings: &[Finding], now: Timestamp) -> Result<u64, StoreError> {
        due::settle(&self.pool, findings, now).await
    }

    async fn restore_tenants(
        &self,
        clients: &[(ClientId, Tenant)],
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        due::restore_tenants(&self.pool, clients, now).await
    }

    async fn count_tenantless(&self, most_failures: u32) -> Result<TenantlessCounts, StoreError> {
        due::count_tenantless(&self.pool, most_failures).await
    }

    async fn list_tenantless(&self, limit: u32) -> Result<Vec<Tenantless>, StoreError> {
        due::list_tenantless(&self.pool, limit).await
    }

    async fn retry_tenantless(&self, clients: Option<&[ClientId]>) -> Result<u64, StoreError> {
        due::retry_tenantless(&self.pool, clients).await
    }

    async fn forget_tenantless(&self, clients: &[ClientId]) -> Result<u64, StoreError> {
        due::forget_tenantless(&self.pool, clients).await
    }

    async fn count_connected(&self) -> Result<u64, StoreError> {
        due::count_connected(&self.pool).await
    }

    async fn count_by_org(&self, limit: u32) -> Result<(Vec<OrgCount>, u64), StoreError> {
        due::count_by_org(&self.pool, limit).await
    }

    async fn list_dead_letters(
        &self,
        filter: &LetterFilter,
        limit: u32,
    ) -> Result<Vec<KeptLetter>, StoreError> {
        dead_letters::list(&self.pool, filter, limit).await
    }

    async fn dead_letter(&self, id: i64) -> Result<Option<KeptLetter>, StoreError> {
        dead_letters::find(&self.pool, id).await
    }

    async fn ask_replay(&self, id: i64, now: Timestamp) -> Result<bool, StoreError> {
        dead_letters::ask_replay(&self.pool, id, now).await
    }

    async fn end_replay(&self, id: i64, times: u64) -> Result<bool, StoreError> {
        dead_letters::end_replay(&self.pool, id, times).await
    }

    async fn purge_dead_letters(&self, filter: &LetterFilter) -> Result<u64, StoreError> {
        dead_letters::purge(&self.pool, filter).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        open::check_schema(&self.pool).await
    }

    async fn close(&self) {
        self.readers.close().await;
        self.pool.close().await;
    }
}
