//! Reads the messages of Kafka topics.

use super::KAFKA_REQUEST_TIMEOUT;

/// Returns the payloads of all messages that the topic contains now.
pub fn read_topic(brokers: &str, topic: &str) -> Vec<Vec<u8>> {
    let messages = read_topic_messages(brokers, topic).into_iter();
    messages.map(|message| message.payload).collect()
}

/// A message of a Kafka topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicMessage {
    pub key: String,
    /// Names and values of the headers.
    pub headers: Vec<(String, String)>,
    pub payload: Vec<u8>,
}

impl TopicMessage {
    /// Returns the value of a header. Panics if the message does not have the header.
    pub fn header(&self, name: &str) -> &str {
        let header = self.headers.iter().find(|(it, _)| it == name);
        let (_, value) = header.unwrap_or_else(|| panic!("no header {name}: {self:?}"));
        value
    }
}

/// Returns all messages that the topic contains now. The messages of each partition are in their order.
pub fn read_topic_messages(brokers: &str, topic: &str) -> Vec<TopicMessage> {
    use rdkafka::consumer::{BaseConsumer, Consumer as _};
    use rdkafka::message::Headers as _;
    use rdkafka::{ClientConfig, Message as _, Offset, TopicPartitionList};
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .set("group.id", "reader")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    let metadata = consumer
        .fetch_metadata(Some(topic), KAFKA_REQUEST_TIMEOUT)
        .unwrap();
    let mut assignment = TopicPartitionList::new();
    let mut remaining_messages = 0;
    for partition in metadata.topics()[0].partitions() {
        let watermarks = consumer.fetch_watermarks(topic, partition.id(), KAFKA_REQUEST_TIMEOUT);
        let (low, high) = watermarks.unwrap();
        remaining_messages += high - low;
        assignment
            .add_partition_offset(topic, partition.id(), Offset::Beginning)
            .unwrap();
    }
    consumer.assign(&assignment).unwrap();
    let mut messages = Vec::new();
    while remaining_messages > 0 {
        let message = consumer
            .poll(KAFKA_REQUEST_TIMEOUT)
            .expect("timed out waiting for a message of the topic")
            .unwrap();
        let headers = message.headers().into_iter().flat_map(|it| it.iter());
        messages.push(TopicMessage {
            key: text(message.key().unwrap_or_default()),
            headers: headers
                .map(|header| {
                    (
                        header.key.to_owned(),
                        text(header.value.unwrap_or_default()),
                    )
                })
                .collect(),
            payload: message.payload().unwrap_or_default().to_vec(),
        });
        remaining_messages -= 1;
    }
    messages
}
