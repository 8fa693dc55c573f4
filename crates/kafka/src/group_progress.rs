//! Reads how far a consumer group has processed a topic, without joining the group.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaError as ClientError;
use rdkafka::message::Message as _;

use super::KafkaSettings;
use super::client_config::{self, ErrorLogger, KafkaError};
use super::consumer::client::limit_prefetched_messages;
use super::consumer::offsets::{self, Offsets};
use super::producer::DeliveredAt;
use super::topics::count_partitions;

/// Timeout of a request. It is short, because a shutdown waits for a running request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum time of one poll while messages are scanned.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);

type Client = BaseConsumer<ErrorLogger>;

impl rdkafka::consumer::ConsumerContext for ErrorLogger {}

/// Reads the progress of a consumer group in a topic. Clones use the same connection.
#[derive(Clone)]
pub struct GroupProgress {
    config: ClientConfig,
    client: Arc<Client>,
    topic: Arc<str>,
}

/// The progress of a consumer group in one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionProgress {
    /// Offset of the first message that the group has not processed.
    pub next_offset: i64,
    /// Offset after the last message of the partition.
    pub end_offset: i64,
}

/// Result of [`GroupProgress::scan_unprocessed`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnprocessedScan<T> {
    /// What was collected from the messages.
    pub collected: T,
    /// The progress of the group before the scan.
    pub progress: BTreeMap<i32, PartitionProgress>,
    /// Whether the scan ended at its time limit, before it had read all messages.
    pub is_incomplete: bool,
}

impl GroupProgress {
    /// Creates a reader. Connects in the background.
    ///
    /// # Errors
    /// When a setting is invalid.
    pub fn new(kafka: &KafkaSettings, topic: &str, group: &str) -> Result<Self, KafkaError> {
        let mut config = client_config::common_config(kafka)?;
        limit_prefetched_messages(&mut config);
        config
            .set("group.id", group)
            .set("auto.offset.reset", "earliest")
            .set("enable.auto.commit", "false")
            .set("enable.partition.eof", "true");
        let client = create_client(&config)
            .map_err(|error| client_config::rejected_settings_error(&error))?;
        Ok(Self {
            config,
            client: Arc::new(client),
            topic: topic.into(),
        })
    }

    /// Returns the progress of the group in each partition.
    ///
    /// # Errors
    /// When Kafka does not respond, or the topic does not exist. The error contains the reason.
    pub async fn read(&self) -> Result<BTreeMap<i32, PartitionProgress>, String> {
        let (client, topic) = (self.client.clone(), self.topic.clone());
        run_blocking(move || read_progress(&client, &topic)).await
    }

    /// Reads the messages that the group has not processed, and passes the key and the position of each
    /// message to `collect`. Ends at the messages that were the last ones when the scan started, after
    /// `time_limit`, and when the future is dropped.
    ///
    /// # Errors
    /// When Kafka does not respond, or the topic does not exist. The error contains the reason.
    pub async fn scan_unprocessed<T: Default + Send + 'static>(
        &self,
        time_limit: Duration,
        collect: impl FnMut(&mut T, &[u8], DeliveredAt) + Send + 'static,
    ) -> Result<UnprocessedScan<T>, String> {
        let scan = self.clone();
        // The thread ends when this value is dropped with the future.
        let caller = Arc::new(());
        let weak_caller = Arc::downgrade(&caller);
        run_blocking(move || scan.scan_blocking(time_limit, collect, &weak_caller)).await
    }

    fn scan_blocking<T: Default>(
        &self,
        time_limit: Duration,
        mut collect: impl FnMut(&mut T, &[u8], DeliveredAt),
        caller: &Weak<()>,
    ) -> Result<UnprocessedScan<T>, String> {
        let deadline = Instant::now() + time_limit;
        let progress = read_progress(&self.client, &self.topic)?;
        let mut unread: Offsets = progress
            .iter()
            .filter(|(_, partition)| partition.next_offset < partition.end_offset)
            .map(|(number, partition)| (*number, partition.next_offset))
            .collect();
        let mut collected = T::default();
        if !unread.is_empty() {
            // A separate client, so that the prefetched messages are freed after the scan.
            let client = create_client(&self.config).map_err(|error| error.to_string())?;
            offsets::offset_list(&self.topic, &unread, None)
                .and_then(|list| client.assign(&list))
                .map_err(|error| error.to_string())?;
            while !unread.is_empty() && Instant::now() < deadline && caller.strong_count() > 0 {
                let Some(event) = next_scan_event(&client)? else {
                    continue;
                };
                let (partition, is_end) = match event {
                    ScanEvent::Message(key, position) => {
                        collect(&mut collected, &key, position);
                        let end = progress.get(&position.partition).map(|it| it.end_offset);
                        let is_end = end.is_none_or(|end| position.offset + 1 >= end);
                        (position.partition, is_end)
                    }
                    ScanEvent::EndOfPartition(partition) => (partition, true),
                };
                if is_end {
                    unread.remove(&partition);
                }
            }
        }
        Ok(UnprocessedScan {
            collected,
            progress,
            is_incomplete: !unread.is_empty(),
        })
    }
}

enum ScanEvent {
    /// Key and position of a message.
    Message(Vec<u8>, DeliveredAt),
    /// All messages of this partition were read.
    EndOfPartition(i32),
}

/// Waits for the next event. Returns `None` after [`POLL_TIMEOUT`].
fn next_scan_event(client: &Client) -> Result<Option<ScanEvent>, String> {
    match client.poll(POLL_TIMEOUT) {
        Some(Ok(message)) => {
            let position = DeliveredAt {
                partition: message.partition(),
                offset: message.offset(),
            };
            let key = message.key().unwrap_or_default().to_vec();
            Ok(Some(ScanEvent::Message(key, position)))
        }
        Some(Err(ClientError::PartitionEOF(partition))) => {
            Ok(Some(ScanEvent::EndOfPartition(partition)))
        }
        Some(Err(error)) => Err(error.to_string()),
        None => Ok(None),
    }
}

fn create_client(config: &ClientConfig) -> Result<Client, ClientError> {
    config.create_with_context(ErrorLogger)
}

fn read_progress(client: &Client, topic: &str) -> Result<BTreeMap<i32, PartitionProgress>, String> {
    let count = count_partitions(client.client(), topic, REQUEST_TIMEOUT)?;
    let partitions: Vec<i32> = (0..).take(count).collect();
    let group = offsets::fetch_group_offsets(client, topic, &partitions, REQUEST_TIMEOUT)?;
    let progress = group.partitions.iter().map(|(partition, offsets)| {
        let progress = PartitionProgress {
            next_offset: offsets.next_offset(),
            end_offset: offsets.end(),
        };
        (*partition, progress)
    });
    Ok(progress.collect())
}

async fn run_blocking<T: Send + 'static>(
    function: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let result = tokio::task::spawn_blocking(function).await;
    result.unwrap_or_else(|_| Err("the request failed to run".to_owned()))
}
