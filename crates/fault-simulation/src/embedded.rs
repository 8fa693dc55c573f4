//! A schedule of the embedded deployment: one process with broker, recorder, jobs and replay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::check::check_tenant;
use crate::clients::SimulatedClient;
use crate::connector::ConnectorContext;
use crate::database::{ClientRow, Database};
use crate::embedded_broker::EmbeddedBroker;
use crate::embedded_clients::{ClientState, CurrentBroker, EmbeddedClient};
use crate::gateway::GatewayState;
use crate::messages::{Content, Online, Publication, topic_scheme};
use crate::options::Plant;
use crate::plan::{Fault, Plan};
use crate::process::{self, Process, ProcessFault, ProcessHandle, ProcessPlan};
use crate::store_faults::{DatabaseFaults, KnownClients, StoreContext};
use crate::world::World;
use broker::PendingWrite;
use domain::{ClientId, OfflineReason};
use pipeline::ingest::embedded_broker::RecorderSink;
use pipeline::record;
use service::TaskGroup;
use store::DeadLetterRepository as _;

/// Time after a start in which clients can reconnect before they are recorded as disconnected.
const RECONNECT_GRACE: Duration = Duration::from_secs(30);
/// Time after the end of the faults in which all messages must be acknowledged.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(5);
/// Time in which the startup sweep ends, replays finish, and the jobs look up every client as often
/// as possible: the claims of a crashed job end after 15 minutes.
const CALM_TIME: Duration = Duration::from_mins(21);
/// SQLite allows one writer.
const WRITERS: usize = 1;

/// The components of a schedule.
struct Deployment {
    world: Arc<World>,
    database: Arc<Database>,
    connector: Arc<ConnectorContext>,
    faults: Arc<DatabaseFaults>,
    broker: CurrentBroker,
    clients: BTreeMap<String, Arc<Mutex<ClientState>>>,
}

/// Runs the schedule of a plan.
pub async fn run(world: &Arc<World>, database: &Arc<Database>, plan: Plan, plant: Option<Plant>) {
    let mut deployment = Deployment::new(world, database, plan, plant);
    let process = deployment.start_process();
    let mut clients = deployment.start_clients();
    let plan = &deployment.connector.plan;
    let faults_end = Instant::now() + plan.fault_duration;
    for (time, fault) in &plan.faults {
        sleep_until(faults_end - plan.fault_duration + *time).await;
        deployment.inject(*fault, &process);
    }
    sleep_until(faults_end).await;
    world.heal();
    deployment.faults.heal();
    deployment.connector.gateway.heal();
    if deployment.wait_until_settled().await {
        deployment.replay_rejected_messages();
        sleep(CALM_TIME).await;
        deployment.check();
    }
    clients.abort_all();
}

impl Deployment {
    fn new(world: &Arc<World>, database: &Arc<Database>, plan: Plan, plant: Option<Plant>) -> Self {
        let faults = Arc::new(DatabaseFaults::default());
        faults.reject_clients(plan.rejected_clients.clone());
        let store = Arc::new(StoreContext {
            world: world.clone(),
            database: database.clone(),
            faults: faults.clone(),
            plant,
            is_remote: false,
            clients_with_tenant: plan.clients_with_tenant(),
            known_clients: KnownClients::default(),
            fenced_batches: AtomicU64::new(0),
        });
        Self {
            world: world.clone(),
            database: database.clone(),
            connector: Arc::new(ConnectorContext {
                gateway: GatewayState::new(world, plan.tenants()),
                plan,
                store,
            }),
            faults,
            broker: CurrentBroker::default(),
            clients: BTreeMap::new(),
        }
    }

    fn start_process(&self) -> ProcessHandle {
        let plan = &self.connector.plan;
        let process_plan = ProcessPlan {
            crash_percent: plan.crash_percent,
            pause_percent: plan.pause_percent,
            max_points_before_fault: plan.max_points_before_fault,
            // The clock of the host is set to another time while the process is down.
            clock_skews: plan.clock_skews.clone(),
        };
        let (connector, broker) = (self.connector.clone(), self.broker.clone());
        let start_tasks =
            move |process: &Arc<Process>, group: &TaskGroup, tasks: &mut JoinSet<()>| {
                start_connector(&connector, &broker, process, group, tasks);
            };
        process::spawn(
            &self.world,
            "connector",
            process_plan,
            Arc::new(start_tasks),
        )
    }

