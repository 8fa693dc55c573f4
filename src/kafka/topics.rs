//! TopicScheme: made on request, looked at for health.

use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::{Client, DefaultClientContext};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::RDKafkaErrorCode;

use super::client_config::{self, KafkaError};
use crate::config::Kafka;

/// Below the second that readiness has for an answer.
const METADATA_WITHIN: Duration = Duration::from_millis(800);
const ADMIN_WITHIN: Duration = Duration::from_secs(15);
const MESSAGE_MAX: &str = "2097152";

/// What became of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TopicState {
    /// It was made.
    Made,
    /// It was there.
    Existed,
}

/// Makes the topics that are not there yet. What is there is left as it is.
///
/// # Errors
/// When the cluster does not answer, or refuses.
pub async fn create_topics(
    kafka: &Kafka,
    topics: &[&str],
) -> Result<Vec<(String, TopicState)>, KafkaError> {
    let admin: AdminClient<DefaultClientContext> = client_config::common(kafka)?
        .create()
        .map_err(|error| client_config::unusable(&error))?;
    let wanted: Vec<NewTopic<'_>> = topics
        .iter()
        .map(|topic| {
            NewTopic::new(
                topic,
                kafka.partitions,
                TopicReplication::Fixed(kafka.replication),
            )
            .set("max.message.bytes", MESSAGE_MAX)
        })
        .collect();
    let options = AdminOptions::new()
        .request_timeout(Some(ADMIN_WITHIN))
        .operation_timeout(Some(ADMIN_WITHIN));
    let refused = |problem: String| KafkaError::Refused {
        problem,
        cure: "check kafka.brokers, kafka.security and kafka.replication, and that the cluster runs",
    };
    let results = admin
        .create_topics(&wanted, &options)
        .await
        .map_err(|error| refused(error.to_string()))?;
    results
        .into_iter()
        .map(|result| match result {
            Ok(topic) => Ok((topic, TopicState::Made)),
            Err((topic, RDKafkaErrorCode::TopicAlreadyExists)) => Ok((topic, TopicState::Existed)),
            Err((topic, code)) => Err(refused(format!("topic {topic}: {code}"))),
        })
        .collect()
}

/// Connects once and looks at the topics, for `doctor`. Says how many partitions they have.
///
/// # Errors
/// When the cluster does not answer, or a topic is not there.
pub fn probe(kafka: &Kafka, topics: &[&str]) -> Result<String, String> {
    let consumer: BaseConsumer = client_config::common(kafka)
        .and_then(|config| {
            config
                .create()
                .map_err(|error| client_config::unusable(&error))
        })
        .map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    for topic in topics {
        let partitions = partitions(consumer.client(), topic, ADMIN_WITHIN / 3)?;
        found.push(format!("{topic} ({partitions} partitions)"));
    }
    Ok(found.join(", "))
}

/// Whether a topic is there, and every partition of it has a leader.
pub(super) fn check<C: ClientContext>(client: &Client<C>, topic: &str) -> Result<(), String> {
    partitions(client, topic, METADATA_WITHIN).map(drop)
}

fn partitions<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
    within: Duration,
) -> Result<usize, String> {
    let metadata = client.fetch_metadata(Some(topic), within).map_err(|error| {
        let cure = "check kafka.brokers, kafka.security, kafka.ca, kafka.username and kafka.password, and that the cluster runs";
        format!("the cluster does not answer ({error}); {cure}")
    })?;
    let Some(topic) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Err(format!("topic {topic} is not there; {MAKE}"));
    };
    if let Some(error) = topic.error() {
        let code = RDKafkaErrorCode::from(error);
        return Err(match code {
            RDKafkaErrorCode::UnknownTopicOrPartition => {
                format!("topic {} is not there; {MAKE}", topic.name())
            }
            code => format!("topic {}: {code}", topic.name()),
        });
    }
    if let Some(partition) = topic.partitions().iter().find(|p| p.leader() < 0) {
        return Err(format!(
            "topic {}: partition {} has no leader",
            topic.name(),
            partition.id()
        ));
    }
    Ok(topic.partitions().len())
}

const MAKE: &str = "make it with `cloud-connector migrate --topics`";
