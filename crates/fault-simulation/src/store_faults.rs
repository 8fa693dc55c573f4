//! Calls of a simulated process to the real SQLite store, through a network with delays and faults.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use crate::database::Database;
use crate::options::Plant;
use crate::process::Process;
use crate::world::World;
use domain::ClientId;
use store::{PresenceBatch, Result, RowRejection, StoreError};
use store_sqlite::SqliteStore;

/// Time after which a process gives up a call to a database that does not respond.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// How the database behaves during an outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutageKind {
    /// Every call fails.
    Refuses,
    /// No call gets a response.
    Hangs,
}

/// The faults of the database that are active now.
#[derive(Default)]
pub struct DatabaseFaults {
    state: Mutex<FaultState>,
}

#[derive(Default)]
struct FaultState {
    outage: Option<(OutageKind, Instant)>,
    /// Probability, in percent, that a call fails.
    error_percent: u64,
    /// Clients whose online messages the database rejects.
    rejected_clients: BTreeSet<String>,
}

impl DatabaseFaults {
    pub fn start_outage(&self, kind: OutageKind, duration: Duration) {
        self.state.lock().outage = Some((kind, Instant::now() + duration));
    }

    /// Lets calls fail with a probability of `percent` for this time.
    pub fn start_errors(self: &Arc<Self>, world: &Arc<World>, percent: u64, duration: Duration) {
        self.state.lock().error_percent = percent;
        let (world, faults) = (world.clone(), self.clone());
        tokio::spawn(async move {
            sleep(duration).await;
            world.trace(None, "the errors of the database end");
            faults.state.lock().error_percent = 0;
        });
    }

    pub fn reject_clients(&self, clients: BTreeSet<String>) {
        self.state.lock().rejected_clients = clients;
    }

    /// Ends all faults, except that the database still rejects the same clients.
    pub fn heal(&self) {
        let mut state = self.state.lock();
        state.outage = None;
        state.error_percent = 0;
    }

    fn outage(&self) -> Option<(OutageKind, Instant)> {
        let outage = self.state.lock().outage;
        outage.filter(|(_, end)| Instant::now() < *end)
    }
}

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallFault {
    None,
    /// The request is lost.
    NotExecuted,
    /// The response is lost, so the caller does not know that the call was executed.
    ResponseLost,
    /// The caller receives an error, and the call is executed later.
    ExecutedLate,
}

/// What is common to the stores of all processes.
pub struct StoreContext {
    pub world: Arc<World>,
    pub database: Arc<Database>,
    pub faults: Arc<DatabaseFaults>,
    pub plant: Option<Plant>,
    /// Whether the database is another process, so that a request can outlive its process.
    pub is_remote: bool,
    /// Clients that the gateway finds at any time.
    pub clients_with_tenant: BTreeSet<String>,
    pub known_clients: KnownClients,
    /// Number of batches that were fenced in the running call.
    pub fenced_batches: AtomicU64,
}

/// The time since which the database has a row of each client.
#[derive(Default)]
pub struct KnownClients {
    since: Mutex<BTreeMap<String, Duration>>,
    /// Clients of the transaction that was committed last. The thread of the database has no virtual
    /// time.
    committed: Mutex<Vec<String>>,
}

impl KnownClients {
    pub fn add_committed(&self, batch: &PresenceBatch) {
        let clients = batch.upserts.iter().map(|row| row.client_id.to_string());
        self.committed.lock().extend(clients);
    }

    fn set_time(&self, now: Duration) {
        let mut since = self.since.lock();
        for client in self.committed.lock().drain(..) {
            since.entry(client).or_insert(now);
        }
    }

    pub fn since(&self) -> BTreeMap<String, Duration> {
        self.since.lock().clone()
    }
}

/// The repositories of one simulated process.
#[derive(Clone)]
pub struct ProcessStore {
    pub context: Arc<StoreContext>,
    pub process: Arc<Process>,
}

impl ProcessStore {
    /// Sends a call to the database. The call reaches the database even if the process crashes in
    /// the meantime, or it is lost with the process.
    pub async fn call<T, F>(
        &self,
        name: &'static str,
        call: impl FnOnce(SqliteStore) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let fault = self.draw_fault();
        self.call_with_fault(name, fault, call).await
    }