    fn start_clients(&mut self) -> JoinSet<()> {
        let mut clients = JoinSet::new();
        let plan = &self.connector.plan;
        for client in &plan.clients {
            let client_id = client.factory.client_id.clone();
            let state = Arc::new(Mutex::new(ClientState::default()));
            let is_rejected = plan.rejected_clients.contains(&client_id);
            let (world, database) = (self.world.clone(), self.database.clone());
            let client = EmbeddedClient {
                world: self.world.clone(),
                plan: client.clone(),
                messages: SimulatedClient::new(&self.world, client.clone()),
                broker: self.broker.clone(),
                state: state.clone(),
                check: Arc::new(move |publication, state| {
                    check_acknowledged(&world, &database, publication, state, is_rejected);
                }),
                always_returns: is_rejected,
            };
            clients.spawn(client.run());
            self.clients.insert(client_id, state);
        }
        clients
    }

    fn inject(&self, fault: Fault, process: &ProcessHandle) {
        self.world.trace(None, format!("fault: {fault:?}"));
        match fault {
            Fault::Crash(..) | Fault::IsolateIngest { .. } => process.inject(ProcessFault::Crash),
            Fault::Restart(..) => process.inject(ProcessFault::Restart),
            Fault::Pause(_, _, duration) | Fault::StallKafka(duration) => {
                process.inject(ProcessFault::Pause(duration));
            }
            Fault::DatabaseOutage(kind, duration) => self.faults.start_outage(kind, duration),
            Fault::DatabaseErrors { percent, duration } => {
                self.faults.start_errors(&self.world, percent, duration);
            }
            Fault::GatewayOutage(outage, duration) => {
                self.connector.gateway.start_outage(outage, duration);
            }
            Fault::Rebalance { .. } | Fault::CloseIngestConnection => {}
        }
    }

    /// Waits until no client has an unacknowledged message. Returns false if that takes too long.
    async fn wait_until_settled(&self) -> bool {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let mut changes = self.world.changes();
            let mut unsettled = self.clients.iter();
            let Some((client_id, _)) = unsettled.find(|(_, state)| !state.lock().is_settled) else {
                return true;
            };
            if timeout_at(deadline, changes.changed()).await.is_err() {
                let text = format!(
                    "the messages are not acknowledged {SETTLE_TIMEOUT:?} after the end of the \
                     faults"
                );
                self.world.report_violation(Some(client_id), text);
                return false;
            }
        }
    }

    /// Removes the constraint, and requests the replay of the dead letters that it caused.
    fn replay_rejected_messages(&self) {
        self.faults.reject_clients(BTreeSet::new());
        let now = self.world.clock(0).now();
        for row in self.database.dead_letters() {
            if row.reason == "rejected_by_database" {
                let requested = self
                    .database
                    .call(move |store| async move { store.request_replay(row.id, now).await });
                if requested.is_err() {
                    self.world
                        .report_violation(Some(&row.client_id), "the replay cannot be requested");
                }
            }
        }
    }

    fn check(&self) {
        let mut rows: BTreeMap<String, Vec<ClientRow>> = BTreeMap::new();
        for row in self.database.clients() {
            rows.entry(row.client_id.clone()).or_default().push(row);
        }
        let mut dead_letters: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
        for row in self.database.dead_letters() {
            let of_client = dead_letters.entry(row.client_id).or_default();
            of_client.insert((row.topic, row.sha256));
        }
        let tenants = self.connector.plan.tenants();
        for (client_id, state) in &self.clients {
            let state = state.lock().clone();
            let client_rows = rows.remove(client_id).unwrap_or_default();
            let mut problems = compare_rows(&state, &client_rows);
            if let [row] = &client_rows[..] {
                problems.extend(check_tenant(tenants.get(client_id).copied(), row));
            }
            let stored = dead_letters.remove(client_id).unwrap_or_default();
            let mut unexpected = stored.difference(&state.dead_letters);
            if !state.dead_letters.is_subset(&stored)
                || unexpected.any(|stored| Some(stored) != state.pending_dead_letter.as_ref())
            {
                problems.push("wrong dead letters");
            }
            for problem in problems {
                let text = format!("{problem}; expected: {state:?}; database: {client_rows:?}");
                self.world.report_violation(Some(client_id), text);
            }
        }
    }
}

