//! The functions that librdkafka calls for a consumer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::topic_partition_list::{TopicPartitionList, TopicPartitionListElem};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Statistics};
use tokio::sync::mpsc;

use crate::client_config::ErrorLogger;

/// A rebalance that the consumer must complete with `assign` or `unassign`.
pub(super) enum RebalanceEvent {
    Assigned(Vec<i32>),
    Revoked(Vec<i32>),
}

/// Callbacks that librdkafka invokes for the consumer.
pub(super) struct ConsumerCallbacks {
    rebalances: mpsc::UnboundedSender<RebalanceEvent>,
    /// Set before the client is dropped. From then on, rebalances are completed here.
    is_closing: AtomicBool,
    /// The offset up to which librdkafka has fetched each partition, from the latest statistics.
    fetch_positions: Mutex<HashMap<i32, i64>>,
}

impl ConsumerCallbacks {
    pub fn new(rebalances: mpsc::UnboundedSender<RebalanceEvent>) -> Self {
        Self {
            rebalances,
            is_closing: AtomicBool::new(false),
            fetch_positions: Mutex::default(),
        }
    }

    pub fn begin_close(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    /// Returns the offset up to which librdkafka has fetched a partition. `None` if unknown.
    pub fn fetch_position(&self, partition: i32) -> Option<i64> {
        self.fetch_positions.lock().get(&partition).copied()
    }
}

impl ClientContext for ConsumerCallbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        ErrorLogger.log(level, facility, message);
    }

    fn error(&self, error: rdkafka::error::KafkaError, reason: &str) {
        ErrorLogger.error(error, reason);
    }

    fn stats(&self, statistics: Statistics) {
        let topics = statistics.topics.into_values();
        let partitions = topics.flat_map(|topic| topic.partitions.into_values());
        *self.fetch_positions.lock() = partitions
            .map(|partition| (partition.partition, partition.next_offset))
            .collect();
    }
}

impl ConsumerContext for ConsumerCallbacks {
    /// Passes the rebalance to the consumer. The consumer completes it in the background, because
    /// this function must not block and the consumer must first determine the start offsets.
    fn rebalance(
        &self,
        client: &BaseConsumer<Self>,
        rebalance: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        let partitions = partition_numbers(partitions);
        let event = match rebalance {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                RebalanceEvent::Assigned(partitions)
            }
            _ => RebalanceEvent::Revoked(partitions),
        };
        if self.is_closing.load(Ordering::Acquire) || self.rebalances.send(event).is_err() {
            // `unassign` fails only if the client is already closed.
            let _ = client.unassign();
        }
    }
}

fn partition_numbers(list: &TopicPartitionList) -> Vec<i32> {
    let elements = list.elements();
    elements
        .iter()
        .map(TopicPartitionListElem::partition)
        .collect()
}
