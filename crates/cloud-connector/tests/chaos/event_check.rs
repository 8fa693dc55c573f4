//! Compares the events that callers receive with the history in the database, with the Kafka topic and
//! with the messages of each client (`event_model`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

use crate::check::{Mismatch, TrackedClient};
use crate::deployment::ChaosDeployment;
use crate::dialect;
use crate::event_model::{Explanation, ModelState, ObservedEvent};
use crate::event_rows::{EventRows, HistoryRow};
use crate::event_stream::{StreamReader, StreamTotals};
use crate::event_topic;
use crate::plan::{DeploymentMode, TenantKind};
use crate::random::Random;

/// All events must be received within this time after the end of a round.
const EVENT_TIMEOUT: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum numbers of repeated messages that the check tries, one after the other. A message is repeated
/// only in distributed mode.
const MAX_REPEATS: [u32; 4] = [0, 2, 4, 8];

/// The readers of the event streams, and what they had received at the end of the previous round.
pub struct EventCheck {
    readers: Vec<StreamReader>,
    /// The possible states of each client at the end of the previous round.
    states: BTreeMap<String, BTreeSet<ModelState>>,
    /// The content of each connected client, as the events describe it.
    contents: BTreeMap<String, Value>,
    /// All events up to this position are checked.
    checked_position: u64,
    pub totals: EventTotals,
}

/// Totals of the checked events, for the summary.
#[derive(Debug, Default, Clone, Copy)]
pub struct EventTotals {
    pub events: u64,
    /// Transitions without an event, because they were merged in a batch.
    pub merged_transitions: u64,
    /// Rounds of a client whose events are possible only if the broker delivered messages again.
    pub clients_with_repeats: u64,
    pub topic_messages: usize,
    pub streams: StreamTotals,
}

impl fmt::Display for EventTotals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            events,
            merged_transitions,
            clients_with_repeats,
            topic_messages,
            streams,
        } = self;
        write!(
            formatter,
            "{events} events over {} streams ({} received twice, {} slow resets, \
             {merged_transitions} merged transitions, {clients_with_repeats} clients with redelivered \
             messages, {topic_messages} messages in Kafka)",
            streams.connections, streams.repeated_events, streams.slow_resets
        )
    }
}

/// The checked events of one client.
struct CheckedClient {
    states: BTreeSet<ModelState>,
    content: Option<Value>,
    step_count: usize,
    merged_transitions: u64,
    repeats: u32,
}

impl EventCheck {
    pub fn start(deployment: &ChaosDeployment, seed: u64) -> Self {
        let readers = [TenantKind::Default, TenantKind::Other].map(|tenant| {
            let (org_id, _) = tenant.org_and_account();
            let random = Random::new(seed, &[6, tenant as u64]);
            StreamReader::start(&deployment.api_url, org_id, random)
        });
        Self {
            readers: readers.into(),
            states: BTreeMap::new(),
            contents: BTreeMap::new(),
            checked_position: 0,
            totals: EventTotals::default(),
        }
    }

