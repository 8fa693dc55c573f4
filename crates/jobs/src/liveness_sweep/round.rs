//! A round: pings silent clients twice, and ends the connections of those that did not answer.
//!
//! A client has answered when its connection has changed since it was read: any message of the client moves
//! `last_seen`. So the sweep needs no clock that agrees with the clocks of other hosts, and the answers take
//! the same way as all messages of clients.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tokio::time::{Instant, sleep, sleep_until};

use super::guard::PingCount;
use super::probe::{LivenessProbe, ProbeMethod};
use super::{LivenessSweep, SweepOptions, SweepStop, SweepSummary, Thresholds};
use crate::metrics;
use domain::{ClientId, Timestamp};
use store::{
    ExpiringConnection, IngestSession, MAINTENANCE_CHUNK_ROWS, QueueTopic, StoreError,
    WatchedConnection,
};

/// Maximum number of pings that wait for the broker, and of requests for retained handshakes.
const MAX_CONCURRENT_REQUESTS: usize = 128;
/// Number of connections that one transaction ends. It is small, so that batches do not wait long.
const EXPIRE_CHUNK: usize = 100;
/// Number of clients whose connections one statement reads.
const READ_CHUNK: usize = 1000;
/// A round waits for this number of ping timeouts until recording has processed everything up to the
/// deadline of the pings.
const RECORDING_WAIT_FACTOR: u32 = 5;
const MAX_RECORDING_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of chunks in which clients are searched that are certainly connected.
const MAX_CONTROL_CHUNKS: usize = 200;
/// A control may have been seen this long after the current time of the database, because the clocks of
/// hosts differ.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_hours(24);

type Connections = Vec<WatchedConnection>;

impl LivenessSweep {
    /// Pings these clients, or reads their retained handshakes, and ends connections. Returns why the pass
    /// must stop, or [`SweepStop::Done`].
    pub(super) async fn run_round(
        &self,
        connections: Connections,
        thresholds: Thresholds,
        options: SweepOptions,
        summary: &mut SweepSummary,
    ) -> Result<SweepStop, StoreError> {
        let is_pinged = |connection: &WatchedConnection| {
            self.probe.method(&connection.dialect) == Some(ProbeMethod::Ping)
        };
        let (pinged, handshakes): (Connections, Connections) =
            connections.into_iter().partition(is_pinged);
        for (connections, method) in [
            (pinged, ProbeMethod::Ping),
            (handshakes, ProbeMethod::RetainedHandshake),
        ] {
            if connections.is_empty() {
                continue;
            }
            let round = Round {
                sweep: self,
                method,
                thresholds,
                ignore_guard: options.ignore_guard,
            };
            let stop = round.run(connections, summary).await?;
            if stop != SweepStop::Done {
                return Ok(stop);
            }
        }
        Ok(SweepStop::Done)
    }
}

/// A round with one method.
struct Round<'a> {
    sweep: &'a LivenessSweep,
    method: ProbeMethod,
    thresholds: Thresholds,
    ignore_guard: bool,
}

