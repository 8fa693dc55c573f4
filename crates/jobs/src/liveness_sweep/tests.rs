//! Tests of the sweep with virtual time, a simulated database and simulated clients.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::*;
use domain::{DialectName, Timestamp};
use store::{
    ConnectionChunk, ExpiringConnection, IngestEpoch, IngestSession, QueueTopic, RecordingProgress,
    Result,
};

const HOUR: Duration = Duration::from_hours(1);
const PING_TIMEOUT: Duration = Duration::from_mins(1);
const SILENT_AFTER: Duration = Duration::from_hours(24);
const STATUS: DialectName = DialectName::from_static("status");
const HANDSHAKE: DialectName = DialectName::from_static("handshake");

/// The database, the broker and the clients. The time of the database is the virtual time.
struct World {
    started_at: Instant,
    state: Mutex<State>,
}

#[derive(Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each value is a fault that a test switches on"
)]
struct State {
    connections: BTreeMap<ClientId, WatchedConnection>,
    /// Clients that answer pings.
    living: HashSet<ClientId>,
    /// Clients with a retained handshake.
    retained: HashSet<ClientId>,
    pings: HashMap<ClientId, u32>,
    /// Clients that are first reached by the ping with this number.
    answer_from_ping: HashMap<ClientId, u32>,
    expired: Vec<ExpiringConnection>,
    sweep_state: SweepState,
    lease_holder: Option<String>,
    broker_started_at: Option<Timestamp>,
    ingest: Vec<IngestSession>,
    /// Whether recording stores its progress.
    has_stopped_recording: bool,
    /// Partitions whose progress is not known.
    unknown_partitions: HashSet<(QueueTopic, i32)>,
    ping_path_is_broken: bool,
    broker_rejects_pings: bool,
    /// `ingest` reconnects with the second ping.
    ingest_reconnects: bool,
    ping_times: Vec<Instant>,
}

impl World {
    fn new() -> Arc<Self> {
        let world = Self {
            started_at: Instant::now(),
            state: Mutex::default(),
        };
        world.state.lock().ingest = vec![IngestSession {
            session: 1,
            epoch: 5,
            is_held: true,
            started_at: None,
        }];
        Arc::new(world)
    }

    fn now(&self) -> Timestamp {
        let start: Timestamp = "2026-01-10T00:00:00Z".parse().unwrap();
        start + self.started_at.elapsed()
    }

    /// Adds a client that was last seen this long ago.
    fn add(&self, name: &str, dialect: DialectName, seen_ago: Duration) -> ClientId {
        let client_id = ClientId::new(name).unwrap();
        let last_seen = clock::saturating_sub(self.now(), seen_ago);
        let connection = WatchedConnection {
            client_id: client_id.clone(),
            dialect,
            topic_prefix: "redhat/insights".to_owned(),
            row_version: last_seen,
            last_seen,
            latest_message_at: last_seen,
        };
        let mut state = self.state.lock();
        state.connections.insert(client_id.clone(), connection);
        client_id
    }

    fn add_living(&self, name: &str, seen_ago: Duration) -> ClientId {
        let client_id = self.add(name, STATUS, seen_ago);
        self.state.lock().living.insert(client_id.clone());
        client_id
    }

    /// Adds clients of the status dialect.
    fn add_many(&self, prefix: &str, count: u32, seen_ago: Duration, is_living: bool) {
        for number in 0..count {
            let name = format!("{prefix}-{number:04}");
            if is_living {
                self.add_living(&name, seen_ago);
            } else {
                self.add(&name, STATUS, seen_ago);
            }
        }
    }

    fn set_broker_uptime(&self, uptime: Duration) {
        let started_at = clock::saturating_sub(self.now(), uptime);
        self.state.lock().broker_started_at = Some(started_at);
    }

    fn expired(&self) -> Vec<String> {
        let state = self.state.lock();
        let expired = state.expired.iter();
        expired
            .map(|it| it.connection.client_id.as_str().to_owned())
            .collect()
    }

