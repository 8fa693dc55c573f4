//! The liveness sweep: finds connections whose client has been silent for a long time or since the broker was
//! restarted, and ends those whose client does not answer (docs/decisions/034-liveness-sweep.md).
//!
//! A *pass* reads all connections once, in chunks in the order of the client ids. The silent ones are pinged
//! in *rounds* (`round`). One process at a time sweeps: a pass has a lease. `guard` decides whether the
//! answers of a round are plausible.

mod guard;
mod probe;
mod round;
mod summary;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use domain::{ClientId, Timestamp, clock};
use service::{LogThrottle, TaskGroup};
use store::{
    IngestEpochRepository, LivenessRepository, MAINTENANCE_CHUNK_ROWS, StoreError, SweepState,
    WatchedConnection,
};

use crate::metrics;
use guard::{GUARD_WINDOW, Guard};
pub use probe::{LivenessProbe, ProbeMethod};
pub use summary::{SweepStop, SweepSummary};

/// Name of the lease of the sweep, among the leases of sessions at the broker.
const LEASE_NAME: &str = "liveness sweep";
const LEASE: Duration = Duration::from_secs(30);
const LEASE_RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum interval between two checks whether a pass is due.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(10);
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Pause between two chunks of connections, so that a pass needs a small share of the database.
const CHUNK_PAUSE: Duration = Duration::from_millis(20);
/// A time of a broker restart is regarded as known if it differs by at most this time. The broker publishes
/// its uptime only every few seconds.
const RESTART_TOLERANCE: Duration = Duration::from_secs(30);
/// Duration of the pings of a round. A longer duration means larger rounds.
const ROUND_SECONDS: u32 = 100;
/// Limits the memory of a round.
const MAX_ROUND_SIZE: usize = 20_000;

/// Times and limits of the sweep.
#[derive(Debug, Clone)]
pub struct SweepConfig {
    /// A client without a message for this time is silent. Zero turns the sweep off.
    pub silent_after: Duration,
    /// Time that a client has to answer a ping.
    pub ping_timeout: Duration,
    /// Maximum number of pings per second.
    pub pings_per_second: u32,
    /// Time after a restart of the broker during which clients reconnect.
    pub broker_restart_wait: Duration,
    /// The recorder may not store a message of a client that sent another one less than this time ago.
    pub last_seen_interval: Duration,
    /// Whether `ingest` has a lease while it is connected.
    pub ingest_has_lease: bool,
}

/// Options of a pass.
#[derive(Debug, Clone, Copy, Default)]
pub struct SweepOptions {
    /// Ends connections although the guard does not allow it.
    pub ignore_guard: bool,
    /// Maximum number of silent clients to ping. `None` pings all.
    pub max_clients: Option<u64>,
}

/// Finds silent connections, and ends those whose client does not answer.
pub struct LivenessSweep {
    liveness: Arc<dyn LivenessRepository>,
    leases: Arc<dyn IngestEpochRepository>,
    probe: Arc<dyn LivenessProbe>,
    config: SweepConfig,
    /// Name of this process in the lease.
    holder: String,
    guard: Mutex<Guard>,
    /// The last uptime of the broker, and whether an uptime was lower than the one before.
    uptime: Mutex<(Option<Duration>, bool)>,
}

/// When a connection is silent.
#[derive(Debug, Clone, Copy)]
struct Thresholds {
    now: Timestamp,
    /// A client that was last seen before this time has been silent for `silent_after`.
    silent_since: Timestamp,
    /// The latest restart of the broker, if clients have had the time to reconnect.
    restarted_at: Option<Timestamp>,
}

impl Thresholds {
    /// Clients that were last seen before this time are pinged.
    fn ping_before(&self) -> Timestamp {
        self.restarted_at
            .map_or(self.silent_since, |time| time.max(self.silent_since))
    }
}

impl LivenessSweep {
    /// Creates a sweep. `holder` is the name of this process in the lease.
    #[must_use]
    pub fn new(
        liveness: Arc<dyn LivenessRepository>,
        leases: Arc<dyn IngestEpochRepository>,
        probe: Arc<dyn LivenessProbe>,
        config: SweepConfig,
        holder: String,
    ) -> Self {
        Self {
            liveness,
            leases,
            probe,
            config,
            holder,
            guard: Mutex::default(),
            uptime: Mutex::default(),
        }
    }

    /// Runs a pass whenever one is due, until `tasks` is cancelled.
    pub async fn run(self, tasks: TaskGroup) {
        if self.config.silent_after.is_zero() {
            tasks.cancelled().await;
            return;
        }
        tokio::select! {
            () = self.run_due_passes() => {}
            () = tasks.cancelled() => self.release_lease().await,
        }
    }

