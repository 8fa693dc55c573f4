//! One run of the chaos test in one deployment mode. A run consists of rounds. In each round, the
//! fleet sends messages while the test injects faults. Each round ends with a check.

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::check::{self, Mismatch, ObservedState, TrackedClient};
use crate::clients::{FleetContext, SimulatedClient};
use crate::deployment::ChaosDeployment;
use crate::event_check::EventCheck;
use crate::fault_steps::{delete_drained_topics, inject_and_recover};
use crate::faults::{Fault, FaultKind};
use crate::gate::FleetSendLimit;
use crate::options::Options;
use crate::plan::{self, Action, DeploymentMode};
use crate::random::Random;
use crate::schedule::{self, ScheduledFault};
use crate::totals::Totals;

const MAX_CONCURRENT_FAULTS: u32 = 2;
/// After the last fault and the last message of a round, the observed state must match the expected
/// state within this time.
pub const CONVERGENCE_TIMEOUT: Duration = Duration::from_mins(2);
/// The fleet must send all messages between two faults within this time.
pub const PROGRESS_TIMEOUT: Duration = Duration::from_mins(5);

/// Kind and recovery time of a fault.
type FaultResult = Result<(FaultKind, Duration), String>;
/// Faults that are being injected, or after which the connector is recovering.
type RunningFaults = JoinSet<FaultResult>;

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
    fault_kinds: BTreeSet<FaultKind>,
    pub totals: Totals,
    pub tracked_clients: Vec<TrackedClient>,
    /// Descriptions of the faults of the current round, for the failure report.
    pub fault_log: Arc<Mutex<Vec<String>>>,
    clients: Vec<SimulatedClient>,
    event_check: EventCheck,
    deployment: Arc<ChaosDeployment>,
    context: Arc<FleetContext>,
}

impl Run {
    pub async fn start(
        mode: DeploymentMode,
        options: &Options,
        folder: &Path,
    ) -> Result<Self, String> {
        let seed = options.seed;
        let profiles: Vec<_> = (0..plan::CLIENT_COUNT)
            .map(|client_index| plan::client_profile(seed, mode, client_index))
            .collect();
        let uses_data_disk = options.fault_kinds.contains(&FaultKind::DiskFull);
        let deployment = ChaosDeployment::start(mode, folder, &profiles, uses_data_disk).await?;
        let context = Arc::new(FleetContext {
            broker_address: deployment.broker_address.clone(),
            mode,
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
            event_check: EventCheck::start(&deployment, seed),
            mode,
            seed,
            fault_kinds: options.fault_kinds.clone(),
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
            if Instant::now() >= deadline && self.totals.count(FaultKind::Kill) >= min_kills {
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
        let (mut total_messages, mut large_responses) = (0, 0);
        let with_large_responses = self.fault_kinds.contains(&FaultKind::LargeResponse);
        for (n, mut client) in self.clients.drain(..).enumerate() {
            let profile = &client.profile;
            let steps = plan::client_steps(self.seed, round, n, profile, with_large_responses);
            large_responses += steps
                .iter()
                .filter(|step| step.action == Action::SendLargeResponse)
                .count() as u64;
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
        self.totals.add(FaultKind::LargeResponse, large_responses);
        let schedule = schedule::fault_schedule(
            self.seed,
            round,
            self.mode,
            &self.fault_kinds,
            total_messages,
        );
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
        let messages_ahead_of_fault = total_messages / schedule.len().max(1) as u64;
        let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_FAULTS as usize));
        let mut faults = RunningFaults::new();
        for scheduled in schedule {
            // The topics are deleted while there is no other fault.
            let recreates_topics = matches!(scheduled.fault, Fault::RecreateTopics { .. });
            let needed_permits = if recreates_topics {
                MAX_CONCURRENT_FAULTS
            } else {
                1
            };
            let permit = permits.clone().acquire_many_owned(needed_permits).await;
            let permit = permit.expect("the semaphore is never closed");
            let limit = scheduled.acknowledged_messages_before + messages_ahead_of_fault;
            gate.raise_limit(limit.min(total_messages));
            self.wait_for_messages(gate, scheduled.acknowledged_messages_before, &mut faults)
                .await?;
            tokio::time::sleep(scheduled.delay).await;
            if recreates_topics {
                delete_drained_topics(&self.deployment, gate).await?;
                gate.raise_limit(limit + messages_ahead_of_fault);
            }
            self.totals.add(scheduled.fault.kind(), 1);
            let (deployment, fault_log) = (self.deployment.clone(), self.fault_log.clone());
            faults.spawn(async move {
                let result = inject_and_recover(&deployment, scheduled, &fault_log, permit).await;
                result.map(|recovery| (scheduled.fault.kind(), recovery))
            });
        }
        gate.raise_limit(u64::MAX);
        self.wait_for_messages(gate, total_messages, &mut faults)
            .await?;
        while let Some(result) = faults.join_next().await {
            self.update_longest_recovery(result)?;
        }
        Ok(())
    }

    /// Waits until the broker has acknowledged the messages. Fails at once if a fault fails.
    async fn wait_for_messages(
        &mut self,
        gate: &FleetSendLimit,
        message_count: u64,
        faults: &mut RunningFaults,
    ) -> Result<(), String> {
        let mut wait = pin!(tokio::time::timeout(
            PROGRESS_TIMEOUT,
            gate.wait_until_finished(message_count)
        ));
        loop {
            tokio::select! {
                result = &mut wait => return result.map_err(|_| {
                    format!("timed out waiting for {message_count} acknowledged messages")
                }),
                Some(result) = faults.join_next() => self.update_longest_recovery(result)?,
            }
        }
    }

    fn update_longest_recovery(
        &mut self,
        result: Result<FaultResult, tokio::task::JoinError>,
    ) -> Result<(), String> {
        let (kind, recovery) = result.map_err(|error| error.to_string())??;
        self.totals.update_longest_recovery(kind, recovery);
        Ok(())
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
        self.deployment
            .wait_until_ready(CONVERGENCE_TIMEOUT)
            .await?;
        self.check_events().await
    }

    /// Waits until callers have received exactly the events that the clients have caused.
    async fn check_events(&mut self) -> Result<(), Failure> {
        let clients = &self.tracked_clients;
        let check = self
            .event_check
            .wait_until_correct(&self.deployment, clients);
        let mismatches = check.await?;
        self.totals.events = self.event_check.totals;
        if mismatches.is_empty() {
            return Ok(());
        }
        Err(Failure {
            reason: "the events differ from the messages of the clients".to_owned(),
            mismatches,
            observed: None,
        })
    }

    pub fn copy_service_logs(&self) {
        self.deployment.copy_service_logs();
    }

    /// Returns the totals so far, in one line.
    pub fn summary(&self) -> String {
        let Totals {
            rounds,
            acknowledged_messages,
            dead_letters,
            connected_clients,
            events,
            ..
        } = &self.totals;
        format!(
            "chaos {}: seed {}: {} clients ({connected_clients} connected), \
             {acknowledged_messages} messages acknowledged, {dead_letters} dead letters, \
             {events}, {rounds} rounds, faults: {}",
            self.mode.as_str(),
            self.seed,
            plan::CLIENT_COUNT,
            self.totals.fault_counts(),
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
