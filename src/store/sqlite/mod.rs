//! SQLite: one file in the data folder, one writer, several readers.

mod dead_letters;
mod due;
mod fence;
mod list;
mod open;
mod read;
mod row;
mod write;

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::SqlitePool;

pub use open::{check, schema_is_current};

use super::{
    Batch, Due, DueFor, Fence, Finding, KeptLetter, Known, LetterFilter, Listing, OrgCount, Owned,
    Queue, Store, StoreError, Tenantless, TenantlessCounts, Wanted, Written,
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
    async fn known(&self, clients: &[ClientId]) -> Result<HashMap<ClientId, Known>, StoreError> {
        // By the writer's connection: callers' lists must not hold recording up.
        read::known(&self.writer, clients).await
    }

    async fn record_batch(
        &self,
        batch: &Batch,
        fences: &[Fence],
        now: Timestamp,
    ) -> Result<Written, StoreError> {
        write::record_batch(&self.writer, batch, fences, now).await
    }

    async fn take_partitions(
        &self,
        queue: Queue,
        partitions: &[i32],
        owner: &str,
    ) -> Result<Vec<Fence>, StoreError> {
        fence::take(&self.writer, queue, partitions, owner).await
    }

    async fn forget_departed(&self, before: Timestamp) -> Result<u64, StoreError> {
        let done = sqlx::query("DELETE FROM departed WHERE departed_at < ?")
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
        read::find_for_org(&self.readers, org, client).await
    }

    async fn find_many_for_org(
        &self,
        org: &OrgId,
        clients: &[ClientId],
    ) -> Result<Vec<Connection>, StoreError> {
        read::find_many_for_org(&self.readers, org, clients).await
    }

    async fn find_for_org_or_satellite(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError> {
        read::find_for_org_or_satellite(&self.readers, org, client).await
    }

    async fn list_owned(&self, offset: u64, limit: u64) -> Result<Owned, StoreError> {
        list::owned(&self.readers, offset, limit).await
    }

    async fn list_for_org(&self, org: &OrgId, wanted: &Wanted) -> Result<Listing, StoreError> {
        list::for_org(&self.readers, org, wanted).await
    }

    async fn client_ids(
        &self,
        after: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>, StoreError> {
        read::client_ids(&self.readers, after, limit).await
    }

    async fn claim_due(
        &self,
        due: DueFor,
        limit: u32,
        unclaimed: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<Due>, StoreError> {
        due::claim(&self.writer, due, limit, unclaimed, until).await
    }

    async fn count_due(&self, due: DueFor, now: Timestamp) -> Result<u64, StoreError> {
        due::count(&self.readers, due, now).await
    }

    async fn settle_due(&self, findings: &[Finding], now: Timestamp) -> Result<u64, StoreError> {
        due::settle(&self.writer, findings, now).await
    }

    async fn restore_tenants(
        &self,
        clients: &[(ClientId, Tenant)],
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        due::restore_tenants(&self.writer, clients, now).await
    }

    async fn count_tenantless(&self, most_failures: u32) -> Result<TenantlessCounts, StoreError> {
        due::count_tenantless(&self.readers, most_failures).await
    }

    async fn list_tenantless(&self, limit: u32) -> Result<Vec<Tenantless>, StoreError> {
        due::list_tenantless(&self.readers, limit).await
    }

    async fn retry_tenantless(&self, clients: Option<&[ClientId]>) -> Result<u64, StoreError> {
        due::retry_tenantless(&self.writer, clients).await
    }

    async fn forget_tenantless(&self, clients: &[ClientId]) -> Result<u64, StoreError> {
        due::forget_tenantless(&self.writer, clients).await
    }

    async fn count_connected(&self) -> Result<u64, StoreError> {
        due::count_connected(&self.readers).await
    }

    async fn count_by_org(&self, limit: u32) -> Result<(Vec<OrgCount>, u64), StoreError> {
        due::count_by_org(&self.readers, limit).await
    }

    async fn list_dead_letters(
        &self,
        filter: &LetterFilter,
        limit: u32,
    ) -> Result<Vec<KeptLetter>, StoreError> {
        dead_letters::list(&self.readers, filter, limit).await
    }

    async fn dead_letter(&self, id: i64) -> Result<Option<KeptLetter>, StoreError> {
        dead_letters::find(&self.readers, id).await
    }

    async fn ask_replay(&self, id: i64, now: Timestamp) -> Result<bool, StoreError> {
        dead_letters::ask_replay(&self.writer, id, now).await
    }

    async fn end_replay(&self, id: i64, times: u64) -> Result<bool, StoreError> {
        dead_letters::end_replay(&self.writer, id, times).await
    }

    async fn purge_dead_letters(&self, filter: &LetterFilter) -> Result<u64, StoreError> {
        dead_letters::purge(&self.writer, filter).await
    }

    async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1 FROM connections LIMIT 1")
            .fetch_optional(&self.readers)
            .await?;
        Ok(())
    }

    async fn close(&self) {
        // Readers first: the last one to leave folds the write-ahead log back into the file.
        self.readers.close().await;
        self.writer.close().await;
    }
}