    fn sweep(self: &Arc<Self>) -> LivenessSweep {
        let config = SweepConfig {
            silent_after: SILENT_AFTER,
            ping_timeout: PING_TIMEOUT,
            pings_per_second: 200,
            broker_restart_wait: Duration::from_mins(10),
            last_seen_interval: Duration::from_mins(5),
            ingest_has_lease: true,
        };
        self.sweep_with(config)
    }

    fn sweep_with(self: &Arc<Self>, config: SweepConfig) -> LivenessSweep {
        LivenessSweep::new(
            self.clone(),
            self.clone(),
            self.clone(),
            config,
            "me".to_owned(),
        )
    }

    async fn run(self: &Arc<Self>) -> SweepSummary {
        self.run_with(SweepOptions::default()).await
    }

    async fn run_with(self: &Arc<Self>, options: SweepOptions) -> SweepSummary {
        self.sweep().run_once(options).await.unwrap().unwrap()
    }
}

#[async_trait]
impl LivenessRepository for World {
    async fn current_time(&self) -> Result<Timestamp> {
        Ok(self.now())
    }

    async fn list_connections_seen_between(
        &self,
        after_client: Option<&ClientId>,
        limit: u32,
        from: Timestamp,
        until: Timestamp,
    ) -> Result<ConnectionChunk> {
        let state = self.state.lock();
        let connections = state.connections.values();
        let following = connections.filter(|it| after_client.is_none_or(|id| it.client_id > *id));
        let chunk: Vec<_> = following.take(limit as usize).collect();
        let is_between = |it: &&&WatchedConnection| it.last_seen >= from && it.last_seen < until;
        Ok(ConnectionChunk {
            read_connections: chunk.len() as u64,
            last_client: chunk.last().map(|it| it.client_id.clone()),
            connections: chunk
                .iter()
                .filter(is_between)
                .map(|it| (*it).clone())
                .collect(),
        })
    }

    async fn find_watched_connections(
        &self,
        clients: &[ClientId],
    ) -> Result<Vec<WatchedConnection>> {
        let state = self.state.lock();
        let connections = clients.iter().filter_map(|id| state.connections.get(id));
        Ok(connections.cloned().collect())
    }

    async fn expire_connections(
        &self,
        connections: &[ExpiringConnection],
    ) -> Result<Vec<ClientId>> {
        let mut state = self.state.lock();
        let mut expired = Vec::new();
        for expiring in connections {
            let client_id = &expiring.connection.client_id;
            if state.connections.get(client_id) == Some(&expiring.connection) {
                state.connections.remove(client_id);
                state.expired.push(expiring.clone());
                expired.push(client_id.clone());
            }
        }
        Ok(expired)
    }

    async fn store_recording_progress(&self, _: &[RecordingProgress]) -> Result<Timestamp> {
        Ok(self.now())
    }

    async fn recording_progress(&self) -> Result<Vec<RecordingProgress>> {
        let state = self.state.lock();
        if state.has_stopped_recording {
            return Ok(Vec::new());
        }
        // Recording is 5 seconds behind.
        let processed_until = clock::saturating_sub(self.now(), Duration::from_secs(5));
        let mut progress = Vec::new();
        for queue in [QueueTopic::Ingress, QueueTopic::Answers, QueueTopic::Slow] {
            for partition in (0..2).filter(|it| !state.unknown_partitions.contains(&(queue, *it))) {
                progress.push(RecordingProgress {
                    queue,
                    partition,
                    partition_count: 2,
                    processed_until,
                });
            }
        }
        Ok(progress)
    }

    async fn ingest_sessions(&self) -> Result<Vec<IngestSession>> {
        Ok(self.state.lock().ingest.clone())
    }

    async fn sweep_state(&self) -> Result<SweepState> {
        Ok(self.state.lock().sweep_state)
    }

    async fn store_sweep_state(&self, state: SweepState) -> Result<()> {
        self.state.lock().sweep_state = state;
        Ok(())
    }
}

#[async_trait]
impl IngestEpochRepository for World {
    async fn next_ingest_epoch(&self, _: &str, _: bool) -> Result<IngestEpoch> {
        Err(StoreError::CorruptRow(
            "the sweep needs no epoch".to_owned(),
        ))
    }