impl Round<'_> {
    async fn run(
        &self,
        connections: Connections,
        summary: &mut SweepSummary,
    ) -> Result<SweepStop, StoreError> {
        let sweep = self.sweep;
        let sessions = self.held_ingest_sessions().await?;
        if sweep.config.ingest_has_lease && sessions.is_empty() {
            return Ok(stop_round(
                SweepStop::IngestUnavailable,
                connections.len(),
                summary,
            ));
        }
        // Messages that were received before this time are recorded, or change the connection later.
        let unanswered_since = sweep.liveness.current_time().await?;
        let clients: HashSet<ClientId> =
            connections.iter().map(|it| it.client_id.clone()).collect();
        let (pinged, silent) = self.probe_once(connections).await?;
        if pinged == 0 {
            return Ok(stop_round(
                SweepStop::BrokerUnavailable,
                silent.len(),
                summary,
            ));
        }
        let answered = pinged - silent.len();
        let first_count = ping_count(pinged, answered);
        let (unanswered, guard_count) = if silent.is_empty() {
            (silent, first_count)
        } else {
            let controls = sweep.guard.lock().number_of_controls(first_count);
            let controls = self.find_controls(controls, clients).await?;
            match self.probe_again(silent, controls, sessions).await? {
                Ok((unanswered, controls)) => {
                    let count = PingCount {
                        pinged: first_count.pinged + controls.pinged,
                        answered: first_count.pinged - unanswered.len() as u64 + controls.answered,
                    };
                    (unanswered, count)
                }
                Err((stop, unanswered)) => {
                    summary.answered += answered as u64;
                    return Ok(stop_round(stop, unanswered, summary));
                }
            }
        };
        summary.answered += (pinged - unanswered.len()) as u64;
        metrics::count_liveness_answers((pinged - unanswered.len()) as u64);
        let is_allowed = sweep.guard.lock().add(guard_count);
        if !is_allowed && !self.ignore_guard && !unanswered.is_empty() {
            return Ok(stop_round(SweepStop::Guard, unanswered.len(), summary));
        }
        self.expire(unanswered, unanswered_since, summary).await?;
        Ok(SweepStop::Done)
    }

    /// Probes the clients once. Returns the number of clients that were probed, and those of them that did
    /// not answer.
    async fn probe_once(
        &self,
        connections: Connections,
    ) -> Result<(usize, Connections), StoreError> {
        if self.method == ProbeMethod::RetainedHandshake {
            let checked = self.read_handshakes(connections).await;
            let absent = checked.iter().filter(|(_, is_present)| !is_present);
            let absent = absent.map(|(connection, _)| connection.clone()).collect();
            return Ok((checked.len(), absent));
        }
        let pinged = self.ping_all(connections).await;
        sleep(self.sweep.config.ping_timeout).await;
        let count = pinged.len();
        Ok((count, self.unchanged(pinged).await?))
    }

    /// Probes silent clients again, together with clients that are certainly connected. Waits until recording
    /// has processed everything that was received meanwhile. Returns the silent clients that did not answer
    /// and the count of the others, or why nothing is known, and the number of silent clients.
    async fn probe_again(
        &self,
        silent: Connections,
        controls: Connections,
        sessions: Vec<IngestSession>,
    ) -> Result<Result<(Connections, PingCount), (SweepStop, usize)>, StoreError> {
        let sweep = self.sweep;
        let silent_count = silent.len();
        let (silent, controls, control_count) = if self.method == ProbeMethod::RetainedHandshake {
            let checked = self.read_handshakes(controls).await;
            let present = checked.iter().filter(|(_, is_present)| *is_present).count();
            (silent, Vec::new(), ping_count(checked.len(), present))
        } else {
            let silent = self.ping_all(silent).await;
            let controls = self.ping_all(controls).await;
            sleep(sweep.config.ping_timeout).await;
            let count = ping_count(controls.len(), 0);
            (silent, controls, count)
        };
        let deadline = sweep.liveness.current_time().await?;
        if !self.wait_until_recorded(deadline).await? {
            return Ok(Err((SweepStop::RecordingBehind, silent_count)));
        }
        // If `ingest` has reconnected, the broker may still have answers for it.
        if sweep.config.ingest_has_lease && self.held_ingest_sessions().await? != sessions {
            return Ok(Err((SweepStop::IngestUnavailable, silent_count)));
        }
        let unanswered = self.unchanged(silent).await?;
        let silent_controls = self.unchanged(controls).await?.len() as u64;
        let answered = match self.method {
            ProbeMethod::Ping => control_count.pinged - silent_controls,
            ProbeMethod::RetainedHandshake => control_count.answered,
        };
        let control_count = PingCount {
            answered,
            ..control_count
        };
        Ok(Ok((unanswered, control_count)))
    }

    /// Sends pings at the configured rate. Returns the connections of the clients whose ping the broker has
    /// acknowledged.
    async fn ping_all(&self, connections: Connections) -> Connections {
        let interval = Duration::from_secs(1) / self.sweep.config.pings_per_second.max(1);
        let mut next_at = Instant::now();
        let pings = connections.into_iter().map(|connection| {
            let ping_at = next_at;
            next_at += interval;
            send_ping(self.sweep.probe.clone(), connection, ping_at)
        });
        futures::stream::iter(pings)
            .buffered(MAX_CONCURRENT_REQUESTS)
            .filter_map(std::future::ready)
            .collect()
            .await
    }

    /// Reads the retained handshakes of the clients. Leaves clients out if the broker does not respond.
    async fn read_handshakes(&self, connections: Connections) -> Vec<(WatchedConnection, bool)> {
        let interval = Duration::from_secs(1) / self.sweep.config.pings_per_second.max(1);
        let mut next_at = Instant::now();
        let requests = connections.into_iter().map(|connection| {
            let read_at = next_at;
            next_at += interval;
            read_handshake(self.sweep.probe.clone(), connection, read_at)
        });
        futures::stream::iter(requests)
            .buffered(MAX_CONCURRENT_REQUESTS)
            .filter_map(std::future::ready)
            .collect()
            .await
    }

    /// Returns the connections that have not changed since they were read. A client without a connection is
    /// left out.
    async fn unchanged(&self, connections: Connections) -> Result<Connections, StoreError> {
        let mut unchanged = Vec::new();
        for chunk in connections.chunks(READ_CHUNK) {
            let clients: Vec<ClientId> = chunk.iter().map(|it| it.client_id.clone()).collect();
            let current = self
                .sweep
                .liveness
                .find_watched_connections(&clients)
                .await?;
            let current: HashMap<&ClientId, &WatchedConnection> =
                current.iter().map(|it| (&it.client_id, it)).collect();
            let is_unchanged =
                |it: &&WatchedConnection| current.get(&it.client_id).is_some_and(|now| now == it);
            unchanged.extend(chunk.iter().filter(is_unchanged).cloned());
        }
        Ok(unchanged)
    }

    /// Returns at most `count` connections of clients that are not `excluded`. Clients that were seen recently come first, because
    /// they are certainly connected.
    async fn find_controls(
        &self,
        count: usize,
        mut excluded: HashSet<ClientId>,
    ) -> Result<Connections, StoreError> {
        let now = self.sweep.liveness.current_time().await?;
        let until = now.saturating_add(MAX_CLOCK_DIFFERENCE).unwrap_or(now);
        let ping_before = self.thresholds.ping_before();
        let start = excluded.iter().next().cloned();
        let mut controls = Vec::new();
        for (from, until) in [(ping_before, until), (Timestamp::UNIX_EPOCH, ping_before)] {
            let (mut after_client, mut has_wrapped) = (start.clone(), false);
            for _ in 0..MAX_CONTROL_CHUNKS {
                if controls.len() >= count {
                    return Ok(controls);
                }
                let chunk = self
                    .sweep
                    .liveness
                    .list_connections_seen_between(
                        after_client.as_ref(),
                        MAINTENANCE_CHUNK_ROWS,
                        from,
                        until,
                    )
                    .await?;
                let has_method = |it: &WatchedConnection| {
                    self.sweep.probe.method(&it.dialect) == Some(self.method)
                };
                for connection in chunk.connections.into_iter().filter(has_method) {
                    if controls.len() < count && excluded.insert(connection.client_id.clone()) {
                        controls.push(connection);
                    }
                }
                after_client = chunk.last_client;
                if after_client.is_none() && std::mem::replace(&mut has_wrapped, true) {
                    break;
                }
            }
        }
        Ok(controls)
    }

    /// Returns the sessions of `ingest` that a process holds now.
    async fn held_ingest_sessions(&self) -> Result<Vec<IngestSession>, StoreError> {
        let mut sessions = self.sweep.liveness.ingest_sessions().await?;
        sessions.retain(|session| session.is_held);
        Ok(sessions)
    }

    /// Waits until everything that the topics contained at `deadline` is recorded. Returns false if this
    /// takes too long.
    async fn wait_until_recorded(&self, deadline: Timestamp) -> Result<bool, StoreError> {
        let interval = (self.sweep.config.ping_timeout / 4).min(MAX_RECORDING_CHECK_INTERVAL);
        let give_up_at = Instant::now() + self.sweep.config.ping_timeout * RECORDING_WAIT_FACTOR;
        while !self.is_recorded(deadline).await? {
            if Instant::now() >= give_up_at {
                return Ok(false);
            }
            sleep(interval).await;
        }
        Ok(true)
    }

    /// Returns whether each partition of each topic is processed up to `deadline`. If the progress of a
    /// partition is not known, it is not.
    async fn is_recorded(&self, deadline: Timestamp) -> Result<bool, StoreError> {
        let progress = self.sweep.liveness.recording_progress().await?;
        let queues = [QueueTopic::Ingress, QueueTopic::Answers, QueueTopic::Slow];
        Ok(queues.into_iter().all(|queue| {
            let partitions = progress.iter().filter(|it| it.queue == queue);
            let mut processed: HashSet<i32> = HashSet::new();
            let mut partition_count = None;
            for partition in partitions {
                partition_count = Some(partition.partition_count);
                if partition.processed_until >= deadline {
                    processed.insert(partition.partition);
                }
            }
            partition_count.is_some_and(|count| (0..count).all(|it| processed.contains(&it)))
        }))
    }

    async fn expire(
        &self,
        connections: Connections,
        unanswered_since: Timestamp,
        summary: &mut SweepSummary,
    ) -> Result<(), StoreError> {
        for chunk in connections.chunks(EXPIRE_CHUNK) {
            let expiring: Vec<ExpiringConnection> = chunk
                .iter()
                .map(|connection| ExpiringConnection {
                    connection: connection.clone(),
                    unanswered_since,
                })
                .collect();
            let expired = self.sweep.liveness.expire_connections(&expiring).await?;
            for client_id in &expired {
                tracing::debug!(%client_id, reason = "expired", "connection ended");
            }
            let expired = expired.len() as u64;
            summary.expired += expired;
            summary.answered += chunk.len() as u64 - expired;
            metrics::count_liveness_expired(expired);
        }
        Ok(())
    }
}

