//! One run of the chaos test in one deployment mode. A run consists of rounds. In each round, the
//! fleet sends messages while the test injects faults. Each round ends with a check.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::check::{self, Mismatch, ObservedState, TrackedClient};
use crate::clients::{FleetContext, SimulatedClient};
use crate::deployment::ChaosDeployment;
use crate::gate::FleetSendLimit;
use crate::plan::{self, DeploymentMode, Fault, ScheduledFault};
use crate::random::Random;

const MAX_CONCURRENT_FAULTS: usize = 2;
/// After the last fault and the last message of a round, the observed state must match the expected
/// state within this time.
const CONVERGENCE_TIMEOUT: Duration = Duration::from_mins(2);
/// The fleet must send all messages between two faults within this time.
const PROGRESS_TIMEOUT: Duration = Duration::from_mins(5);

/// Totals of the run, for the summary line.
#[derive(Debug, Default, Clone)]
pub struct Totals {
    pub rounds: u64,
    pub acknowledged_messages: u64,
    pub kills: u64,
    pub restarts: u64,
    pub service_restarts: u64,
    pub pauses: u64,
    pub dead_letters: usize,
    pub connected_clients: usize,
    pub longest_recovery: Duration,
}

/// The reason why a run failed, with all mismatches.
pub struct Failure {
    pub reason: String,
    pub mismatches: Vec<Mismatch>,
    /// The observed state that does not match the expected state. `None` if the run failed for
    /// another reason.
    pub observed: Option<ObservedState>,
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self {
            reason,
            mismatches: Vec::new(),
            observed: None,
        }
    }
}

/// A run in one deployment mode.
pub struct Run {
    pub mode: DeploymentMode,
    pub seed: u64,
    pub totals: Totals,
    pub tracked_clients: Vec<TrackedClient>,
    /// Descriptions of the faults of the current round, for the failure report.
    pub fault_log: Arc<Mutex<Vec<String>>>,
    clients: Vec<SimulatedClient>,
    deployment: Arc<ChaosDeployment>,
    context: Arc<FleetContext>,
}

impl Run {
    pub async fn start(mode: DeploymentMode, seed: u64, folder: &Path) -> Result<Self, String> {
        let profiles: Vec<_> = (0..plan::CLIENT_COUNT)
            .map(|client_index| plan::client_profile(seed, mode, client_index))
            .collect();
        let deployment = ChaosDeployment::start(mode, folder, &profiles).await?;
        let context = Arc::new(FleetContext {
            broker_address: deployment.broker_address.clone(),
            acknowledged_messages: AtomicU64::new(0),
        });
        let clients: Vec<_> = profiles
            .into_iter()
            .enumerate()
            .map(|(n, profile)| {
                let random = Random::new(seed, &[4, n as u64]);
                SimulatedClient::new(profile, context.clone(), random)
            })
            .collect();
        let tracked_clients = clients.iter().map(|client| TrackedClient {
            profile: client.profile.clone(),
            history: client.history.clone(),
        });
        Ok(Self {
            mode,
            seed,
            totals: Totals::default(),
            tracked_clients: tracked_clients.collect(),
            fault_log: Arc::default(),
            clients,
            deployment: Arc::new(deployment),
            context,
        })
    }

    /// Runs at least one round. Runs more rounds until the deadline has passed and at least
    /// `min_kills` processes were killed.
    pub async fn run_rounds(&mut self, deadline: Instant, min_kills: u64) -> Result<(), Failure> {
        let start = Instant::now();
        for round in 0.. {
            let outcome = self.run_round(round).await;
            self.totals.acknowledged_messages =
                self.context.acknowledged_messages.load(Ordering::Relaxed);
            outcome?;
            self.totals.rounds += 1;
            if Instant::now() >= deadline && self.totals.kills >= min_kills {
                break;
            }
            println!("{}, {} s so far", self.summary(), start.elapsed().as_secs());
        }
        Ok(())
    }

    async fn run_round(&mut self, round: u64) -> Result<(), Failure> {
        let gate = Arc::new(FleetSendLimit::new());
        let (end_round, round_over) = watch::channel(false);
        let mut client_tasks = JoinSet::new();
        let mut total_messages = 0;
        for (n, mut client) in self.clients.drain(..).enumerate() {
            let steps = plan::client_steps(self.seed, round, n, &client.profile);
            total_messages += steps
                .iter()
                .map(|step| step.action.message_count())
                .sum::<u64>();
            let (gate, round_over) = (gate.clone(), round_over.clone());
            client_tasks.spawn(async move {
                client.run_round(steps, &gate, round_over).await;
                client
            });
        }
        self.fault_log.lock().clear();
        let schedule = plan::fault_schedule(self.seed, round, self.mode, total_messages);
        tokio::select! {
            result = self.inject_faults(schedule, &gate, total_messages) => result?,
            // A client task returns only after the end of the round. A task that ends earlier has
            // panicked.
            Some(ended) = client_tasks.join_next() => {
                let error = ended.err().map_or(String::new(), |error| error.to_string());
                return Err(format!("a simulated client ended early: {error}").into());
            }
        }
        let result = self.check_observed_state().await;
        end_round.send_replace(true);
        while let Some(client) = client_tasks.join_next().await {
            let client = client.map_err(|error| format!("a simulated client failed: {error}"))?;
            self.clients.push(client);
        }
        self.clients
            .sort_by(|a, b| a.profile.client_id.cmp(&b.profile.client_id));
        result
    }