    async fn hold_ingest_session(&self, _: &str, holder: &str, _: Duration) -> Result<bool> {
        let mut state = self.state.lock();
        let current = state.lease_holder.get_or_insert_with(|| holder.to_owned());
        Ok(current == holder)
    }

    async fn release_ingest_session(&self, _: &str, holder: &str) -> Result<()> {
        let mut state = self.state.lock();
        state.lease_holder.take_if(|current| current == holder);
        Ok(())
    }
}

#[async_trait]
impl LivenessProbe for World {
    fn method(&self, dialect: &DialectName) -> Option<ProbeMethod> {
        match dialect.as_str() {
            "status" => Some(ProbeMethod::Ping),
            "handshake" => Some(ProbeMethod::RetainedHandshake),
            _ => None,
        }
    }

    async fn ping(&self, connection: &WatchedConnection) -> std::result::Result<(), String> {
        let now = self.now();
        let mut state = self.state.lock();
        if state.broker_rejects_pings {
            return Err("not connected".to_owned());
        }
        state.ping_times.push(Instant::now());
        let client_id = connection.client_id.clone();
        let number = state.pings.entry(client_id.clone()).or_default();
        *number += 1;
        let number = *number;
        if number == 2 && state.ingest_reconnects {
            state.ingest[0].epoch += 1;
        }
        let answers_from = state.answer_from_ping.get(&client_id).copied();
        let is_reached = !state.ping_path_is_broken
            && state.living.contains(&client_id)
            && answers_from.is_none_or(|first| number >= first);
        if is_reached && let Some(connection) = state.connections.get_mut(&client_id) {
            connection.last_seen = now;
            connection.latest_message_at = now;
        }
        Ok(())
    }

    async fn has_retained_handshake(
        &self,
        connection: &WatchedConnection,
    ) -> std::result::Result<bool, String> {
        Ok(self.state.lock().retained.contains(&connection.client_id))
    }

    async fn broker_uptime(&self) -> Option<Duration> {
        let started_at = self.state.lock().broker_started_at?;
        Some(self.now().duration_since(started_at).unsigned_abs())
    }
}

#[tokio::test(start_paused = true)]
async fn only_silent_clients_that_do_not_answer_two_pings_expire() {
    let world = World::new();
    world.add("dead", STATUS, 25 * HOUR);
    world.add_living("living", 25 * HOUR);
    let slow = world.add_living("slow", 25 * HOUR);
    world.state.lock().answer_from_ping.insert(slow, 2);
    world.add("not-silent", STATUS, 23 * HOUR);
    world.add("unknown", DialectName::from("other".to_owned()), 25 * HOUR);
    let before = world.now();
    let summary = world.run().await;
    assert_eq!(world.expired(), ["dead"]);
    assert_eq!(
        summary.to_string(),
        "5 checked, 3 silent, 2 answered, 1 expired, 0 kept"
    );
    let state = world.state.lock();
    let pings: BTreeMap<&str, u32> = state
        .pings
        .iter()
        .map(|(id, n)| (id.as_str(), *n))
        .collect();
    assert_eq!(
        pings,
        BTreeMap::from([("dead", 2), ("living", 1), ("slow", 2)])
    );
    // A message that is received after the first ping restores the connection.
    let unanswered_since = state.expired[0].unanswered_since;
    assert!(unanswered_since >= before && unanswered_since < before + PING_TIMEOUT);
    assert!(world.started_at.elapsed() >= 2 * PING_TIMEOUT);
    assert_eq!(state.lease_holder, None);
}

