//! The liveness sweep: silent connections, how far recording has processed the Kafka topics, and the state of
//! the sweep. All times are times of the database, except for the times of messages.

use async_trait::async_trait;

use domain::{ClientId, DialectName, Timestamp};

use crate::error::Result;
use crate::partitions::QueueTopic;

/// The part of a connection that the sweep needs. If a message of the client is recorded, the value changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedConnection {
    /// Client id.
    pub client_id: ClientId,
    /// Dialect of the latest online message.
    pub dialect: DialectName,
    /// Prefix of the client's topics.
    pub topic_prefix: String,
    /// Version of the row.
    pub row_version: Timestamp,
    /// Receive time of the latest message, which can be some minutes too early. In a row of an earlier
    /// version, of the latest online message or heartbeat.
    pub last_seen: Timestamp,
    /// Receive time of the latest presence message or heartbeat that changed the row.
    pub latest_message_at: Timestamp,
}

/// Some connections in the order of the client ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectionChunk {
    /// The connections with the requested times.
    pub connections: Vec<WatchedConnection>,
    /// Number of connections that were read.
    pub read_connections: u64,
    /// The last connection that was read. `None` if no connection follows.
    pub last_client: Option<ClientId>,
}

/// A connection to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiringConnection {
    /// The connection as it was before the first ping.
    pub connection: WatchedConnection,
    /// Time before the first ping that the client has not answered. It becomes the time of the disconnect,
    /// so a message that was received later restores the connection.
    pub unanswered_since: Timestamp,
}

/// How far recording has processed a Kafka partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingProgress {
    /// Topic of the partition.
    pub queue: QueueTopic,
    /// Number of the partition.
    pub partition: i32,
    /// Number of partitions of the topic.
    pub partition_count: i32,
    /// Everything that the partition contained at this time is recorded.
    pub processed_until: Timestamp,
}

/// The session of `ingest` at the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IngestSession {
    /// Number of the session.
    pub session: i64,
    /// Number of the latest connection in the session.
    pub epoch: i64,
    /// Whether a process has the lease of the session now.
    pub is_held: bool,
    /// Latest time at which the broker had no stored session when `ingest` connected. `None` if the broker
    /// always had one.
    pub started_at: Option<Timestamp>,
}

/// The passes of the sweep over all connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SweepState {
    /// Start of the latest complete pass.
    pub completed_at: Option<Timestamp>,
    /// Time of the latest broker restart that a complete pass has taken into account.
    pub swept_restart_at: Option<Timestamp>,
}

/// Finds and ends silent connections, for the liveness sweep, and stores the progress of recording. API
/// endpoints must not use this repository, because it is not limited to one organization.
#[async_trait]
pub trait LivenessRepository: Send + Sync + 'static {
    /// Returns the time of the database.
    async fn current_time(&self) -> Result<Timestamp>;

    /// Reads the next `limit` connections after `after_client` in the order of the client ids, and returns
    /// those whose client was last seen at `from` or later, and before `until`.
    async fn list_connections_seen_between(
        &self,
        after_client: Option<&ClientId>,
        limit: u32,
        from: Timestamp,
        until: Timestamp,
    ) -> Result<ConnectionChunk>;

    /// Reads the connections of these clients. Skips clients without a connection.
    async fn find_watched_connections(
        &self,
        clients: &[ClientId],
    ) -> Result<Vec<WatchedConnection>>;

    /// Ends connections with the reason `expired`. Skips connections that have changed. Returns the clients
    /// whose connection ended.
    async fn expire_connections(&self, connections: &[ExpiringConnection])
    -> Result<Vec<ClientId>>;

    /// Stores how far recording has processed partitions. Never makes a stored time earlier. Returns the time
    /// of the database.
    async fn store_recording_progress(&self, progress: &[RecordingProgress]) -> Result<Timestamp>;

    /// Returns the stored progress of all partitions, without the partitions that no longer exist.
    async fn recording_progress(&self) -> Result<Vec<RecordingProgress>>;

    /// Returns the sessions of `ingest`.
    async fn ingest_sessions(&self) -> Result<Vec<IngestSession>>;

    /// Returns the state of the sweep.
    async fn sweep_state(&self) -> Result<SweepState>;

    /// Stores the state of the sweep after a complete pass.
    async fn store_sweep_state(&self, state: SweepState) -> Result<()>;
}