    /// Waits until all events are received and agree with the messages of the clients. Returns the
    /// mismatches, if there are any after the timeout.
    pub async fn wait_until_correct(
        &mut self,
        deployment: &ChaosDeployment,
        clients: &[TrackedClient],
    ) -> Result<Vec<Mismatch>, String> {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            let is_late = Instant::now() > deadline;
            match self.check(deployment, clients).await {
                Ok(mismatches) if mismatches.is_empty() => return Ok(mismatches),
                Ok(mismatches) if is_late => return Ok(mismatches),
                Err(error) if is_late => return Err(error),
                Ok(_) | Err(_) => {}
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Checks the events after the previous round. If all are correct, the next check starts after them.
    async fn check(
        &mut self,
        deployment: &ChaosDeployment,
        clients: &[TrackedClient],
    ) -> Result<Vec<Mismatch>, String> {
        let rows = EventRows::read(deployment).await?;
        let mut mismatches = Vec::new();
        let mut add = |client_id: &str, description: String| {
            mismatches.push(Mismatch {
                client_id: client_id.to_owned(),
                description,
            });
        };
        let events = self.received_events(rows.newest_position, &mut add);
        if rows.outbox_count > 0 {
            add(
                "outbox",
                format!("{} events have no position", rows.outbox_count),
            );
        }
        let mut events_by_client: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        let first_new = self.checked_position + 1;
        for event in events.range(first_new..).map(|(_, event)| event) {
            let client_id = event["client_id"].as_str().unwrap_or_default();
            events_by_client.entry(client_id).or_default().push(event);
        }
        let mut checked_clients = BTreeMap::new();
        for client in clients {
            let client_id = &client.profile.client_id;
            let client_events = events_by_client.get(client_id.as_str());
            let client_events = client_events.map_or(&[][..], Vec::as_slice);
            match self.check_client(deployment.mode, client, client_events, &rows) {
                Ok(checked) => {
                    checked_clients.insert(client_id.clone(), checked);
                }
                Err(description) => add(client_id, description),
            }
        }
        if mismatches.is_empty() && deployment.cluster().is_some() {
            let topic_messages =
                event_topic::check(deployment, &events, rows.newest_position).await?;
            self.totals.topic_messages = topic_messages;
        }
        if mismatches.is_empty() {
            self.finish_round(clients, checked_clients, rows.newest_position);
        }
        Ok(mismatches)
    }

    /// Returns the events of both organizations. Adds a mismatch if a position is missing, or if a
    /// stream has violated a rule.
    fn received_events(
        &self,
        newest_position: u64,
        add: &mut impl FnMut(&str, String),
    ) -> BTreeMap<u64, Value> {
        let mut events = BTreeMap::new();
        for reader in &self.readers {
            let received = reader.received.lock();
            let stream = format!("stream of {}", reader.org_id);
            for violation in &received.violations {
                add(&stream, violation.clone());
            }
            if received.position < newest_position {
                let position = received.position;
                add(
                    &stream,
                    format!("position {position}, newest is {newest_position}"),
                );
            }
            for (position, event) in &received.events {
                if events.insert(*position, event.clone()).is_some() {
                    add(
                        &stream,
                        format!("another organization has event {position}, too"),
                    );
                }
            }
        }
        let missing = (1..=newest_position).filter(|position| !events.contains_key(position));
        let missing: Vec<u64> = missing.take(10).collect();
        if !missing.is_empty() {
            add(
                "streams",
                format!("no stream has the positions {missing:?}"),
            );
        }
        events
    }

    /// Checks the events of a client since the previous round.
    fn check_client(
        &self,
        mode: DeploymentMode,
        client: &TrackedClient,
        events: &[&Value],
        rows: &EventRows,
    ) -> Result<CheckedClient, String> {
        let profile = &client.profile;
        let history = client.history.lock();
        let unknown = BTreeSet::from([ModelState::default()]);
        let starts = self.states.get(&profile.client_id).unwrap_or(&unknown);
        let start_number = starts.first().map_or(0, |start| start.transitions);
        let history_rows = rows.history.get(&profile.client_id);
        let history_rows = history_rows.map_or(&[][..], Vec::as_slice);
        let new_rows: Vec<&HistoryRow> = history_rows
            .iter()
            .filter(|row| row.number > start_number)
            .collect();
        let transitions = rows.transition_counts.get(&profile.client_id);
        let transitions = transitions.copied().unwrap_or(0);
        check_history(&new_rows, start_number, transitions)?;
        let expected_online = history.expected.expected_row_content();
        let mut checked = CheckedClient {
            states: BTreeSet::from([ModelState {
                is_connected: expected_online.is_some(),
                revision: None,
                transitions,
            }]),
            content: None,
            step_count: history.expected.steps.len(),
            merged_transitions: (transitions - start_number).saturating_sub(new_rows.len() as u64),
            repeats: 0,
        };
        if profile.tenant == TenantKind::None {
            return match events {
                [] => Ok(checked),
                _ => Err(format!("events of a tenantless client: {events:?}")),
            };
        }
        // The recorder looks up no tenant for a new client that has connected and disconnected within a
        // batch. Its organization does not see the client.
        let visible_rows = new_rows
            .iter()
            .copied()
            .filter(|row| !row.org_id.is_empty());
        let numbers = match_history(events, visible_rows)?;
        checked.content = self.contents.get(&profile.client_id).cloned();
        let mut observed = Vec::new();
        for (event, number) in events.iter().zip(numbers) {
            observed.push(observe(event, number, profile, &mut checked.content)?);
        }
        let expected_revision =
            expected_online.and_then(|online| online.facts["revision"].as_u64());
        let mut error = String::new();
        let max_repeats = match mode {
            DeploymentMode::Embedded => &MAX_REPEATS[..1],
            DeploymentMode::Distributed => &MAX_REPEATS[..],
        };
        for max_repeats in max_repeats {
            let explanation = Explanation {
                steps: &history.expected.steps,
                observed: &observed,
                max_repeats: *max_repeats,
                commits_before_acknowledging: mode == DeploymentMode::Embedded,
            };
            match explanation.find(starts) {
                Ok(mut states) => {
                    let possible = states.clone();
                    states.retain(|state| {
                        state.transitions == transitions
                            && state.is_connected == expected_online.is_some()
                            && (!state.is_connected || state.revision == expected_revision)
                    });
                    if !states.is_empty() {
                        checked.states = states;
                        checked.repeats = *max_repeats;
                        return Ok(checked);
                    }
                    error = format!(
                        "{transitions} transitions are stored, and revision {expected_revision:?} \
                         is expected, but the messages and events lead to {possible:?}"
                    );
                }
                Err(reason) => error = reason,
            }
        }
        let steps = &history.expected.steps;
        Err(format!(
            "{error}\n      start {starts:?}\n      events {observed:?}\n      steps {steps:?}"
        ))
    }

    /// Stores the state from which the next round starts.
    fn finish_round(
        &mut self,
        clients: &[TrackedClient],
        checked_clients: BTreeMap<String, CheckedClient>,
        newest_position: u64,
    ) {
        for client in clients {
            let checked = checked_clients.get(&client.profile.client_id);
            let step_count = checked.map_or(0, |checked| checked.step_count);
            client.history.lock().expected.steps.drain(..step_count);
        }
        for (client_id, checked) in checked_clients {
            self.totals.merged_transitions += checked.merged_transitions;
            self.totals.clients_with_repeats += u64::from(checked.repeats > 0);
            self.states.insert(client_id.clone(), checked.states);
            match checked.content {
                Some(content) => self.contents.insert(client_id, content),
                None => self.contents.remove(&client_id),
            };
        }
        self.checked_position = newest_position;
        self.totals.events = newest_position;
        self.totals.streams = StreamTotals::default();
        for reader in &self.readers {
            let StreamTotals {
                connections,
                repeated_events,
                slow_resets,
            } = reader.received.lock().totals;
            self.totals.streams.connections += connections;
            self.totals.streams.repeated_events += repeated_events;
            self.totals.streams.slow_resets += slow_resets;
        }
    }
}

/// Checks that the numbers increase, that odd numbers are online and even numbers offline, and that the
/// statuses alternate. Transitions are merged in pairs.
fn check_history(rows: &[&HistoryRow], start_number: u64, last: u64) -> Result<(), String> {
    let mut previous = start_number;
    for row in rows {
        let status = if row.number % 2 == 1 {
            "online"
        } else {
            "offline"
        };
        let is_next = row.number > previous && (row.number - previous) % 2 == 1;
        if row.status != status || !is_next || row.number > last {
            return Err(format!(
                "wrong history row {row:?} after number {previous}; the row of the client has \
                 {last} transitions"
            ));
        }
        previous = row.number;
    }
    if (last - previous) % 2 == 0 {
        Ok(())
    } else {
        Err(format!(
            "no history row for the last of {last} transitions; the latest row has number {previous}"
        ))
    }
}

/// Returns the number of the transition of each event, 0 for `connection.updated`. Each history row must
/// have exactly one event.
fn match_history<'a>(
    events: &[&Value],
    mut rows: impl Iterator<Item = &'a HistoryRow>,
) -> Result<Vec<u64>, String> {
    let mut numbers = Vec::with_capacity(events.len());
    for event in events {
        if event["type"] == "connection.updated" {
            numbers.push(0);
            continue;
        }
        let row = rows.next();
        let row = row.ok_or_else(|| format!("event without a history row: {event}"))?;
        let time: Option<Timestamp> = event["time"].as_str().and_then(|time| time.parse().ok());
        let reason_field = if row.status == "online" {
            "cause"
        } else {
            "reason"
        };
        let is_equal = event["type"] == format!("connection.{}", row.status)
            && event[reason_field] == row.reason
            && event["org_id"] == row.org_id
            && time.map(Timestamp::as_microsecond) == Some(row.at_micros);
        if !is_equal {
            return Err(format!(
                "the event {event} differs from the history row {row:?}"
            ));
        }
        numbers.push(row.number);
    }
    match rows.next() {
        Some(row) => Err(format!("history row without an event: {row:?}")),
        None => Ok(numbers),
    }
}

/// Converts an event, and checks its fields. `content` has the content of the client before the event, and
/// then the content after it.
fn observe(
    event: &Value,
    number: u64,
    profile: &crate::plan::Profile,
    content: &mut Option<Value>,
) -> Result<ObservedEvent, String> {
    const PARTS: [&str; 3] = ["canonical_facts", "dispatchers", "tags"];
    let (_, account) = profile.tenant.org_and_account();
    if event["account"] != account {
        return Err(format!("wrong account: {event}"));
    }
    if event["type"] == "connection.offline" {
        let previous = content.take();
        let previous = previous.ok_or_else(|| format!("already offline: {event}"))?;
        // The content can have changed in the same batch. Its event then precedes this one.
        if event["dispatchers"] != previous["dispatchers"] {
            return Err(format!("not the latest dispatchers {previous}: {event}"));
        }
        return Ok(ObservedEvent::Offline { number });
    }
    let revision = event["canonical_facts"]["revision"].as_u64();
    let revision = revision.ok_or_else(|| format!("no revision: {event}"))?;
    let expected = dialect::online_content(profile, revision, None, Timestamp::UNIX_EPOCH);
    let expected = [expected.facts, expected.dispatchers, expected.tags];
    if PARTS.map(|part| event[part].clone()) != expected {
        return Err(format!("not the content that the client has sent: {event}"));
    }
    let previous = content.replace((*event).clone());
    if event["type"] == "connection.online" {
        return match previous {
            None => Ok(ObservedEvent::Online { number, revision }),
            Some(_) => Err(format!("already online: {event}")),
        };
    }
    let previous = previous.ok_or_else(|| format!("not online: {event}"))?;
    let changed: Vec<&str> = PARTS
        .into_iter()
        .filter(|part| previous[part] != event[part])
        .collect();
    if changed.is_empty() || event["changed"] != serde_json::json!(changed) {
        return Err(format!("`changed` must be {changed:?}: {event}"));
    }
    Ok(ObservedEvent::Updated { revision })
}
