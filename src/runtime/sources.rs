//! Where messages come from: the embedded broker, an outside one, the queue.

use std::sync::Arc;

use anyhow::Result;
use futures::FutureExt as _;
use futures::future::Ready;
use uuid::Uuid;

use super::{Role, Running};
use crate::broker::{Broker, Intake, Listeners, Taken};
use crate::config::Config;
use crate::deliver::{Answers, Overheard};
use crate::domain::Clock;
use crate::ingest::Destination;
use crate::ingest::embedded::EmbeddedIntake;
use crate::ingest::outside::{self, OutsideIngest};
use crate::ingest::queue::QueueReader;
use crate::kafka::{Consumer, Producer};
use crate::mqtt::{Options, Session};
use crate::protocol::Topics;
use crate::record::{self, Queue, Recorder};
use crate::telemetry::metrics;

impl Running {
    pub(super) fn start_sources(
        &mut self,
        config: &Config,
        listeners: Listeners,
        topics: &Topics,
        answers: &Answers,
        clock: &Arc<dyn Clock>,
    ) -> Result<()> {
        if config.mqtt.url.is_none() {
            if let Some(recorder) = self.recorder.clone() {
                let intake = EmbeddedIntake::new(recorder.clone(), topics.clone());
                let intake = Overheard::new(intake, answers.clone());
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
        topics: &Topics,
        clock: &Arc<dyn Clock>,
        intake: impl Intake,
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
        self.sources.spawn(record::replay_letters(
            self.store.clone(),
            recorder,
            topics.clone(),
            move |client| linked.end_if_absent(client).map(Taken::durable),
            self.sources.clone(),
        ));
        let linked = broker.clone();
        self.sources.spawn(record::end_those_who_stay_away(
            self.store.clone(),
            config.broker.return_grace.get(),
            move |client| linked.end_if_absent(client).map(Taken::durable),
            self.sources.clone(),
        ));
        self.broker = Some(broker);
    }

    fn start_ingest(
        &mut self,
        config: &Config,
        topics: &Topics,
        clock: &Arc<dyn Clock>,
    ) -> Result<()> {
        let destination = match (&config.kafka.brokers, &self.recorder) {
            (None, Some(recorder)) => {
                // With a queue, whoever asks for a replay puts the message there.
                self.sources.spawn(record::replay_letters(
                    self.store.clone(),
                    recorder.clone(),
                    topics.clone(),
                    |_| None::<Ready<bool>>,
                    self.sources.clone(),
                ));
                Destination::Recorder(recorder.clone())
            }
            _ => self.queue(config)?,
        };
        let mqtt = &config.mqtt;
        let parts = outside::Parts {
            options: Options::from_config(mqtt, &mqtt.client_id, Session::Kept),
            topics: topics.clone(),
            shared_group: mqtt.shared_group.clone(),
            destination,
            clock: clock.clone(),
            last: parking_lot::Mutex::default(),
        };
        let ingest = OutsideIngest::start(parts, &self.sources)?;
        self.health.add("mqtt_ingest", move || {
            let standing = ingest.standing();
            async move { standing }.boxed()
        });
        Ok(())
    }

    fn queue(&mut self, config: &Config) -> Result<Destination> {
        let kafka = &config.kafka;
        let producer = Producer::new(kafka)?;
        let (watched, topic) = (producer.clone(), kafka.ingress_topic.clone());
        self.health.add("kafka", move || {
            let (watched, topic) = (watched.clone(), topic.clone());
            async move { watched.check(&topic).await }.boxed()
        });
        Ok(Destination::Queue {
            producer,
            ingress: kafka.ingress_topic.as_str().into(),
            answers: kafka.answers_topic.as_str().into(),
        })
    }

    fn start_queue_readers(
        &mut self,
        config: &Config,
        topics: &Topics,
        recorder: &Recorder,
    ) -> Result<()> {
        let kafka = &config.kafka;
        let owner = format!("{}-{}", std::process::id(), Uuid::new_v4().simple());
        let presence: fn(i64) = |lag| metrics::lag(Queue::Ingress.as_str(), lag);
        let answers: fn(i64) = |lag| metrics::lag(Queue::Answers.as_str(), lag);
        for (queue, topic, group, lag) in [
            (Queue::Ingress, &kafka.ingress_topic, &kafka.group, presence),
            (
                Queue::Answers,
                &kafka.answers_topic,
                &kafka.answers_group,
                answers,
            ),
        ] {
            let consumer = Consumer::new(kafka, topic, group, lag)?;
            if queue == Queue::Ingress {
                let checker = consumer.checker();
                self.health
                    .add("kafka", move || checker.clone().check().boxed());
            }
            let reader = QueueReader::new(
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
