//! The readers of the Kafka topics, which pass messages to the recorder (role `record`).

use anyhow::Result;
use futures::FutureExt as _;
use uuid::Uuid;

use super::build_context::BuildContext;
use kafka::{Consumer, ConsumerHealthCheck, ConsumerProgress, GroupProgress};
use pipeline::ingest::kafka_reader::{IngressBarrier, KafkaReader};
use pipeline::record::{QueueTopic, Recorder};
use service::Health;

/// The reader of one Kafka topic.
pub(super) struct TopicReader {
    pub reader: KafkaReader,
    /// Name of the task that runs the reader.
    pub task_name: &'static str,
    /// Name of the reader in the response of `/readiness`.
    component: &'static str,
    health_check: ConsumerHealthCheck,
    /// How far the reader has processed its topic.
    pub progress: (QueueTopic, ConsumerProgress),
}

impl TopicReader {
    pub fn add_health_check(&self, health: &Health) {
        let health_check = self.health_check.clone();
        health.add_check(self.component, move || health_check.clone().run().boxed());
        let health_check = self.health_check.clone();
        // A member of the group that has no partitions takes over when another member stops.
        health.set_healthy_text(self.component, move || {
            if health_check.is_standby() {
                "standby"
            } else {
                "ok"
            }
        });
    }
}

/// Creates the readers of all topics.
pub(super) fn topic_readers(
    context: &BuildContext<'_>,
    recorder: &Recorder,
) -> Result<Vec<TopicReader>> {
    let kafka = &context.config.kafka;
    let partition_owner = format!("{}-{}", std::process::id(), Uuid::new_v4().simple());
    let new_reader = |queue, topic: &str, group: &str, report_lag: fn(i64)| -> Result<_> {
        let consumer = Consumer::new(kafka, topic, group, report_lag)?;
        let (task_name, component) = match queue {
            QueueTopic::Ingress => ("kafka_reader_ingress", "kafka_ingress"),
            QueueTopic::Answers => ("kafka_reader_answers", "kafka_answers"),
            QueueTopic::Slow => ("kafka_reader_slow", "kafka_slow"),
        };
        let health_check = consumer.health_check();
        let progress = (queue, consumer.progress());
        let mut reader = KafkaReader::new(
            queue,
            consumer,
            recorder.clone(),
            context.topics.clone(),
            partition_owner.clone(),
        );
        if queue == QueueTopic::Slow {
            let ingress = GroupProgress::new(kafka, &kafka.ingress_topic, &kafka.group)?;
            reader = reader.with_ingress_barrier(IngressBarrier::new(ingress));
        }
        Ok(TopicReader {
            reader,
            task_name,
            component,
            health_check,
            progress,
        })
    };
    Ok(vec![
        new_reader(
            QueueTopic::Ingress,
            &kafka.ingress_topic,
            &kafka.group,
            |messages| kafka::metrics::set_consumer_lag(QueueTopic::Ingress.as_str(), messages),
        )?,
        new_reader(
            QueueTopic::Answers,
            &kafka.answers_topic,
            &kafka.answers_group,
            |messages| kafka::metrics::set_consumer_lag(QueueTopic::Answers.as_str(), messages),
        )?,
        new_reader(
            QueueTopic::Slow,
            &kafka.slow_topic,
            &kafka.slow_group,
            |messages| kafka::metrics::set_consumer_lag(QueueTopic::Slow.as_str(), messages),
        )?,
    ])
}
