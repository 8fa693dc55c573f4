//! A schedule of the distributed deployment.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::check::{CommitChecker, Expectation};
use crate::clients::SimulatedClient;
use crate::connector::{ConnectorContext, RETENTION, RecordContext};
use crate::database::Database;
use crate::gateway::GatewayState;
use crate::ingest::{self, IngestContext, Isolation, queue_topic};
use crate::kafka_cluster::{KafkaCluster, Record};
use crate::messages::{Received, topic_scheme};
use crate::mqtt_broker::MqttBroker;
use crate::options::Plant;
use crate::plan::{Fault, Plan, Target};
use crate::process::{self, ProcessFault, ProcessHandle, ProcessPlan};
use crate::store_faults::{DatabaseFaults, KnownClients, StoreContext};
use crate::world::World;
use domain::Timestamp;
use store::{DeadLetterRepository as _, QueueTopic};

/// Time after the end of the faults in which all messages must be recorded.
const DRAIN_TIMEOUT: Duration = Duration::from_mins(5);
/// Time after which the claims of crashed jobs have ended.
const CLAIM_TIME: Duration = Duration::from_mins(16);
/// Time in which the jobs look up every client as often as possible.
const LOOKUP_TIME: Duration = Duration::from_mins(5);
const INGEST_NAMES: [&str; 2] = ["ingest-1", "ingest-2"];
/// Longer than a schedule.
const FOREVER: Duration = Duration::from_hours(24);

/// The components of a schedule.
struct Deployment {
    world: Arc<World>,
    database: Arc<Database>,
    connector: Arc<ConnectorContext>,
    record: Arc<RecordContext>,
    ingest: Arc<IngestContext>,
    faults: Arc<DatabaseFaults>,
    ingest_processes: Vec<ProcessHandle>,
    record_processes: Vec<ProcessHandle>,
    updater_processes: Vec<ProcessHandle>,
}

/// Runs the schedule of a plan.
pub async fn run(world: &Arc<World>, database: &Arc<Database>, plan: Plan, plant: Option<Plant>) {
    let deployment = Deployment::start(world, database, plan, plant);
    let plan = &deployment.connector.plan;
    let mut clients = JoinSet::new();
    for client in &plan.clients {
        let broker = deployment.ingest.broker.clone();
        let client = SimulatedClient::new(world, client.clone());
        clients.spawn(client.run(move |publication| broker.publish(publication)));
    }
    let faults_end = Instant::now() + plan.fault_duration;
    for (time, fault) in &plan.faults {
        sleep_until(faults_end - plan.fault_duration + *time).await;
        deployment.inject(*fault);
    }
    sleep_until(faults_end).await;
    deployment.heal();
    while clients.join_next().await.is_some() {}
    if !deployment.drain().await {
        return;
    }
    deployment.replay_rejected_messages();
    if !deployment.drain().await {
        return;
    }
    deployment.run_jobs_after(CLAIM_TIME).await;
    deployment.check();
    if plan.checks_retention {
        deployment.run_jobs_after(RETENTION).await;
        deployment.check_retention();
    }
}

impl Deployment {
    fn start(
        world: &Arc<World>,
        database: &Arc<Database>,
        plan: Plan,
        plant: Option<Plant>,
    ) -> Self {
        let faults = Arc::new(DatabaseFaults::default());
        faults.reject_clients(plan.rejected_clients.clone());
        let store = Arc::new(StoreContext {
            world: world.clone(),
            database: database.clone(),
            faults: faults.clone(),
            plant,
            is_remote: true,
            clients_with_tenant: plan.clients_with_tenant(),
            known_clients: KnownClients::default(),
            fenced_batches: AtomicU64::new(0),
        });
        let topics = [
            (QueueTopic::Ingress, plan.ingress_partitions),
            (QueueTopic::Answers, plan.answers_partitions),
        ];
        let cluster = KafkaCluster::new(world, &topics);
        let ingest = Arc::new(IngestContext {
            broker: MqttBroker::new(world),
            cluster: cluster.clone(),
            store: store.clone(),
            lease: Mutex::default(),
            forwards_without_epoch: plan.allows_messages_without_stamp,
            isolations: Mutex::default(),
        });
        let checker = CommitChecker::new(world, database, plan.rejected_clients.clone());
        let connector = Arc::new(ConnectorContext {
            gateway: GatewayState::new(world, plan.tenants()),
            plan,
            store,
        });
        let record = Arc::new(RecordContext {
            connector: connector.clone(),
            cluster,
            checker,
        });
        let mut deployment = Self {
            world: world.clone(),
            database: database.clone(),
            connector,
            record,
            ingest,
            faults,
            ingest_processes: Vec::new(),
            record_processes: Vec::new(),
            updater_processes: Vec::new(),
        };
        deployment.start_processes();
        deployment
    }

