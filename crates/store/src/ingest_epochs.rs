//! Sessions of `ingest` at an external broker: the epochs that order the connections of a session, and
//! the lease of the process that may connect.

use std::time::Duration;

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

/// Issues epochs and leases, for `ingest`.
#[async_trait]
pub trait IngestEpochRepository: Send + Sync + 'static {
    /// Returns a new epoch for a connection of the session. It is higher than all earlier epochs of
    /// the session.
    ///
    /// The epoch is at least the Unix time in seconds, so it is also higher than the epochs that
    /// were issued after a backup from which the database was restored.
    ///
    /// `session_present` is false if the broker had no stored session. The time of this call is then stored,
    /// because the broker may have been restarted.
    async fn next_ingest_epoch(
        &self,
        session_name: &str,
        session_present: bool,
    ) -> Result<IngestEpoch>;

    /// Acquires or renews the lease of the session for the process `holder`. Returns false if
    /// another process has the lease. The clock of the database decides when a lease expires.
    async fn hold_ingest_session(
        &self,
        session_name: &str,
        holder: &str,
        duration: Duration,
    ) -> Result<bool>;

    /// Ends the lease of the session, if the process `holder` has it.
    async fn release_ingest_session(&self, session_name: &str, holder: &str) -> Result<()>;
}