    async fn run_due_passes(&self) {
        static LOG_THROTTLE: LogThrottle = LogThrottle::new();
        let mut next_attempt_at = Instant::now();
        loop {
            sleep(self.check_interval()).await;
            if Instant::now() < next_attempt_at {
                continue;
            }
            match self.run_if_due().await {
                Ok(Some(summary)) if summary.is_failure() => {
                    next_attempt_at = Instant::now() + self.pass_interval().min(GUARD_WINDOW);
                    let reason = summary.stop.explanation();
                    tracing::warn!(%summary, reason, "liveness sweep incomplete");
                }
                Ok(Some(summary)) if summary.silent > 0 => {
                    tracing::info!(%summary, "liveness sweep finished");
                }
                Ok(_) => {}
                Err(error) => {
                    if LOG_THROTTLE.should_log() {
                        tracing::warn!(%error, "liveness sweep failed; retrying");
                    }
                }
            }
        }
    }

    fn check_interval(&self) -> Duration {
        self.pass_interval()
            .min(self.config.broker_restart_wait / 2)
            .clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL)
    }

    /// Interval between two passes. A connection is therefore found at most a quarter of `silent_after`
    /// too late.
    fn pass_interval(&self) -> Duration {
        self.config.silent_after / 4
    }

    async fn run_if_due(&self) -> Result<Option<SweepSummary>, StoreError> {
        let state = self.liveness.sweep_state().await?;
        let thresholds = self.thresholds().await?;
        let pass_is_due = state.completed_at.is_none_or(|completed_at| {
            clock::saturating_sub(thresholds.now, self.pass_interval()) >= completed_at
        });
        let restart_is_due = thresholds.restarted_at.is_some_and(|restarted_at| {
            let noticed = self.uptime.lock().1;
            let is_new = state.swept_restart_at.is_none_or(|swept_at| {
                clock::saturating_sub(restarted_at, RESTART_TOLERANCE) > swept_at
            });
            noticed || is_new
        });
        if !pass_is_due && !restart_is_due {
            return Ok(None);
        }
        self.run_with_lease(thresholds, SweepOptions::default())
            .await
    }

    /// Runs a pass now. Returns `None` if another process sweeps at the moment.
    ///
    /// # Errors
    /// If the database is unavailable.
    pub async fn run_once(
        &self,
        options: SweepOptions,
    ) -> Result<Option<SweepSummary>, StoreError> {
        let thresholds = self.thresholds().await?;
        self.run_with_lease(thresholds, options).await
    }

    /// Returns the number of silent connections.
    ///
    /// # Errors
    /// If the database is unavailable.
    pub async fn count_silent(&self) -> Result<u64, StoreError> {
        let thresholds = self.thresholds().await?;
        let (mut count, mut after_client) = (0, None);
        loop {
            let mut summary = SweepSummary::default();
            let silent = self
                .next_silent(&mut after_client, thresholds, &mut summary)
                .await?;
            count += silent.len() as u64;
            if after_client.is_none() {
                return Ok(count);
            }
        }
    }

    async fn thresholds(&self) -> Result<Thresholds, StoreError> {
        let uptime = self.probe.broker_uptime().await;
        if let Some(uptime) = uptime {
            let mut noticed = self.uptime.lock();
            noticed.1 |= noticed.0.is_some_and(|last| uptime < last);
            noticed.0 = Some(uptime);
        }
        let sessions = self.liveness.ingest_sessions().await?;
        let now = self.liveness.current_time().await?;
        let started_at = uptime.map(|uptime| clock::saturating_sub(now, uptime));
        let sessions_started_at = sessions.iter().filter_map(|session| session.started_at);
        let restarted_at = sessions_started_at.chain(started_at).max();
        // Otherwise the recorder might not store the answer of a client that was seen before.
        let interval = self.config.last_seen_interval;
        let restart_wait = self.config.broker_restart_wait.max(interval);
        let silent_after = self.config.silent_after.max(interval);
        let clients_have_reconnected =
            |restarted_at: &Timestamp| clock::saturating_sub(now, restart_wait) >= *restarted_at;
        Ok(Thresholds {
            now,
            silent_since: clock::saturating_sub(now, silent_after),
            restarted_at: restarted_at.filter(clients_have_reconnected),
        })
    }

    async fn run_with_lease(
        &self,
        thresholds: Thresholds,
        options: SweepOptions,
    ) -> Result<Option<SweepSummary>, StoreError> {
        if !self.hold_lease().await? {
            return Ok(None);
        }
        let result = tokio::select! {
            result = self.run_pass(thresholds, options) => result.map(Some),
            () = self.renew_lease_until_lost() => Ok(None),
        };
        self.release_lease().await;
        if let Ok(Some(summary)) = &result {
            metrics::count_job_run("presence", summary.is_failure());
        }
        result
    }

    async fn hold_lease(&self) -> Result<bool, StoreError> {
        self.leases
            .hold_ingest_session(LEASE_NAME, &self.holder, LEASE)
            .await
    }

    /// Renews the lease. Returns when another process has it, or it cannot be renewed.
    async fn renew_lease_until_lost(&self) {
        let mut renewed_at = Instant::now();
        loop {
            sleep(LEASE_RENEW_INTERVAL).await;
            match self.hold_lease().await {
                Ok(true) => renewed_at = Instant::now(),
                Ok(false) => return,
                Err(_) if renewed_at.elapsed() >= LEASE => return,
                Err(error) => tracing::debug!(%error, "cannot renew the lease of the sweep"),
            }
        }
    }

    /// Ends the lease, so that another process can sweep. If this fails, the lease expires.
    pub async fn release_lease(&self) {
        let release = self.leases.release_ingest_session(LEASE_NAME, &self.holder);
        if let Err(error) = release.await {
            tracing::debug!(%error, "cannot end the lease of the sweep");
        }
    }

    /// Reads all connections once, and pings the silent ones.
    async fn run_pass(
        &self,
        thresholds: Thresholds,
        options: SweepOptions,
    ) -> Result<SweepSummary, StoreError> {
        let mut summary = SweepSummary::default();
        let mut remaining_clients = options.max_clients.unwrap_or(u64::MAX);
        let round_size = self.config.pings_per_second.saturating_mul(ROUND_SECONDS);
        let round_size = usize::try_from(round_size)
            .map_or(MAX_ROUND_SIZE, |size| size.clamp(1, MAX_ROUND_SIZE));
        let mut silent: Vec<WatchedConnection> = Vec::new();
        let mut after_client = None;
        loop {
            let found = self.next_silent(&mut after_client, thresholds, &mut summary);
            silent.extend(found.await?);
            let is_limited = silent.len() as u64 >= remaining_clients;
            silent.truncate(usize::try_from(remaining_clients).unwrap_or(usize::MAX));
            let is_end = after_client.is_none() || is_limited;
            while silent.len() >= round_size || (is_end && !silent.is_empty()) {
                let later = silent.split_off(silent.len().min(round_size));
                let connections = std::mem::replace(&mut silent, later);
                let count = connections.len() as u64;
                summary.silent += count;
                remaining_clients -= count;
                summary.stop = self
                    .run_round(connections, thresholds, options, &mut summary)
                    .await?;
                if summary.stop != SweepStop::Done {
                    return Ok(summary);
                }
            }
            if is_end {
                break;
            }
            sleep(CHUNK_PAUSE).await;
        }
        metrics::set_silent_connections(summary.silent);
        if options.max_clients.is_none() {
            self.store_completed_pass(thresholds).await?;
        }
        Ok(summary)
    }

    async fn store_completed_pass(&self, thresholds: Thresholds) -> Result<(), StoreError> {
        if thresholds.restarted_at.is_some() {
            self.uptime.lock().1 = false;
        }
        let previous = self.liveness.sweep_state().await?;
        let state = SweepState {
            completed_at: Some(thresholds.now),
            swept_restart_at: thresholds.restarted_at.or(previous.swept_restart_at),
        };
        self.liveness.store_sweep_state(state).await
    }

    /// Reads the next chunk of connections, and returns the silent ones. Sets `after_client` to `None` after
    /// the last connection.
    async fn next_silent(
        &self,
        after_client: &mut Option<ClientId>,
        thresholds: Thresholds,
        summary: &mut SweepSummary,
    ) -> Result<Vec<WatchedConnection>, StoreError> {
        let chunk = self
            .liveness
            .list_connections_seen_between(
                after_client.as_ref(),
                MAINTENANCE_CHUNK_ROWS,
                Timestamp::UNIX_EPOCH,
                thresholds.ping_before(),
            )
            .await?;
        summary.checked += chunk.read_connections;
        *after_client = chunk.last_client;
        let is_silent = |connection: &WatchedConnection| match self
            .probe
            .method(&connection.dialect)
        {
            Some(ProbeMethod::Ping) => true,
            Some(ProbeMethod::RetainedHandshake) => connection.last_seen < thresholds.silent_since,
            None => false,
        };
        Ok(chunk.connections.into_iter().filter(is_silent).collect())
    }
}
