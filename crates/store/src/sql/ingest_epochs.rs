//! [`IngestEpochRepository`] of a SQL database.

use std::time::Duration;

use async_trait::async_trait;

use super::{Access, SqlDatabase, row};
use crate::error::{Result, StoreError};
use crate::ingest_epochs::{IngestEpoch, IngestEpochRepository};

#[async_trait]
impl<D: SqlDatabase> IngestEpochRepository for D {
    async fn next_ingest_epoch(
        &self,
        session_name: &str,
        session_present: bool,
    ) -> Result<IngestEpoch> {
        let query = self
            .next_ingest_epoch_statement()
            .with([session_name.into(), u32::from(session_present).into()]);
        let rows = self.fetch_all(Access::Write, query).await?;
        let row = rows.first().ok_or_else(|| {
            StoreError::CorruptRow("ingest_sessions: the upsert returned no row".to_owned())
        })?;
        row::ingest_epoch(row)
    }

    async fn hold_ingest_session(
        &self,
        session_name: &str,
        holder: &str,
        duration: Duration,
    ) -> Result<bool> {
        let query = self.hold_ingest_session_statement().with([
            session_name.into(),
            holder.into(),
            duration.as_secs().into(),
        ]);
        let rows = self.fetch_all(Access::Write, query).await?;
        Ok(!rows.is_empty())
    }

    async fn release_ingest_session(&self, session_name: &str, holder: &str) -> Result<()> {
        let release = self.statements().release_ingest_session;
        let query = release.with([session_name.into(), holder.into()]);
        self.fetch_all(Access::Write, query).await.map(drop)
    }
}
