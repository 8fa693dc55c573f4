//! Creates and checks topics.

use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;

use super::KafkaSettings;
use super::client_config::{self, KafkaError, MAX_MESSAGE_BYTES};

/// Timeout of a health check. It must be shorter than the timeout of the readiness endpoint, which
/// is one second.
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_millis(800);
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
const CREATE_TOPICS_TIMEOUT: Duration = Duration::from_secs(15);
pub(super) const MISSING_TOPIC_HINT: &str =
    "create the topic with `cloud-connector migrate --topics`";
const CREATE_FAILED_HINT: &str =
    "check kafka.brokers, kafka.security and kafka.replication, and whether Kafka is running";

/// Result of [`create_topics`] for one topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicCreation {
    /// The topic was created.
    Created,
    /// The topic existed before and was not changed.
    AlreadyExisted,
}

/// Creates the topics that do not exist yet. Does not change existing topics.
///
/// # Errors
/// When the cluster cannot be reached or rejects the request.
pub async fn create_topics(
    kafka: &KafkaSettings,
    topics: &[&str],
) -> Result<Vec<(String, TopicCreation)>, KafkaError> {
    let admin: AdminClient<DefaultClientContext> = client_config::common_config(kafka)?
        .create()
        .map_err(|error| client_config::rejected_settings_error(&error))?;
    let new_topics: Vec<NewTopic<'_>> = topics
        .iter()
        .map(|topic| {
            NewTopic::new(
                topic,
                kafka.partitions,
                TopicReplication::Fixed(kafka.replication),
            )
            .set("max.message.bytes", MAX_MESSAGE_BYTES)
        })
        .collect();
    let options = AdminOptions::new()
        .request_timeout(Some(CREATE_TOPICS_TIMEOUT))
        .operation_timeout(Some(CREATE_TOPICS_TIMEOUT));
    let request_failed = |problem: String| KafkaError::RequestFailed {
        problem,
        hint: CREATE_FAILED_HINT,
    };
    let results = admin
        .create_topics(&new_topics, &options)
        .await
        .map_err(|error| request_failed(error.to_string()))?;
    results
        .into_iter()
        .map(|result| match result {
            Ok(topic) => Ok((topic, TopicCreation::Created)),
            Err((topic, RDKafkaErrorCode::TopicAlreadyExists)) => {
                Ok((topic, TopicCreation::AlreadyExisted))
            }
            Err((topic, code)) => Err(request_failed(format!("topic {topic}: {code}"))),
        })
        .collect()
}

/// Connects once and checks the topics. Returns a text with the name and the number of partitions
/// of each topic. Used by `doctor`.
///
/// # Errors
/// When the cluster cannot be reached, or a topic does not exist or has a partition without a
/// leader.
pub fn probe(kafka: &KafkaSettings, topics: &[&str]) -> Result<String, String> {
    let consumer: BaseConsumer = client_config::common_config(kafka)
        .and_then(|config| {
            config
                .create()
                .map_err(|error| client_config::rejected_settings_error(&error))
        })
        .map_err(|error| error.to_string())?;
    let mut descriptions = Vec::new();
    for topic in topics {
        let partitions = count_partitions(consumer.client(), topic, PROBE_TIMEOUT)?;
        descriptions.push(format!("{topic} ({partitions} partitions)"));
    }
    Ok(descriptions.join(", "))
}

/// Checks that a topic exists and each partition has a leader.
pub(super) fn check_topic<C: ClientContext>(client: &Client<C>, topic: &str) -> Result<(), String> {
    count_partitions(client, topic, HEALTH_CHECK_TIMEOUT).map(drop)
}

/// Returns the number of partitions of a topic. Fails if the topic does not exist or a partition
/// has no leader.
pub(super) fn count_partitions<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    timeout: Duration,
) -> Result<usize, String> {
    let metadata = client
        .fetch_metadata(Some(topic), timeout)
        .map_err(|error| {
            format!(
                "cannot reach Kafka ({error}); check kafka.brokers, kafka.security, kafka.ca, \
             kafka.username and kafka.password, and whether Kafka is running"
            )
        })?;
    let missing_topic_error = || format!("topic {topic} does not exist; {MISSING_TOPIC_HINT}");
    let metadata = metadata.topics().iter().find(|found| found.name() == topic);
    let metadata = metadata.ok_or_else(missing_topic_error)?;
    if let Some(error) = metadata.error() {
        return Err(match RDKafkaErrorCode::from(error) {
            RDKafkaErrorCode::UnknownTopicOrPartition => missing_topic_error(),
            code => format!("topic {topic}: {code}"),
        });
    }
    let partitions = metadata.partitions();
    if let Some(partition) = partitions.iter().find(|p| p.leader() < 0) {
        let partition_id = partition.id();
        return Err(format!(
            "topic {topic}: partition {partition_id} has no leader"
        ));
    }
    Ok(partitions.len())
}
