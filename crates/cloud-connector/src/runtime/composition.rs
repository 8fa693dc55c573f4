//! Builds the components of a process, each from the settings and from components that were built
//! before it. Building does not run a component; the module `tasks` does.

use std::sync::Arc;

use anyhow::Result;

use super::background::{event_forwarder, periodic_jobs};
use super::build_context::BuildContext;
use super::dead_letter_replay::DeadLetterReplay;
use super::embedded_broker::EmbeddedBroker;
use super::http::HttpServers;
use super::kafka_readers::{TopicReader, topic_readers};
use super::liveness_sweep::{LivenessSweepParts, has_liveness_sweep, liveness_sweep};
use super::mqtt_ingest::MqttIngest;
use super::publishing::{HandshakeErrors, Publishing};
use super::recording::Recording;
use super::roles::Role;
use super::startup_resources::Listeners;
use api::Keys;
use broker::Broker;
use jobs::{EventForwarder, PeriodicJobs};
use service::Health;
use store::LivenessRepository;

/// The components of a process. A component is `None`, or a list is empty, if the roles and the
/// deployment mode do not need it.
pub(super) struct Components {
    pub recording: Option<Recording>,
    pub embedded_broker: Option<EmbeddedBroker>,
    pub mqtt_ingest: Option<MqttIngest>,
    pub topic_readers: Vec<TopicReader>,
    pub dead_letter_replay: Option<DeadLetterReplay>,
    pub publishing: Option<Publishing>,
    pub handshake_errors: Option<HandshakeErrors>,
    pub periodic_jobs: Option<PeriodicJobs>,
    pub event_forwarder: Option<EventForwarder>,
    pub liveness_sweep: Option<LivenessSweepParts>,
    /// Stores how far the topic readers have processed their topics, for the liveness sweep.
    pub recording_progress: Option<Arc<dyn LivenessRepository>>,
    pub http: HttpServers,
}

impl Components {
    /// Builds the components that the process needs for its roles.
    pub fn build(
        context: &BuildContext<'_>,
        listeners: Listeners,
        keys: Keys,
        health: &Health,
    ) -> Result<Self> {
        let uses_embedded_broker = context.config.mqtt.url.is_none();
        let uses_kafka = context.config.kafka.brokers.is_some();
        let (recording, handshake_errors) =
            build_if(context.has_role(Role::Record), || Recording::new(context))?.unzip();
        let recorder = recording.as_ref().map(|recording| &recording.recorder);
        let embedded_broker = match recorder {
            Some(recorder) if uses_embedded_broker => {
                Some(EmbeddedBroker::new(context, listeners.mqtt, recorder))
            }
            _ => None,
        };
        let broker = embedded_broker.as_ref().map(|embedded| &embedded.broker);
        let ingests_from_external_broker = context.has_role(Role::Ingest) && !uses_embedded_broker;
        let mqtt_ingest = build_if(ingests_from_external_broker, || {
            MqttIngest::new(context, recorder)
        })?;
        let topic_readers = match recorder {
            Some(recorder) if uses_kafka => topic_readers(context, recorder)?,
            _ => Vec::new(),
        };
        let dead_letter_replay = recorder
            .filter(|_| !uses_kafka)
            .map(|recorder| DeadLetterReplay::new(context, recorder, broker));
        let publishes = context.has_role(Role::Api) || context.has_role(Role::Record);
        let publishing = build_if(publishes, || Publishing::new(context, broker))?;
        let handshake_errors = handshake_errors
            .zip(publishing.as_ref())
            .map(|(errors, publishing)| HandshakeErrors::new(context, errors, publishing));
        let has_jobs = context.has_role(Role::Updaters);
        let periodic_jobs = build_if(has_jobs, || periodic_jobs(context))?;
        let forwards_events = has_jobs && context.config.forwards_events();
        let event_forwarder = build_if(forwards_events, || event_forwarder(context))?;
        let has_sweep = has_liveness_sweep(context.config);
        let liveness_sweep = build_if(has_jobs && has_sweep, || {
            let clock = context.clock.clone();
            liveness_sweep(context.config, context.repositories, clock, "")
        })?;
        let recording_progress =
            (has_sweep && !topic_readers.is_empty()).then(|| context.repositories.liveness.clone());
        let publishing_ref = publishing.as_ref();
        let http = HttpServers::new(
            context,
            listeners.http,
            publishing_ref,
            broker,
            keys,
            health,
        )?;
        Ok(Self {
            recording,
            embedded_broker,
            mqtt_ingest,
            topic_readers,
            dead_letter_replay,
            publishing,
            handshake_errors,
            periodic_jobs,
            event_forwarder,
            liveness_sweep,
            recording_progress,
            http,
        })
    }

    /// Returns the embedded broker. Returns `None` if the process uses an external broker.
    pub fn broker(&self) -> Option<Broker> {
        let embedded_broker = self.embedded_broker.as_ref()?;
        Some(embedded_broker.broker.clone())
    }

    /// Adds the health checks of all components.
    pub fn add_health_checks(&self, health: &Health) {
        if let Some(recording) = &self.recording {
            recording.add_health_checks(health);
        }
        if let Some(embedded_broker) = &self.embedded_broker {
            embedded_broker.add_health_check(health);
        }
        if let Some(mqtt_ingest) = &self.mqtt_ingest {
            mqtt_ingest.add_health_checks(health);
        }
        for topic_reader in &self.topic_readers {
            topic_reader.add_health_check(health);
        }
        if let Some(publishing) = &self.publishing {
            publishing.add_health_checks(health);
        }
    }
}

/// Builds a component if the process needs it.
fn build_if<T>(is_needed: bool, build: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
    is_needed.then(build).transpose()
}
