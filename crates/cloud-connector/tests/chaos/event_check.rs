//! Compares the events that callers receive with the history in the database, with the Kafka topic and
//! with the messages of each client (`event_model`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::check::{Mismatch, TrackedClient};
use crate::deployment::ChaosDeployment;
use crate::event_client::{CheckedClient, ClientEvents};
use crate::event_model::ModelState;
use crate::event_rows::EventRows;
use crate::event_stream::{StreamReader, StreamTotals};
use crate::event_topic;
use crate::plan::{DeploymentMode, TenantKind};
use crate::random::Random;

/// All events must be received within this time after the end of a round.
const EVENT_TIMEOUT: Duration = Duration::from_mins(2);
const POLL_INTERVAL: Duration = Duration::from_millis(500);
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
        // The tasks of the clients continue meanwhile.
        tokio::task::block_in_place(|| {
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
        });
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
        let client_id = &client.profile.client_id;
        let unknown = BTreeSet::from([ModelState::default()]);
        let starts = self.states.get(client_id).unwrap_or(&unknown);
        let history_rows = rows.history.get(client_id);
        let transitions = rows.transition_counts.get(client_id);
        // The clients must not wait for the lock.
        let expected = client.history.lock().expected.clone();
        let client_events = ClientEvents {
            mode,
            profile: &client.profile,
            expected: &expected,
            events,
            history: history_rows.map_or(&[], Vec::as_slice),
            transitions: transitions.copied().unwrap_or(0),
            starts,
        };
        client_events.check(self.contents.get(client_id).cloned())
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
