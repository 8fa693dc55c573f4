//! SQLite: one file in the data folder, one writer, several readers.

mod open;
mod read;
mod row;
mod write;

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::SqlitePool;

pub use open::{check, schema_is_current};

use super::{Batch, Known, Listing, Store, StoreError};
use crate::domain::{ClientId, Connection, OrgId, Timestamp};

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
        read::known(&self.readers, clients).await
    }

    async fn record_batch(&self, batch: &Batch, now: Timestamp) -> Result<(), StoreError> {
        write::record_batch(&self.writer, batch, now).await
    }

    async fn find_for_org(
        &self,
        org: &OrgId,
        client: &ClientId,
    ) -> Result<Option<Connection>, StoreError> {
        read::find_for_org(&self.readers, org, client).await
    }

    async fn list_for_org(
        &self,
        org: &OrgId,
        offset: u64,
        limit: u64,
    ) -> Result<Listing, StoreError> {
        read::list_for_org(&self.readers, org, offset, limit).await
    }

    async fn seen_before(
        &self,
        moment: Timestamp,
        after: Option<&ClientId>,
        limit: u32,
    ) -> Result<Vec<ClientId>, StoreError> {
        read::seen_before(&self.readers, moment, after, limit).await
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
