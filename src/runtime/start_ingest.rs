//! Where messages come from: the embedded broker, an outside one, the queue.

use std::sync::Arc;

use anyhow::Result;
use futures::FutureExt as _;
use futures::future::Ready;
use uuid::Uuid;

use super::{App, Role};
use crate::broker::{Broker, Listeners, MessageSink, Receipt};
use crate::config::Config;
use crate::delivery::{PendingResponses, ResponseTap};
use crate::domain::Clock;
use crate::ingest::NextStage;
use crate::ingest::embedded_broker::EmbeddedIntake;
use crate::ingest::external_broker::{self, ExternalIngest};
use crate::ingest::kafka_reader::KafkaReader;
use crate::kafka::{Consumer, Producer};
use crate::mqtt::{Options, Session};
use crate::protocol::TopicScheme;
use crate::record::{self, QueueTopic, Recorder};
use crate::telemetry::metrics;

impl App {
    pub(super) fn start_sources(
        &mut self,
        config: &Config,
        listeners: Listeners,
        topics: &TopicScheme,
        answers: &PendingResponses,
        clock: &Arc<dyn Clock>,
    ) -> Result<()> {
        if config.mqtt.url.is_none() {
            if let Some(recorder) = self.recorder.clone() {
                let intake = EmbeddedIntake::new(recorder.clone(), topics.clone());
                let intake = ResponseTap::new(intake, answers.clone());
                self.start_broker(config, listeners, topics, clock, intake, recorder);
            }
            return Ok(());
        }
        if self.has(Role::Ingest) {
            self.start_ingest(config, topics, clock)?;
        }
        if config.kafka.brokers.is_some()
            && let Some(recorder) = self.recorder.clone()
        {
            self.start_queue_readers(config, topics, &recorder)?;
        }
        Ok(())
    }

    fn start_broker(
        &mut self,
        config: &Config,
        listeners: Listeners,
        topics: &TopicScheme,
        clock: &Arc<dyn Clock>,
        intake: impl MessageSink,
        recorder: Recorder,
    ) {
        let broker = Arc::new(Broker::start(
            config.broker.clone(),
            topics.clone(),
            listeners,
            Arc::new(intake),
            clock.clone(),
        ));
        let watched = broker.clone();
        self.health.add("broker", move || {
            let standing = watched.standing();
            async move { standing }.boxed()
        });
        let linked = broker.clone();
        self.sources.spawn(record::replay_dead_letters(
            self.store.clone(),
            recorder,
            topics.clone(),
            move |client| linked.end_if_not_connected(client).map(Receipt::durable),
            self.sources.clone(),
        ));
        let linked = broker.clone();
        self.sources.spawn(record::startup_sweep(
            self.store.clone(),
            config.broker.reconnect_grace.get(),
            move |client| linked.end_if_not_connected(client).map(Receipt::durable),
            self.sources.clone(),
        ));
        self.broker = Some(broker);
    }

    fn start_ingest(
        &mut self,
        config: &Config,
        topics: &TopicScheme,
        clock: &Arc<dyn Clock>,
    ) -> Result<()> {
        let destination = match (&config.kafka.brokers, &self.recorder) {
            (None, Some(recorder)) => {
                // With a queue, whoever asks for a replay puts the message there.
                self.sources.spawn(record::replay_dead_letters(
                    self.store.clone(),
                    recorder.clone(),
                    topics.clone(),
                    |_| None::<Ready<bool>>,
                    self.sources.clone(),
                ));
                NextStage::Recorder(recorder.clone())
            }
            _ => self.queue(config)?,
        };
        let mqtt = &config.mqtt;
        let parts = external_broker::IngestDeps {
            options: Options::from_config(mqtt, &mqtt.client_id, Session::Persistent),
            topics: topics.clone(),
            shared_subscription_group: mqtt.shared_subscription_group.clone(),
            destination,
            clock: clock.clone(),
            last: parking_lot::Mutex::default(),
        };
        let ingest = ExternalIngest::start(parts, &self.sources)?;
        self.health.add("mqtt_ingest", move || {
            let standing = ingest.standing();
            async move { standing }.boxed()
        });
        Ok(())
    }

    fn queue(&mut self, config: &Config) -> Result<NextStage> {
        let kafka = &config.kafka;
        let producer = Producer::new(kafka)?;
        let (watched, topic) = (producer.clone(), kafka.ingress_topic.clone());
        self.health.add("kafka", move || {
            let (watched, topic) = (watched.clone(), topic.clone());
            async move { watched.check(&topic).await }.boxed()
        });
        Ok(NextStage::Kafka {
            producer,
            ingress: kafka.ingress_topic.as_str().into(),
            answers: kafka.answers_topic.as_str().into(),
        })
    }

    fn start_queue_readers(
        &mut self,
        config: &Config,
        topics: &TopicScheme,
        recorder: &Recorder,
    ) -> Result<()> {
        let kafka = &config.kafka;
        let owner = format!("{}-{}", std::process::id(), Uuid::new_v4().simple());
        let presence: fn(i64) = |lag| metrics::lag(QueueTopic::Ingress.as_str(), lag);
        let answers: fn(i64) = |lag| metrics::lag(QueueTopic::Answers.as_str(), lag);
        for (queue, topic, group, lag) in [
            (
                QueueTopic::Ingress,
                &kafka.ingress_topic,
                &kafka.group,
                presence,
            ),
            (
                QueueTopic::Answers,
                &kafka.answers_topic,
                &kafka.answers_group,
                answers,
            ),
        ] {
            let consumer = Consumer::new(kafka, topic, group, lag)?;
            if queue == QueueTopic::Ingress {
                let checker = consumer.checker();
                self.health
                    .add("kafka", move || checker.clone().check().boxed());
            }
            let reader = KafkaReader::new(
                queue,
                consumer,
                recorder.clone(),
                topics.clone(),
                owner.clone(),
            );
            self.sources.spawn(reader.run(self.sources.clone()));
        }
        Ok(())
    }
}
