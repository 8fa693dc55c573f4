//! Epochs of `ingest`, which order the connections of a session at an external broker.

use async_trait::async_trait;

use crate::error::Result;

/// The epoch of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngestEpoch {
    /// Number of the session.
    pub session: i64,
    /// Number of the connection in the session.
    pub epoch: i64,
}

/// Issues epochs, for `ingest`.
#[async_trait]
pub trait IngestEpochRepository: Send + Sync + 'static {
    /// Returns a new epoch for a connection of the session. It is higher than all earlier epochs of
    /// the session.
    ///
    /// The epoch is at least the Unix time in seconds, so it is also higher than the epochs that
    /// were issued after a backup from which the database was restored.
    async fn next_ingest_epoch(&self, session_name: &str) -> Result<IngestEpoch>;
}