    /// Injects each fault at its scheduled time. The gate limits how many messages the fleet can
    /// send before the next fault is injected.
    async fn inject_faults(
        &mut self,
        schedule: Vec<ScheduledFault>,
        gate: &FleetSendLimit,
        total_messages: u64,
    ) -> Result<(), String> {
        let messages_ahead_of_fault = total_messages / schedule.len() as u64;
        let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_FAULTS));
        let mut faults: JoinSet<Result<Duration, String>> = JoinSet::new();
        for scheduled in schedule {
            let permit = permits.clone().acquire_owned().await;
            let permit = permit.expect("the semaphore is never closed");
            gate.raise_limit(scheduled.acknowledged_messages_before + messages_ahead_of_fault);
            wait_for_messages(gate, scheduled.acknowledged_messages_before).await?;
            tokio::time::sleep(scheduled.delay).await;
            self.count_fault(scheduled.fault);
            let (deployment, fault_log) = (self.deployment.clone(), self.fault_log.clone());
            faults.spawn(async move {
                let _permit = permit;
                let start = Timestamp::now();
                let result = deployment.inject(scheduled.fault).await;
                let ScheduledFault {
                    acknowledged_messages_before,
                    fault,
                    ..
                } = scheduled;
                let description = format!("{start:.3} to {:.3} {fault:?}", Timestamp::now());
                let line = format!("{description}, after {acknowledged_messages_before} messages");
                fault_log.lock().push(line);
                result.map_err(|error| format!("{error} ({description})"))
            });
            while let Some(result) = faults.try_join_next() {
                self.update_longest_recovery(result.map_err(|error| error.to_string())??);
            }
        }
        gate.raise_limit(u64::MAX);
        wait_for_messages(gate, total_messages).await?;
        while let Some(result) = faults.join_next().await {
            self.update_longest_recovery(result.map_err(|error| error.to_string())??);
        }
        Ok(())
    }

    fn count_fault(&mut self, fault: Fault) {
        match fault {
            Fault::Kill { .. } => self.totals.kills += 1,
            Fault::Pause { .. } => self.totals.pauses += 1,
            Fault::Restart { .. } => self.totals.restarts += 1,
            Fault::RestartService { .. } => self.totals.service_restarts += 1,
        }
    }

    fn update_longest_recovery(&mut self, duration: Duration) {
        self.totals.longest_recovery = self.totals.longest_recovery.max(duration);
    }

    /// Waits until the observed state matches the expected state. Then checks that the observed
    /// state stays correct for `ChaosDeployment::stable_duration`.
    async fn check_observed_state(&mut self) -> Result<(), Failure> {
        self.deployment
            .wait_until_ready(CONVERGENCE_TIMEOUT)
            .await?;
        let deadline = Instant::now() + CONVERGENCE_TIMEOUT;
        let mut correct_since = None;
        loop {
            let is_late = Instant::now() > deadline;
            match ObservedState::read(&self.deployment).await {
                Ok(observed) => {
                    let mismatches = check::find_mismatches(&self.tracked_clients, &observed);
                    let was_correct = correct_since.is_some();
                    if mismatches.is_empty() {
                        self.totals.connected_clients = observed.rows.len();
                        self.totals.dead_letters =
                            observed.dead_letters.values().map(BTreeSet::len).sum();
                        let since = *correct_since.get_or_insert_with(Instant::now);
                        if since.elapsed() >= self.deployment.stable_duration() {
                            break;
                        }
                    } else if is_late || was_correct {
                        return Err(mismatch_failure(was_correct, mismatches, observed));
                    }
                }
                // A request may time out on a busy machine. Therefore the check retries after an
                // error until the deadline.
                Err(error) if is_late => return Err(error.into()),
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(self
            .deployment
            .wait_until_ready(CONVERGENCE_TIMEOUT)
            .await?)
    }

    pub fn copy_service_logs(&self) {
        self.deployment.copy_service_logs();
    }

    /// Returns the totals so far, in one line.
    pub fn summary(&self) -> String {
        let Totals {
            rounds,
            acknowledged_messages,
            kills,
            restarts,
            service_restarts,
            pauses,
            dead_letters,
            connected_clients,
            longest_recovery,
        } = &self.totals;
        format!(
            "chaos {}: seed {}: {} clients ({connected_clients} connected), \
             {acknowledged_messages} messages acknowledged, {dead_letters} dead letters, \
             {kills} kills, {pauses} pauses, {restarts} restarts, \
             {service_restarts} service restarts, {rounds} rounds, \
             longest recovery {:.1} s",
            self.mode.as_str(),
            self.seed,
            plan::CLIENT_COUNT,
            longest_recovery.as_secs_f64(),
        )
    }
}

fn mismatch_failure(
    was_correct: bool,
    mismatches: Vec<Mismatch>,
    observed: ObservedState,
) -> Failure {
    let reason = if was_correct {
        "the observed state was correct, and then changed"
    } else {
        "the observed state differs from the expected state"
    };
    Failure {
        reason: reason.to_owned(),
        mismatches,
        observed: Some(observed),
    }
}

async fn wait_for_messages(gate: &FleetSendLimit, message_count: u64) -> Result<(), String> {
    match tokio::time::timeout(PROGRESS_TIMEOUT, gate.wait_until_finished(message_count)).await {
        Ok(()) => Ok(()),
        Err(_) => Err(format!(
            "timed out waiting for {message_count} acknowledged messages"
        )),
    }
}