#[tokio::test(start_paused = true)]
async fn pings_are_sent_at_a_bounded_rate() {
    let world = World::new();
    world.add_many("client", 1001, 25 * HOUR, true);
    world.run().await;
    let state = world.state.lock();
    let first = state.ping_times.iter().min().unwrap();
    let last = state.ping_times.iter().max().unwrap();
    assert_eq!(last.duration_since(*first), Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn guard_keeps_all_connections_if_most_clients_do_not_answer() {
    let world = World::new();
    world.add_many("silent", 30, 25 * HOUR, true);
    world.add_many("recent", 100, HOUR, true);
    world.state.lock().ping_path_is_broken = true;
    let summary = world.run().await;
    assert_eq!(summary.stop, SweepStop::Guard);
    assert_eq!((summary.kept, summary.expired), (30, 0));
    assert_eq!(world.state.lock().sweep_state.completed_at, None);
    let options = SweepOptions {
        ignore_guard: true,
        ..SweepOptions::default()
    };
    assert_eq!(world.run_with(options).await.expired, 30);
}

#[tokio::test(start_paused = true)]
async fn guard_keeps_all_connections_if_no_other_client_is_known_to_be_connected() {
    let world = World::new();
    world.add_many("dead", 20, 25 * HOUR, false);
    assert_eq!(world.run().await.stop, SweepStop::Guard);
    assert_eq!(world.expired().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn clients_that_died_together_expire_if_connected_clients_answer() {
    let world = World::new();
    world.add_many("dead", 300, 25 * HOUR, false);
    world.add_many("recent", 600, HOUR, true);
    let summary = world.run().await;
    assert_eq!((summary.expired, summary.stop), (300, SweepStop::Done));
    assert!(world.expired().iter().all(|id| id.starts_with("dead")));
    let state = world.state.lock();
    let controls = state
        .pings
        .keys()
        .filter(|id| id.as_str().starts_with("recent"));
    assert_eq!(controls.count(), 380);
}

#[tokio::test(start_paused = true)]
async fn nothing_expires_while_recording_makes_no_progress() {
    for unknown_partitions in [
        None,
        Some((QueueTopic::Ingress, 1)),
        Some((QueueTopic::Answers, 0)),
        Some((QueueTopic::Slow, 1)),
    ] {
        let world = World::new();
        world.add("dead", STATUS, 25 * HOUR);
        let options = SweepOptions {
            ignore_guard: true,
            ..SweepOptions::default()
        };
        {
            let mut state = world.state.lock();
            state.has_stopped_recording = unknown_partitions.is_none();
            state.unknown_partitions.extend(unknown_partitions);
        }
        let summary = world.run_with(options).await;
        assert_eq!(summary.stop, SweepStop::RecordingBehind);
        assert_eq!((summary.kept, world.expired().len()), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_expires_while_ingest_is_down_or_reconnects() {
    let world = World::new();
    world.add("dead", STATUS, 25 * HOUR);
    world.state.lock().ingest[0].is_held = false;
    assert_eq!(world.run().await.stop, SweepStop::IngestUnavailable);
    assert!(world.state.lock().pings.is_empty());
    world.state.lock().ingest[0].is_held = true;
    world.state.lock().ingest_reconnects = true;
    assert_eq!(world.run().await.stop, SweepStop::IngestUnavailable);
    assert_eq!(world.expired().len(), 0);
    world.state.lock().ingest_reconnects = false;
    assert_eq!(world.run().await.expired, 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_expires_while_the_broker_accepts_no_pings() {
    let world = World::new();
    world.add("dead", STATUS, 25 * HOUR);
    world.state.lock().broker_rejects_pings = true;
    assert_eq!(world.run().await.stop, SweepStop::BrokerUnavailable);
    assert_eq!(world.expired().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn handshake_clients_expire_only_without_their_retained_handshake() {
    let world = World::new();
    world.add("gone", HANDSHAKE, 25 * HOUR);
    world.add("not-silent", HANDSHAKE, 23 * HOUR);
    let retained = world.add("retained", HANDSHAKE, 25 * HOUR);
    world.state.lock().retained.insert(retained);
    // A restart of the broker alone says nothing about handshake clients.
    world.set_broker_uptime(HOUR);
    world.run().await;
    assert_eq!(world.expired(), ["gone"]);
    assert!(world.state.lock().pings.is_empty());
}

#[tokio::test(start_paused = true)]
async fn guard_applies_to_retained_handshakes() {
    let world = World::new();
    for number in 0..20 {
        world.add(&format!("gone-{number:02}"), HANDSHAKE, 25 * HOUR);
    }
    assert_eq!(world.run().await.stop, SweepStop::Guard);
    for number in 0..40 {
        let client_id = world.add(&format!("recent-{number:02}"), HANDSHAKE, HOUR);
        world.state.lock().retained.insert(client_id);
    }
    assert_eq!(world.run().await.expired, 20);
}

#[tokio::test(start_paused = true)]
async fn clients_without_a_message_since_a_broker_restart_are_pinged_after_the_wait() {
    let world = World::new();
    world.add("dead", STATUS, 2 * HOUR);
    world.add_living("silent", 2 * HOUR);
    world.add("seen-since", STATUS, Duration::from_mins(1));
    world.set_broker_uptime(Duration::from_mins(9));
    assert_eq!(world.run().await.silent, 0);
    world.set_broker_uptime(Duration::from_mins(10));
    assert_eq!(world.run().await.silent, 2);
    assert_eq!(world.expired(), ["dead"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_session_of_ingest_is_a_broker_restart() {
    let world = World::new();
    world.add("dead", STATUS, 2 * HOUR);
    let started_at = clock::saturating_sub(world.now(), Duration::from_mins(11));
    world.state.lock().ingest[0].started_at = Some(started_at);
    assert_eq!(world.run().await.expired, 1);
}

#[tokio::test(start_paused = true)]
async fn one_process_at_a_time_sweeps() {
    let world = World::new();
    world.state.lock().lease_holder = Some("other".to_owned());
    let result = world.sweep().run_once(SweepOptions::default()).await;
    assert_eq!(result.unwrap(), None);
    assert_eq!(world.state.lock().lease_holder.as_deref(), Some("other"));
}

#[tokio::test(start_paused = true)]
async fn periodic_sweep_runs_a_quarter_of_silent_after_later_and_after_each_restart() {
    let world = World::new();
    world.set_broker_uptime(100 * HOUR);
    let tasks = TaskGroup::new();
    let sweep = world.sweep();
    let running = tokio::spawn(sweep.run(tasks.clone()));
    let completed_at = || world.state.lock().sweep_state.completed_at;
    let run_for = async |duration: Duration| {
        tokio::time::sleep(duration).await;
        completed_at()
    };
    let first = run_for(Duration::from_mins(1)).await;
    assert!(first.is_some());
    assert_eq!(run_for(Duration::from_mins(5 * 60 + 50)).await, first);
    let second = run_for(Duration::from_mins(10)).await;
    assert!(second > first);
    world.set_broker_uptime(Duration::ZERO);
    assert_eq!(run_for(Duration::from_mins(9)).await, second);
    run_for(Duration::from_mins(1)).await;
    let third = run_for(Duration::from_mins(1)).await;
    assert!(third > second);
    assert_eq!(run_for(Duration::from_mins(30)).await, third);
    tasks.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn large_fleets_are_swept_in_several_rounds() {
    let world = World::new();
    world.add_many("living", 900, 25 * HOUR, true);
    world.add_many("dead", 300, 25 * HOUR, false);
    let config = SweepConfig {
        pings_per_second: 3,
        ..world.sweep().config
    };
    let sweep = world.sweep_with(config);
    let summary = sweep.run_once(SweepOptions::default()).await.unwrap();
    // The first round contains only dead clients. No client was seen recently, so silent clients of the
    // other rounds are pinged, too.
    let summary = summary.unwrap();
    assert_eq!((summary.expired, summary.stop), (300, SweepStop::Done));
    assert!(world.expired().iter().all(|id| id.starts_with("dead")));
}

#[tokio::test(start_paused = true)]
async fn a_limited_run_pings_at_most_this_number_of_clients() {
    let world = World::new();
    world.add_many("dead", 30, 25 * HOUR, false);
    let options = SweepOptions {
        max_clients: Some(7),
        ..SweepOptions::default()
    };
    let summary = world.run_with(options).await;
    assert_eq!((summary.silent, summary.expired), (7, 7));
    assert_eq!(world.state.lock().sweep_state.completed_at, None);
    assert_eq!(world.sweep().count_silent().await.unwrap(), 23);
}