/// Starts the tasks of the process.
fn start_connector(
    connector: &Arc<ConnectorContext>,
    current_broker: &CurrentBroker,
    process: &Arc<Process>,
    group: &TaskGroup,
    tasks: &mut JoinSet<()>,
) {
    let recorder = connector.start_recorder(process, group, tasks, WRITERS);
    let sink = RecorderSink::new(recorder.clone(), topic_scheme());
    let broker = EmbeddedBroker::new(process, group, sink, connector.store.plant);
    *current_broker.lock() = Some(broker.clone());
    process.world.notify();
    connector.start_updaters(process, group, tasks);
    let store = Arc::new(connector.process_store(process));
    let end_if_not_connected = |broker: Arc<EmbeddedBroker>, reason: OfflineReason| {
        move |client: &ClientId| {
            let pending_write = broker.report_if_disconnected(client, reason);
            pending_write.map(PendingWrite::wait_until_durable)
        }
    };
    let replay = record::replay_dead_letters(
        store.clone(),
        recorder,
        topic_scheme(),
        end_if_not_connected(broker.clone(), OfflineReason::Will),
        group.clone(),
    );
    tasks.spawn(replay);
    let sweep = record::run_startup_sweep(
        store,
        RECONNECT_GRACE,
        end_if_not_connected(broker, OfflineReason::BrokerRestart),
        group.clone(),
    );
    let group = group.clone();
    tasks.spawn(async move {
        sweep.await;
        group.cancelled().await;
    });
}

/// Checks that a message is durable when the client receives its acknowledgement.
fn check_acknowledged(
    world: &World,
    database: &Database,
    publication: &Publication,
    state: &ClientState,
    is_rejected: bool,
) {
    let client_id = &publication.client_id;
    let rows = database.clients();
    let row = rows.iter().find(|row| row.client_id == *client_id);
    let has_dead_letter = || {
        let sha256 = publication.sha256();
        let mut dead_letters = database.dead_letters().into_iter();
        dead_letters.any(|row| row.client_id == *client_id && row.sha256 == sha256)
    };
    let is_durable = match &publication.content {
        Content::Online(_) if is_rejected => has_dead_letter(),
        Content::Online(online) => {
            row.is_some_and(|row| row.is_connected && has_content(row, online))
        }
        Content::Offline => row.is_none_or(|row| !row.is_connected),
        Content::Heartbeat => {
            let is_known = state.latest_online.is_some() && !is_rejected;
            !is_known || row.is_some_and(|row| row.is_connected)
        }
        Content::Invalid => has_dead_letter(),
        Content::ClearsRetained => true,
    };
    if !is_durable {
        let text = format!(
            "{} is acknowledged, but not durable: the database has {row:?}",
            publication.describe()
        );
        world.report_violation(Some(client_id), text);
    }
}

fn has_content(row: &ClientRow, online: &Online) -> bool {
    row.message_id == online.message_id && row.facts == online.facts()
}

/// Compares the rows of a client with its state.
fn compare_rows(state: &ClientState, rows: &[ClientRow]) -> Vec<&'static str> {
    let row = match rows {
        [] if state.latest_online.is_some() => return vec!["the client has no row"],
        [] => return Vec::new(),
        [row] => row,
        _ => return vec!["the client has several rows"],
    };
    let mut problems = Vec::new();
    let is_known = state.latest_online.is_some();
    if is_known && row.is_connected != state.is_connected {
        problems.push("the client is recorded as connected or disconnected by mistake");
    }
    if !is_known && row.is_connected {
        problems.push("the client is recorded as connected by mistake");
    }
    // Only a client that stays away has a message without an acknowledgement.
    let contents = [&state.latest_online, &state.pending_online];
    let mut contents = contents.into_iter().flatten();
    if !contents.any(|online| has_content(row, online)) {
        problems.push("the row has the content of another message");
    }
    problems
}