    fn start_processes(&mut self) {
        let (world, connector) = (&self.world, &self.connector);
        let plan = &connector.plan;
        let mut skews = plan.clock_skews.iter().copied();
        let mut process_plan = || ProcessPlan {
            crash_percent: plan.crash_percent,
            pause_percent: plan.pause_percent,
            max_points_before_fault: plan.max_points_before_fault,
            clock_skews: vec![skews.next().unwrap_or(0)],
        };
        let ingest_processes = INGEST_NAMES.iter().zip(plan.ingest_clock_skews);
        for (name, skew) in ingest_processes.take(plan.ingest_processes) {
            let ingest = self.ingest.clone();
            let ingest_plan = ProcessPlan {
                crash_percent: plan.crash_percent,
                // A paused process can write its messages late.
                pause_percent: if plan.has_late_ingest {
                    plan.pause_percent
                } else {
                    0
                },
                max_points_before_fault: plan.max_points_before_fault,
                clock_skews: vec![skew],
            };
            let process = process::spawn(
                world,
                name,
                ingest_plan,
                Arc::new(move |process, group, tasks| {
                    ingest::start(&ingest, process, group, tasks);
                }),
            );
            self.ingest_processes.push(process);
        }
        let names = ["record-1", "record-2", "record-3"];
        for name in names.iter().take(plan.record_processes) {
            let record = self.record.clone();
            let process = process::spawn(
                world,
                name,
                process_plan(),
                Arc::new(move |process, group, tasks| record.start(process, group, tasks)),
            );
            self.record_processes.push(process);
        }
        let names = ["updaters-1", "updaters-2"];
        for name in names.iter().take(plan.updater_processes) {
            let connector = connector.clone();
            let process = process::spawn(
                world,
                name,
                process_plan(),
                Arc::new(move |process, group, tasks| {
                    connector.start_updaters(process, group, tasks);
                }),
            );
            self.updater_processes.push(process);
        }
    }

    fn inject(&self, fault: Fault) {
        self.world.trace(None, format!("fault: {fault:?}"));
        let process = |target, index: usize| match target {
            Target::Ingest => &self.ingest_processes[index],
            Target::Record => &self.record_processes[index],
            Target::Updaters => &self.updater_processes[index],
        };
        match fault {
            Fault::Crash(target, index) => process(target, index).inject(ProcessFault::Crash),
            Fault::Restart(target, index) => process(target, index).inject(ProcessFault::Restart),
            Fault::Pause(target, index, duration) => {
                process(target, index).inject(ProcessFault::Pause(duration));
            }
            Fault::Rebalance { is_ingress } => self.record.cluster.rebalance(if is_ingress {
                QueueTopic::Ingress
            } else {
                QueueTopic::Answers
            }),
            Fault::CloseIngestConnection => self.ingest.broker.disconnect_current(),
            Fault::IsolateIngest {
                process,
                kafka_only,
                all,
            } => {
                let from_broker_since = Instant::now() + kafka_only;
                let isolation = Isolation {
                    from_broker_since,
                    end: from_broker_since + all,
                };
                let name = INGEST_NAMES[process].to_owned();
                self.ingest.isolations.lock().insert(name, isolation);
                self.world.notify();
            }
            Fault::StallKafka(duration) => self.record.cluster.stall(duration),
            Fault::DatabaseOutage(kind, duration) => self.faults.start_outage(kind, duration),
            Fault::DatabaseErrors { percent, duration } => {
                self.faults.start_errors(&self.world, percent, duration);
            }
            Fault::GatewayOutage(outage, duration) => {
                self.connector.gateway.start_outage(outage, duration);
            }
        }
    }

