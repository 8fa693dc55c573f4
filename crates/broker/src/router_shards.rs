//! The routers of `mqtt5`, one for each shard of the clients.
//!
//! `mqtt5` visits all subscriptions of a router each time a client connects or disconnects. With one
//! router for all clients, a connect would therefore need more time the more clients are connected. The
//! client id determines the shard, so all connections of a client, its session and the messages to it
//! use the same router. Clients do not send messages to each other, so a message never crosses
//! shards. See `docs/decisions/032-router-shards.md`.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mqtt5::broker::router::MessageRouter;
use mqtt5::broker::storage::{MemoryBackend, QueueLimits};
use mqtt5::broker::{DynamicStorage, StorageBackend as _};

use domain::ClientId;

/// Number of shards. With a million clients, a shard has about a thousand.
const SHARD_COUNT: usize = 1024;
/// Limits of a session queue. The queue contains the messages to one disconnected client.
const SESSION_QUEUE_LIMITS: QueueLimits = QueueLimits {
    max_messages: 1000,
    max_bytes: 8 * 1024 * 1024,
};

/// The router of one shard, with the sessions of its clients.
///
/// A shard needs a storage of its own: a router ends the sessions in its storage whose clients are not
/// connected to that router.
pub(super) struct RouterShard {
    pub router: Arc<MessageRouter>,
    pub storage: Arc<DynamicStorage>,
}

/// All shards. A shard is created for its first client, because an empty shard needs a few KiB.
pub(super) struct RouterShards {
    /// Has random keys, so that client ids cannot be chosen to belong to the same shard.
    hasher: RandomState,
    shards: Box<[OnceLock<RouterShard>]>,
}

impl RouterShard {
    fn new() -> Self {
        let backend = MemoryBackend::with_queue_limits(SESSION_QUEUE_LIMITS);
        let storage = Arc::new(DynamicStorage::Memory(backend));
        let router = MessageRouter::with_storage(storage.clone())
            .with_fallback_queue_limits(SESSION_QUEUE_LIMITS);
        Self {
            router: Arc::new(router),
            storage,
        }
    }

    /// Removes the expired sessions and their subscriptions.
    async fn sweep(&self) {
        if let Err(error) = self.storage.cleanup_expired().await {
            tracing::warn!(%error, "failed to remove expired MQTT sessions");
        }
        self.router.sweep_sessions().await;
    }
}

impl RouterShards {
    pub fn new() -> Self {
        Self {
            hasher: RandomState::new(),
            shards: (0..SHARD_COUNT).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Returns the shard of a client.
    pub fn shard_of(&self, client: &ClientId) -> &RouterShard {
        self.shards[self.index_of(client)].get_or_init(RouterShard::new)
    }

    /// Removes the expired sessions of all shards, one shard after the other. Pauses after each shard,
    /// so that a sweep of all shards takes about `duration` and does not delay the connections.
    pub async fn sweep(&self, duration: Duration) {
        let used_shards: Vec<_> = self.shards.iter().filter_map(OnceLock::get).collect();
        if used_shards.is_empty() {
            tokio::time::sleep(duration).await;
            return;
        }
        let pause = duration.div_f64(used_shards.len() as f64);
        for shard in used_shards {
            tokio::time::sleep(pause).await;
            shard.sweep().await;
        }
    }

    fn index_of(&self, client: &ClientId) -> usize {
        let hash = self.hasher.hash_one(client.as_str());
        usize::try_from(hash % SHARD_COUNT as u64).unwrap_or(0)
    }
}

#[cfg(test)]
pub(crate) mod tests;
