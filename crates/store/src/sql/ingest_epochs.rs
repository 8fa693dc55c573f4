//! [`IngestEpochRepository`] of a SQL database.

use async_trait::async_trait;

use super::{Access, SqlDatabase, row};
use crate::error::{Result, StoreError};
use crate::ingest_epochs::{IngestEpoch, IngestEpochRepository};

#[async_trait]
impl<D: SqlDatabase> IngestEpochRepository for D {
    async fn next_ingest_epoch(&self, session_name: &str) -> Result<IngestEpoch> {
        let query = self
            .next_ingest_epoch_statement()
            .with([session_name.into()]);
        let rows = self.fetch_all(Access::Write, query).await?;
        let row = rows.first().ok_or_else(|| {
            StoreError::CorruptRow("ingest_sessions: the upsert returned no row".to_owned())
        })?;
        row::ingest_epoch(row)
    }
}
