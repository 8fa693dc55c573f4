//! The state of a consumer that its health check reports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::RDKafkaErrorCode;
use tokio::time::Instant;

use super::client::Client;
use crate::topics::{MISSING_TOPIC_HINT, check_topic, count_partitions};

/// A member that takes part in a rebalance is healthy for this time.
const MAX_REBALANCE_TIME: Duration = Duration::from_secs(10);

/// The state of a consumer. The consumer changes it, and the health check reads it.
pub(super) struct ConsumerState {
    pub topic: String,
    pub group: String,
    inner: Mutex<Inner>,
}

struct Inner {
    /// The current client. `None` after the consumer was closed.
    client: Option<Arc<Client>>,
    membership: Membership,
    /// The latest error of the consumer.
    last_error: Option<String>,
    /// Why the consumer makes no progress although messages are unread.
    stall: Option<String>,
    /// The time up to which each assigned partition is processed.
    processed_until: BTreeMap<i32, Instant>,
}

#[derive(Clone, Copy)]
enum Membership {
    /// The consumer has not joined its group yet.
    NotJoined,
    /// The consumer takes part in a rebalance, or rejoins its group.
    Rebalancing { since: Instant },
    /// The consumer is a member of its group.
    Member { partitions: usize },
}

impl ConsumerState {
    pub fn new(topic: &str, group: &str, client: Arc<Client>) -> Self {
        Self {
            topic: topic.to_owned(),
            group: group.to_owned(),
            inner: Mutex::new(Inner {
                client: Some(client),
                membership: Membership::NotJoined,
                last_error: None,
                stall: None,
                processed_until: BTreeMap::new(),
            }),
        }
    }

    /// Replaces the client. The caller drops the previous client.
    pub fn set_client(&self, client: Option<Arc<Client>>) {
        self.inner.lock().client = client;
    }

    pub fn set_member(&self, partitions: usize) {
        let mut inner = self.inner.lock();
        inner.membership = Membership::Member { partitions };
        inner.last_error = None;
        inner.stall = None;
    }

    /// Notes that the consumer is not a member until its next assignment.
    pub fn set_rebalancing(&self) {
        let mut inner = self.inner.lock();
        if matches!(inner.membership, Membership::Member { .. }) {
            inner.membership = Membership::Rebalancing {
                since: Instant::now(),
            };
        }
        inner.stall = None;
        inner.processed_until.clear();
    }

    pub fn set_processed_until(&self, times: BTreeMap<i32, Instant>) {
        self.inner.lock().processed_until = times;
    }

    pub fn set_last_error(&self, error: String) {
        self.inner.lock().last_error = Some(error);
    }

    pub fn set_stall(&self, stall: Option<String>) {
        self.inner.lock().stall = stall;
    }

    fn check_membership(&self) -> Result<(), String> {
        let inner = self.inner.lock();
        let has_joined = match inner.membership {
            Membership::Member { .. } => true,
            Membership::Rebalancing { since } => since.elapsed() < MAX_REBALANCE_TIME,
            Membership::NotJoined => false,
        };
        if !has_joined {
            let group = &self.group;
            return Err(match &inner.last_error {
                Some(error) => format!("cannot join the consumer group {group}: {error}"),
                None => format!("has not joined the consumer group {group} yet"),
            });
        }
        inner.stall.clone().map_or(Ok(()), Err)
    }
}

/// Maximum time of a request for the number of partitions.
const PARTITION_COUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// How far a consumer has processed its topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicProgress {
    /// Number of partitions of the topic.
    pub partition_count: i32,
    /// For each assigned partition, the time up to which it is processed: everything that the partition
    /// contained at this time. A partition without a known time is missing.
    pub processed_until: BTreeMap<i32, Instant>,
}

/// Reads the progress of a consumer.
#[derive(Clone)]
pub struct ConsumerProgress {
    state: Arc<ConsumerState>,
}

impl ConsumerProgress {
    pub(super) fn new(state: Arc<ConsumerState>) -> Self {
        Self { state }
    }

    /// Returns the progress. Returns `None` if the consumer has no progress to report, for example because
    /// it has no partitions.
    ///
    /// # Errors
    /// When Kafka does not respond, or the topic does not exist. The error contains the reason.
    pub async fn read(&self) -> Result<Option<TopicProgress>, String> {
        let (client, processed_until) = {
            let inner = self.state.inner.lock();
            (inner.client.clone(), inner.processed_until.clone())
        };
        let Some(client) = client.filter(|_| !processed_until.is_empty()) else {
            return Ok(None);
        };
        let topic = self.state.topic.clone();
        let count = tokio::task::spawn_blocking(move || {
            let count = count_partitions(client.client(), &topic, PARTITION_COUNT_TIMEOUT)?;
            i32::try_from(count).map_err(|error| error.to_string())
        });
        let partition_count = count
            .await
            .unwrap_or_else(|_| Err("the request failed to run".to_owned()))?;
        Ok(Some(TopicProgress {
            partition_count,
            processed_until,
        }))
    }
}

/// Checks whether a consumer can read its topic.
#[derive(Clone)]
pub struct ConsumerHealthCheck {
    pub(super) state: Arc<ConsumerState>,
}

impl ConsumerHealthCheck {
    /// Checks that the topic exists, that each partition has a leader, that the consumer is a member
    /// of its group, and that it makes progress if messages are unread.
    ///
    /// # Errors
    /// When the consumer cannot read its topic. The error contains the reason.
    pub async fn run(self) -> Result<(), String> {
        let state = self.state;
        let check = tokio::task::spawn_blocking(move || {
            let client = state.inner.lock().client.clone();
            let client = client.ok_or_else(|| "the consumer is closed".to_owned())?;
            check_topic(client.client(), &state.topic)?;
            state.check_membership()
        });
        check
            .await
            .unwrap_or_else(|_| Err("the health check failed to run".to_owned()))
    }

    /// Returns whether the consumer is a member of its group, but has no partitions.
    #[must_use]
    pub fn is_standby(&self) -> bool {
        let membership = self.state.inner.lock().membership;
        matches!(membership, Membership::Member { partitions: 0 })
    }
}

/// Returns what the operator should check after an error of a consumer.
pub(super) fn error_hint(code: Option<RDKafkaErrorCode>) -> &'static str {
    match code {
        Some(RDKafkaErrorCode::GroupAuthorizationFailed) => {
            "allow the Kafka user to read the consumer group (kafka.group, kafka.answers_group, \
             kafka.slow_group)"
        }
        Some(RDKafkaErrorCode::TopicAuthorizationFailed) => {
            "allow the Kafka user to read and describe the topic"
        }
        Some(RDKafkaErrorCode::InconsistentGroupProtocol) => {
            "a member of the group uses another assignment strategy; stop that member, or set \
             kafka.group, kafka.answers_group and kafka.slow_group to unused names"
        }
        Some(
            RDKafkaErrorCode::UnknownTopicOrPartition
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::UnknownPartition,
        ) => MISSING_TOPIC_HINT,
        _ => "check kafka.brokers, and whether Kafka is running",
    }
}