    pub async fn call_with_fault<T, F>(
        &self,
        name: &'static str,
        fault: CallFault,
        call: impl FnOnce(SqliteStore) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.process.fault_point().await;
        let (sender, receiver) = oneshot::channel();
        let (context, process) = (self.context.clone(), self.process.clone());
        let world = &context.world;
        let (request_delay, response_delay) = (world.network_delay(), world.network_delay());
        let late_delay = world.millis(500..=10_000);
        let survives_crash = world.chance(50) && context.is_remote;
        // The request is not part of the process, so that it can outlive the process.
        tokio::spawn(async move {
            sleep(request_delay).await;
            if let Err(error) = context.wait_for_outage().await {
                let _ = sender.send(Err(error));
                return;
            }
            if process.is_dead() && !survives_crash {
                return;
            }
            context.count(&process, fault);
            let result = match fault {
                CallFault::None => context.execute(&process, name, call),
                CallFault::NotExecuted => Err(unavailable("the request was lost")),
                CallFault::ResponseLost => context
                    .execute(&process, name, call)
                    .and_then(|_| Err(unavailable("the response was lost"))),
                CallFault::ExecutedLate => {
                    let _ = sender.send(Err(unavailable("no response yet")));
                    sleep(late_delay).await;
                    let _ = context.execute(&process, name, call);
                    return;
                }
            };
            sleep(response_delay).await;
            let _ = sender.send(result);
        });
        let result = match receiver.await {
            Ok(result) => result,
            // The request was lost with the process.
            Err(_) => std::future::pending().await,
        };
        self.process.fault_point().await;
        result
    }

    fn draw_fault(&self) -> CallFault {
        let StoreContext { world, faults, .. } = &*self.context;
        let error_percent = faults.state.lock().error_percent;
        if error_percent == 0 || !world.chance(error_percent) {
            CallFault::None
        } else if world.chance(50) {
            CallFault::NotExecuted
        } else {
            CallFault::ResponseLost
        }
    }

    /// Like [`Self::draw_fault`], for a call that is one statement. Such a call can reach the database
    /// after the process has given it up. A transaction cannot: its rows are locked until it ends.
    pub fn draw_statement_fault(&self) -> CallFault {
        match self.draw_fault() {
            CallFault::NotExecuted if self.context.is_remote && self.context.world.chance(50) => {
                CallFault::ExecutedLate
            }
            fault => fault,
        }
    }
}

impl StoreContext {
    /// Waits while the database does not respond. Fails if the database is down.
    async fn wait_for_outage(&self) -> Result<()> {
        match self.faults.outage() {
            None => Ok(()),
            Some((OutageKind::Refuses, _)) => Err(unavailable("connection refused")),
            Some((OutageKind::Hangs, end)) => {
                let timeout = Instant::now() + CALL_TIMEOUT;
                sleep_until(end.min(timeout)).await;
                if self.faults.outage().is_some() {
                    return Err(unavailable("no response"));
                }
                Ok(())
            }
        }
    }

    fn execute<T, F>(
        &self,
        process: &Process,
        name: &'static str,
        call: impl FnOnce(SqliteStore) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let result = self.database.call(call);
        self.known_clients.set_time(self.world.elapsed());
        for _ in 0..self.fenced_batches.swap(0, Ordering::Relaxed) {
            self.world.count("fenced batches");
        }
        let outcome = match &result {
            Ok(_) => "ok".to_owned(),
            Err(error) => error.to_string(),
        };
        self.world
            .trace(None, format!("{} {name}: {outcome}", process.name));
        result
    }

    fn count(&self, process: &Process, fault: CallFault) {
        self.world.count("database calls");
        if process.is_dead() {
            self.world.count("database calls of crashed processes");
        }
        match fault {
            CallFault::None => {}
            CallFault::NotExecuted => self.world.count("lost requests to the database"),
            CallFault::ResponseLost => self.world.count("lost responses of the database"),
            CallFault::ExecutedLate => self.world.count("late requests to the database"),
        }
    }

    /// Reports a "not found" result for a client that the gateway finds at any time.
    pub fn check_not_found(&self, client: &ClientId) {
        let client = client.as_str();
        if self.clients_with_tenant.contains(client) {
            let text = "recorded as \"not found\", but the gateway never responded \"not found\"";
            self.world.report_violation(Some(client), text);
        }
    }

    /// Rejects a batch that contains a row of a rejected client, like a constraint.
    pub fn check_rows(&self, batch: &PresenceBatch) -> Result<()> {
        let rejected = &self.faults.state.lock().rejected_clients;
        let mut clients = batch.upserts.iter().map(|row| row.client_id.as_str());
        if clients.any(|client| rejected.contains(client)) {
            return Err(StoreError::RowRejected(RowRejection {
                reason: "constraint".to_owned(),
                error: "violated constraint".into(),
            }));
        }
        Ok(())
    }
}

fn unavailable(problem: &str) -> StoreError {
    StoreError::Unavailable(problem.into())
}
