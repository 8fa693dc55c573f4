//! The real components of the simulated processes: recorder, Kafka readers and periodic jobs.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::check::CommitChecker;
use crate::gateway::{GatewayState, ProcessGateway};
use crate::kafka_cluster::KafkaCluster;
use crate::kafka_consumer::SimulatedConsumer;
use crate::messages::topic_scheme;
use crate::model::STALE_ONLINE_WINDOW;
use crate::plan::Plan;
use crate::process::Process;
use crate::store_faults::{ProcessStore, StoreContext};
use jobs::{LookupJobConfig, LookupJobRunner, PeriodicJobs};
use pipeline::ingest::kafka_reader::KafkaReader;
use pipeline::record::{
    DeadLetterLimits, HandshakeErrorSender, QueueTopic, Recorder, RecorderConfig, RecorderDeps,
};
use service::{ByteBudget, TaskGroup};
use tenant::{LookupClient, LookupLimits, MassLossDetector};

/// Number of "not found" results after which a client is no longer looked up.
pub const MAX_LOOKUP_ATTEMPTS: u32 = 4;
/// Time for which disconnected clients, dead letters and history entries are stored.
pub const RETENTION: Duration = Duration::from_hours(2);
const LOOKUP_RETRY_INTERVAL: Duration = Duration::from_secs(30);
const MESSAGE_BUDGET_BYTES: usize = 128 * 1024 * 1024;
const MAX_DEAD_LETTERS_PER_CLIENT: u32 = 20;
const MAX_HISTORY_PER_CLIENT: u32 = 20;

/// What the real components of all processes use.
pub struct ConnectorContext {
    pub plan: Plan,
    pub store: Arc<StoreContext>,
    pub gateway: Arc<GatewayState>,
}

/// What the role `record` uses in distributed mode.
pub struct RecordContext {
    pub connector: Arc<ConnectorContext>,
    pub cluster: Arc<KafkaCluster>,
    pub checker: Arc<CommitChecker>,
}

impl RecordContext {
    /// Starts the role `record` in distributed mode.
    pub fn start(&self, process: &Arc<Process>, group: &TaskGroup, tasks: &mut JoinSet<()>) {
        let writers = self.connector.plan.writers;
        let recorder = self
            .connector
            .start_recorder(process, group, tasks, writers);
        for topic in [QueueTopic::Ingress, QueueTopic::Answers] {
            let consumer = SimulatedConsumer::new(
                topic,
                self.cluster.clone(),
                self.checker.clone(),
                process.clone(),
                self.connector.store.plant,
            );
            let reader = KafkaReader::new(
                topic,
                consumer,
                recorder.clone(),
                topic_scheme(),
                process.name.clone(),
            );
            tasks.spawn(reader.run(group.clone()));
        }
    }
}

impl ConnectorContext {
    pub fn process_store(&self, process: &Arc<Process>) -> ProcessStore {
        ProcessStore {
            context: self.store.clone(),
            process: process.clone(),
        }
    }

    fn lookup_client(&self, process: &Arc<Process>) -> Arc<LookupClient> {
        let gateway = ProcessGateway {
            gateway: self.gateway.clone(),
            process: process.clone(),
            plant: self.store.plant,
        };
        // The cache uses the real time, so an entry lives as long as the process, or not at all.
        let cache_ttl = if self.plan.caches_tenants {
            Duration::from_hours(1)
        } else {
            Duration::ZERO
        };
        let limits = LookupLimits {
            max_concurrency: 4,
            request_timeout: Duration::from_secs(5),
            slow_threshold: Duration::from_secs(1),
            cache_ttl,
            negative_cache_ttl: Duration::ZERO,
            breaker_probe_interval: Duration::from_secs(5),
        };
        Arc::new(LookupClient::with_gateway(Box::new(gateway), limits))
    }

    /// Starts the writers of a recorder.
    pub fn start_recorder(
        &self,
        process: &Arc<Process>,
        group: &TaskGroup,
        tasks: &mut JoinSet<()>,
        writers: usize,
    ) -> Recorder {
        let (handshake_error_sender, mut handshake_errors) = HandshakeErrorSender::channel();
        let (recorder, writers) = Recorder::new(RecorderDeps {
            presence: Arc::new(self.process_store(process)),
            tenant_lookup: self.lookup_client(process),
            mass_loss_detector: MassLossDetector::new(false),
            inventory_reporter: None,
            source_registrar: None,
            handshake_error_sender,
            clock: process.clock.clone(),
            message_budget: ByteBudget::new(MESSAGE_BUDGET_BYTES),
            config: RecorderConfig {
                max_batch_size: self.plan.max_batch_size,
                tenant_lookup_timeout: Duration::from_secs(1),
                last_seen_interval: Duration::from_mins(5),
                stale_online_window: STALE_ONLINE_WINDOW,
                writers,
                dead_letter_limits: DeadLetterLimits {
                    max_dead_letters_per_client: MAX_DEAD_LETTERS_PER_CLIENT,
                },
            },
        });
        for writer in writers {
            tasks.spawn(writer.run(group.clone()));
        }
        let group = group.clone();
        tasks.spawn(async move {
            // Nothing publishes the handshake errors.
            while handshake_errors.recv().await.is_some() {}
            group.cancelled().await;
        });
        recorder
    }

    /// Starts the role `updaters`.
    pub fn start_updaters(
        &self,
        process: &Arc<Process>,
        group: &TaskGroup,
        tasks: &mut JoinSet<()>,
    ) {
        let store = Arc::new(self.process_store(process));
        let jobs = PeriodicJobs {
            maintenance: store.clone(),
            dead_letters: store.clone(),
            clients: store.clone(),
            event_retention: None,
            clock: process.clock.clone(),
            pause_between_runs: self.plan.job_interval,
            disconnected_retention: RETENTION,
            dead_letter_retention: RETENTION,
            max_dead_letters: 10_000,
            history_retention: RETENTION,
            max_history_per_client: MAX_HISTORY_PER_CLIENT,
            messages: None,
            lookup_job_runner: LookupJobRunner {
                lookup_queue: store,
                tenant_lookup: self.lookup_client(process),
                inventory: None,
                clock: process.clock.clone(),
                config: LookupJobConfig {
                    max_concurrency: 4,
                    lookup_timeout: Duration::from_secs(5),
                    inventory_refresh_after: Duration::from_hours(20),
                    lookup_retry_interval: LOOKUP_RETRY_INTERVAL,
                    max_attempts: MAX_LOOKUP_ATTEMPTS,
                },
            },
        };
        tasks.spawn(jobs.run(group.clone()));
    }
}
