//! Creates and closes the librdkafka client of a consumer.

use std::sync::Arc;

use rdkafka::ClientConfig;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use tokio::sync::mpsc;

use super::callbacks::{ConsumerCallbacks, RebalanceEvent};
use crate::KafkaSettings;
use crate::client_config::{self, KafkaError};

/// Interval at which librdkafka reports statistics. The statistics contain the fetch positions.
const STATISTICS_INTERVAL_MS: &str = "5000";

/// Maximum size of the prefetched messages. librdkafka sends the next fetch request while the
/// prefetched messages are smaller.
const MAX_PREFETCHED_KBYTES: &str = "4096";
/// Maximum size of a response to a fetch request. Kafka sends a larger response only if the first
/// message batch is larger.
///
/// The limit is low, because it applies to compressed messages, and LZ4 compresses repetitive
/// messages by a factor of up to 255. librdkafka decompresses a whole response at once.
const MAX_FETCH_BYTES: &str = "131072";
/// Memory that a consumer typically needs for prefetched messages: the prefetched messages and one
/// decompressed response.
pub const CONSUMER_BUFFER_BYTES: usize = 8 * 1024 * 1024;

pub(super) type Client = StreamConsumer<ConsumerCallbacks>;

pub(super) fn create_client(
    kafka: &KafkaSettings,
    topic: &str,
    group: &str,
) -> Result<(Arc<Client>, mpsc::UnboundedReceiver<RebalanceEvent>), KafkaError> {
    let (sender, rebalances) = mpsc::unbounded_channel();
    let session_timeout = kafka.session_timeout.get();
    let mut config = client_config::common_config(kafka)?;
    limit_prefetched_messages(&mut config);
    let client: Client = config
        .set("group.id", group)
        .set("statistics.interval.ms", STATISTICS_INTERVAL_MS)
        .set(
            "session.timeout.ms",
            session_timeout.as_millis().to_string(),
        )
        .set(
            "heartbeat.interval.ms",
            (session_timeout / 5).as_millis().to_string(),
        )
        .set("auto.offset.reset", "earliest")
        // The consumer commits offsets itself, after it has checked the id of the topic.
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .create_with_context(ConsumerCallbacks::new(sender))
        .map_err(|error| client_config::rejected_settings_error(&error))?;
    client
        .subscribe(&[topic])
        .map_err(|error| client_config::rejected_settings_error(&error))?;
    Ok((Arc::new(client), rebalances))
}

/// Limits the memory for prefetched messages.
pub(crate) fn limit_prefetched_messages(config: &mut ClientConfig) {
    config
        // librdkafka requires `fetch.max.bytes` to be at least `message.max.bytes`, which has no
        // other effect on a consumer. A consumer can also read messages that are larger than these
        // settings.
        .set("queued.min.messages", "2000")
        .set("queued.max.messages.kbytes", MAX_PREFETCHED_KBYTES)
        .set("message.max.bytes", MAX_FETCH_BYTES)
        .set("fetch.max.bytes", MAX_FETCH_BYTES)
        .set("fetch.message.max.bytes", MAX_FETCH_BYTES)
        // When the prefetch buffer of a partition is full, librdkafka waits this long before
        // the next fetch. With the default of one second, the buffer would often be empty
        // before the next fetch.
        .set("fetch.queue.backoff.ms", "10");
}

/// Leaves the consumer group and closes the client. Blocks the thread.
pub(super) fn leave_group(client: Arc<Client>) {
    prepare_close(&client);
    // Dropping the last reference closes the client.
    drop(client);
}

/// Ensures that no rebalance blocks the close of the client: neither a rebalance that the consumer
/// has received but not completed, nor the rebalance of the close itself.
pub(super) fn prepare_close(client: &Client) {
    client.client().context().begin_close();
    if let Err(error) = client.unassign() {
        tracing::debug!(%error, "failed to give up partitions");
    }
}