    fn heal(&self) {
        self.world.heal();
        self.faults.heal();
        self.connector.gateway.heal();
        self.record.cluster.heal();
    }

    /// Waits until all messages are recorded and all offsets are committed. Returns false if that
    /// takes too long.
    async fn drain(&self) -> bool {
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        loop {
            let mut changes = self.world.changes();
            let (backlog, lag) = (self.ingest.broker.backlog(), self.record.cluster.lag());
            if backlog == 0 && lag == 0 {
                self.world.trace(None, "all messages are recorded");
                return true;
            }
            if timeout_at(deadline, changes.changed()).await.is_err() {
                let text = format!(
                    "{backlog} messages at the broker and {lag} messages in Kafka are not recorded \
                     {DRAIN_TIMEOUT:?} after the end of the faults"
                );
                self.world.report_violation(None, text);
                return false;
            }
        }
    }

    /// Removes the constraint, and replays the dead letters that it caused, as the command
    /// `dead-letters replay` does.
    fn replay_rejected_messages(&self) {
        self.faults.reject_clients(BTreeSet::new());
        for row in self.database.dead_letters() {
            if row.reason != "rejected_by_database" {
                continue;
            }
            let find = move |store: store_sqlite::SqliteStore| async move {
                store.find_dead_letter(row.id).await
            };
            let Ok(Some(dead_letter)) = self.database.call(find) else {
                continue;
            };
            let Some(received) = self.original_message(&row.client_id, dead_letter.last_received)
            else {
                let text = "the dead letter is not a message of the client";
                self.world.report_violation(Some(&row.client_id), text);
                continue;
            };
            let topic = queue_topic(&topic_scheme(), &received);
            self.record.cluster.append(topic, Record::new(received));
            let (id, occurrences) = (dead_letter.id, dead_letter.occurrences);
            let _ = self
                .database
                .call(move |store| async move { store.finish_replay(id, occurrences).await });
        }
    }

    /// Returns the message of a client as an operator replays it.
    fn original_message(&self, client_id: &str, received_at: Timestamp) -> Option<Received> {
        let cluster = &self.record.cluster;
        (0..cluster.partition_count(QueueTopic::Ingress))
            .flat_map(|partition| cluster.log(QueueTopic::Ingress, partition))
            .map(|record| record.received)
            .find(|received| received.publication.client_id == client_id)
            .map(|received| Received {
                is_operator_replay: true,
                received_at,
                stamp: None,
                ..received
            })
    }

    /// Runs the jobs after a time in which no job runs.
    async fn run_jobs_after(&self, pause: Duration) {
        for (index, process) in self.updater_processes.iter().enumerate() {
            let down_time = if index == 0 { pause } else { FOREVER };
            process.inject(ProcessFault::Down(down_time));
        }
        sleep(pause + LOOKUP_TIME).await;
    }

    fn check(&self) {
        let plan = &self.connector.plan;
        let expectation = Expectation::from_cluster(
            &self.record.cluster,
            &self.connector.store.known_clients.since(),
            plan,
        );
        expectation.check(&self.world, &self.database);
        expectation.check_clients(&self.world, &self.ingest.broker, plan);
    }

    /// Checks that the jobs have deleted all disconnected clients and all dead letters.
    fn check_retention(&self) {
        for row in self.database.clients() {
            if !row.is_connected {
                let text = "the retention time of the client has passed, but it still has a row";
                self.world.report_violation(Some(&row.client_id), text);
            }
        }
        for row in self.database.dead_letters() {
            let text = "the retention time of the dead letter has passed, but it is stored";
            self.world.report_violation(Some(&row.client_id), text);
        }
    }
}