fn ping_count(pinged: usize, answered: usize) -> PingCount {
    PingCount {
        pinged: pinged as u64,
        answered: answered as u64,
    }
}

/// Sends a ping at `ping_at`. Returns `None` if the broker has not acknowledged the ping.
async fn send_ping(
    probe: Arc<dyn LivenessProbe>,
    connection: WatchedConnection,
    ping_at: Instant,
) -> Option<WatchedConnection> {
    sleep_until(ping_at).await;
    let result = probe.ping(&connection).await;
    metrics::count_liveness_ping(result.is_ok());
    match result {
        Ok(()) => Some(connection),
        Err(error) => {
            tracing::debug!(client_id = %connection.client_id, error, "ping not sent");
            None
        }
    }
}

/// Reads a retained handshake at `read_at`. Returns `None` if the broker did not respond.
async fn read_handshake(
    probe: Arc<dyn LivenessProbe>,
    connection: WatchedConnection,
    read_at: Instant,
) -> Option<(WatchedConnection, bool)> {
    sleep_until(read_at).await;
    match probe.has_retained_handshake(&connection).await {
        Ok(is_present) => Some((connection, is_present)),
        Err(error) => {
            tracing::debug!(client_id = %connection.client_id, error, "handshake not read");
            None
        }
    }
}

/// Notes that a round ended before it could end these connections.
fn stop_round(stop: SweepStop, kept: usize, summary: &mut SweepSummary) -> SweepStop {
    summary.kept += kept as u64;
    metrics::count_liveness_suppressed(stop.as_str(), kept as u64);
    stop
}
