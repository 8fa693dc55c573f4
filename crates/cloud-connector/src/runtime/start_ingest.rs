//! Starts the components that receive messages from clients: the embedded broker, the connection to
//! an external broker, and the Kafka consumers.

use std::sync::Arc;

use anyhow::Result;
use futures::FutureExt as _;
use futures::future::Ready;
use uuid::Uuid;

use super::{App, Role};
use crate::config::Config;
use broker::{Broker, Listeners, MessageSink, PendingWrite};
use delivery::{PendingResponses, ResponseMatchingSink};
use domain::Clock;
use kafka::{self, Consumer, Producer};
use mqtt::{ConnectOptions, SessionKind};
use pipeline::ingest::ForwardDestination;
use pipeline::ingest::embedded_broker::RecorderSink;
use pipeline::ingest::external_broker::{self, ExternalIngest};
use pipeline::ingest::kafka_reader::KafkaReader;
use pipeline::record::{self, QueueTopic, Recorder};
use protocol::TopicScheme;
use service::health::Component;

impl App {
    pub(super) fn start_ingest(
        &mut self,
        config: &Config,
        listeners: Listeners,
        topics: &TopicScheme,
        responses: &PendingResponses,
        clock: &Arc<dyn Clock>,
    ) -> Result<()> {
        if config.mqtt.url.is_none() {
            if let Some(recorder) = self.recorder.clone() {
                let sink = RecorderSink::new(recorder.clone(), topics.clone());
                let sink = ResponseMatchingSink::new(sink, responses.clone());
                self.start_embedded_broker(config, listeners, topics, clock, sink, recorder);
            }
            return Ok(());
        }
        if self.has_role(Role::Ingest) {
            self.start_external_ingest(config, topics, clock)?;
        }
        if config.kafka.brokers.is_some()
            && let Some(recorder) = self.recorder.clone()
        {
            self.start_kafka_readers(config, topics, &recorder)?;
        }
        Ok(())
    }

    fn start_embedded_broker(
        &mut self,
        config: &Config,
        listeners: Listeners,
        topics: &TopicScheme,
        clock: &Arc<dyn Clock>,
        sink: impl MessageSink,
        recorder: Recorder,
    ) {
        let broker = Arc::new(Broker::start(
            config.broker.clone(),
            topics.clone(),
            listeners,
            Arc::new(sink),
            clock.clone(),
        ));
        let checked_broker = broker.clone();
        self.health.add_check(Component::EmbeddedBroker, move || {
            let health = checked_broker.health();
            async move { health }.boxed()
        });
        let replay_broker = broker.clone();
        self.ingest_tasks.spawn(record::replay_dead_letters(
            self.store.clone(),
            recorder,
            topics.clone(),
            move |client| {
                replay_broker
                    .report_if_disconnected(client)
                    .map(PendingWrite::wait_until_durable)
            },
            self.ingest_tasks.clone(),
        ));
        let sweep_broker = broker.clone();
        self.ingest_tasks.spawn(record::run_startup_sweep(
            self.store.clone(),
            config.broker.reconnect_grace.get(),
            move |client| {
                sweep_broker
                    .report_if_disconnected(client)
                    .map(PendingWrite::wait_until_durable)
            },
            self.ingest_tasks.clone(),
        ));
        self.broker = Some(broker);
    }

    fn start_external_ingest(
        &mut self,
        config: &Config,
        topics: &TopicScheme,
        clock: &Arc<dyn Clock>,
    ) -> Result<()> {
        let forward_destination = match (&config.kafka.brokers, &self.recorder) {
            (None, Some(recorder)) => {
                // This task is needed only without Kafka. With Kafka, the command `dead-letters
                // replay` produces the dead letters to Kafka.
                self.ingest_tasks.spawn(record::replay_dead_letters(
                    self.store.clone(),
                    recorder.clone(),
                    topics.clone(),
                    |_| None::<Ready<bool>>,
                    self.ingest_tasks.clone(),
                ));
                ForwardDestination::Recorder(recorder.clone())
            }
            _ => self.start_kafka_producer(config)?,
        };
        let mqtt = &config.mqtt;
        let deps = external_broker::IngestDeps {
            connect_options: ConnectOptions::from_config(
                mqtt,
                &mqtt.client_id,
                SessionKind::Persistent,
            ),
            topics: topics.clone(),
            shared_subscription_group: mqtt.shared_subscription_group.clone(),
            forward_destination,
            clock: clock.clone(),
            last_received_at: parking_lot::Mutex::default(),
        };
        let ingest = ExternalIngest::start(deps, &self.ingest_tasks)?;
        self.health.add_check(Component::MqttIngest, move || {
            let health = ingest.health();
            async move { health }.boxed()
        });
        Ok(())
    }

    fn start_kafka_producer(&mut self, config: &Config) -> Result<ForwardDestination> {
        let kafka = &config.kafka;
        let producer = Producer::new(kafka)?;
        let (checked_producer, topic) = (producer.clone(), kafka.ingress_topic.clone());
        self.health.add_check(Component::KafkaProducer, move || {
            let (checked_producer, topic) = (checked_producer.clone(), topic.clone());
            async move { checked_producer.check_topic(&topic).await }.boxed()
        });
        Ok(ForwardDestination::Kafka {
            producer,
            ingress_topic: kafka.ingress_topic.as_str().into(),
            answers_topic: kafka.answers_topic.as_str().into(),
        })
    }

    fn start_kafka_readers(
        &mut self,
        config: &Config,
        topics: &TopicScheme,
        recorder: &Recorder,
    ) -> Result<()> {
        let kafka = &config.kafka;
        let partition_owner = format!("{}-{}", std::process::id(), Uuid::new_v4().simple());
        let report_ingress_lag: fn(i64) =
            |messages| kafka::metrics::set_consumer_lag(QueueTopic::Ingress.as_str(), messages);
        let report_answers_lag: fn(i64) =
            |messages| kafka::metrics::set_consumer_lag(QueueTopic::Answers.as_str(), messages);
        for (queue, component, topic, group, report_lag) in [
            (
                QueueTopic::Ingress,
                Component::KafkaIngress,
                &kafka.ingress_topic,
                &kafka.group,
                report_ingress_lag,
            ),
            (
                QueueTopic::Answers,
                Component::KafkaAnswers,
                &kafka.answers_topic,
                &kafka.answers_group,
                report_answers_lag,
            ),
        ] {
            let consumer = Consumer::new(kafka, topic, group, report_lag)?;
            let health_check = consumer.health_check();
            self.health
                .add_check(component, move || health_check.clone().run().boxed());
            let reader = KafkaReader::new(
                queue,
                consumer,
                recorder.clone(),
                topics.clone(),
                partition_owner.clone(),
            );
            self.ingest_tasks
                .spawn(reader.run(self.ingest_tasks.clone()));
        }
        Ok(())
    }
}
