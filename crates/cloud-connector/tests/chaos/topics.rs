//! Deletes and creates the Kafka topics, and reads how many messages are not recorded yet.

use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::time::sleep;

use test_support::cluster::Cluster;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const DELETION_TIMEOUT: Duration = Duration::from_secs(30);

/// Settings with the name of a topic, and settings with the consumer group that reads this topic.
const TOPICS_AND_GROUPS: [(&str, &str); 3] = [
    ("kafka.ingress_topic", "kafka.group"),
    ("kafka.answers_topic", "kafka.answers_group"),
    ("kafka.slow_topic", "kafka.slow_group"),
];

fn client_config(cluster: &Cluster) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", cluster.setting("kafka.brokers"));
    config
}

/// Returns how many messages of all topics are not committed by their consumer groups.
pub async fn read_lag(cluster: &Cluster) -> Result<i64, String> {
    let mut total_lag = 0;
    for (topic, group) in TOPICS_AND_GROUPS {
        let mut config = client_config(cluster);
        config.set("group.id", cluster.setting(group));
        let topic = cluster.setting(topic).to_owned();
        let lag = tokio::task::spawn_blocking(move || read_topic_lag(&config, &topic));
        let lag = lag.await.map_err(|error| error.to_string())?;
        total_lag += lag.map_err(|error| error.to_string())?;
    }
    Ok(total_lag)
}

fn read_topic_lag(config: &ClientConfig, topic: &str) -> rdkafka::error::KafkaResult<i64> {
    let consumer: BaseConsumer = config.create()?;
    let metadata = consumer.fetch_metadata(Some(topic), REQUEST_TIMEOUT)?;
    let mut partitions = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        partitions.add_partition(topic, partition.id());
    }
    let committed = consumer.committed_offsets(partitions, REQUEST_TIMEOUT)?;
    let mut lag = 0;
    for partition in committed.elements() {
        let number = partition.partition();
        let (low, high) = consumer.fetch_watermarks(topic, number, REQUEST_TIMEOUT)?;
        let next = match partition.offset() {
            Offset::Offset(offset) => offset,
            _ => low,
        };
        lag += high - next;
    }
    Ok(lag)
}

/// Deletes the topics, and waits until they are deleted.
pub async fn delete_topics(cluster: &Cluster) -> Result<(), String> {
    let topics = TOPICS_AND_GROUPS.map(|(topic, _)| cluster.setting(topic));
    let admin_client: AdminClient<DefaultClientContext> = client_config(cluster)
        .create()
        .map_err(|error| error.to_string())?;
    let options = AdminOptions::new().operation_timeout(Some(DELETION_TIMEOUT));
    let results = admin_client.delete_topics(&topics, &options).await;
    for result in results.map_err(|error| error.to_string())? {
        result.map_err(|(topic, code)| format!("cannot delete the topic {topic}: {code}"))?;
    }
    let deadline = Instant::now() + DELETION_TIMEOUT;
    while topics_exist(&admin_client, &topics)? {
        if Instant::now() > deadline {
            return Err(format!(
                "the topics exist {DELETION_TIMEOUT:?} after their deletion"
            ));
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

fn topics_exist(
    admin_client: &AdminClient<DefaultClientContext>,
    topics: &[&str],
) -> Result<bool, String> {
    // A request for all topics creates no topic.
    let metadata = admin_client.inner().fetch_metadata(None, REQUEST_TIMEOUT);
    let metadata = metadata.map_err(|error| error.to_string())?;
    let existing = metadata.topics().iter();
    Ok(existing
        .filter(|topic| topic.error().is_none())
        .any(|topic| topics.contains(&topic.name())))
}

/// Creates the topics with `cloud-connector migrate --topics`.
pub async fn create_topics(cluster: &Cluster) -> Result<(), String> {
    let (code, output) = cluster.run_command(&["migrate", "--topics"]).await;
    let created_count = output.matches("created topic").count();
    if code == Some(0) && created_count == TOPICS_AND_GROUPS.len() {
        Ok(())
    } else {
        Err(format!("migrate --topics: exit code {code:?}: {output}"))
    }
}
