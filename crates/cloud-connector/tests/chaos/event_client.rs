//! Checks the events of one client: against its rows in the history, and against its messages.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::Value;

use crate::dialect;
use crate::event_model::{Explanation, ModelState, ObservedEvent};
use crate::event_rows::HistoryRow;
use crate::model::{ExpectedState, Online};
use crate::plan::{DeploymentMode, Profile, TenantKind};

/// Maximum numbers of repeated messages that the check tries, one after the other. A message is repeated
/// only in distributed mode.
const MAX_REPEATS: [u32; 4] = [0, 2, 4, 6];

/// The events of a client since the previous round, and what they are compared with.
pub struct ClientEvents<'a> {
    pub mode: DeploymentMode,
    pub profile: &'a Profile,
    pub expected: &'a ExpectedState,
    pub events: &'a [&'a Value],
    /// All rows of the client in the history.
    pub history: &'a [HistoryRow],
    /// Number of all transitions of the client.
    pub transitions: u64,
    /// The possible states at the end of the previous round.
    pub starts: &'a BTreeSet<ModelState>,
}

/// The result of a client whose events are correct.
pub struct CheckedClient {
    /// The possible states of the client.
    pub states: BTreeSet<ModelState>,
    /// The content of a connected client, as the events describe it.
    pub content: Option<Value>,
    /// Number of steps of the client that are checked.
    pub step_count: usize,
    pub merged_transitions: u64,
    pub repeats: u32,
}

impl ClientEvents<'_> {
    /// `content` is the content of the client at the end of the previous round.
    pub fn check(&self, mut content: Option<Value>) -> Result<CheckedClient, String> {
        let start_number = self.starts.first().map_or(0, |start| start.transitions);
        let new_rows = self.history.iter().filter(|row| row.number > start_number);
        let new_rows: Vec<&HistoryRow> = new_rows.collect();
        match self.mode {
            DeploymentMode::Embedded => {
                check_history_with_takeovers(self.history, self.transitions)
            }
            DeploymentMode::Distributed => check_history(&new_rows, start_number, self.transitions),
        }?;
        let (states, repeats) = if self.profile.tenant == TenantKind::None {
            if !self.events.is_empty() {
                return Err(format!("events of a tenantless client: {:?}", self.events));
            }
            let state = ModelState {
                is_connected: self.expected.is_connected,
                revision: None,
                transitions: self.transitions,
            };
            (BTreeSet::from([state]), 0)
        } else {
            // The recorder looks up no tenant for a new client that has connected and disconnected
            // within a batch. Its organization does not see the client.
            let visible_rows = new_rows.iter().copied();
            let visible_rows =
                visible_rows.filter(|row| !row.org_id.is_empty() && !row.is_takeover());
            let numbers = match_history(self.events, visible_rows)?;
            let mut observed = Vec::new();
            for (event, number) in self.events.iter().zip(numbers) {
                observed.push(observe(event, number, self.profile, &mut content)?);
            }
            self.explain(&observed)?
        };
        let all_transitions = self.transitions - start_number;
        Ok(CheckedClient {
            states,
            content,
            step_count: self.expected.steps.len(),
            merged_transitions: all_transitions.saturating_sub(new_rows.len() as u64),
            repeats,
        })
    }

    /// Returns the states to which the messages and the events lead, and the maximum number of repeated
    /// messages that is necessary.
    fn explain(&self, observed: &[ObservedEvent]) -> Result<(BTreeSet<ModelState>, u32), String> {
        let expected_online = self.expected.expected_row_content();
        let expected_revision = expected_online.map(Online::revision);
        let steps = &self.expected.steps;
        let mut error = String::new();
        let max_repeats = match self.mode {
            DeploymentMode::Embedded => &MAX_REPEATS[..1],
            DeploymentMode::Distributed => &MAX_REPEATS[..],
        };
        for max_repeats in max_repeats {
            let explanation = Explanation {
                steps,
                observed,
                max_repeats: *max_repeats,
                commits_before_acknowledging: self.mode == DeploymentMode::Embedded,
            };
            match explanation.find(self.starts) {
                Ok(possible) => {
                    let is_expected = |state: &&ModelState| {
                        state.transitions == self.transitions
                            && state.is_connected == expected_online.is_some()
                            && (!state.is_connected || state.revision == expected_revision)
                    };
                    let states: BTreeSet<_> =
                        possible.iter().filter(is_expected).copied().collect();
                    if !states.is_empty() {
                        return Ok((states, *max_repeats));
                    }
                    error = format!(
                        "{} transitions are stored, and revision {expected_revision:?} is \
                         expected, but the messages and events lead to {possible:?}",
                        self.transitions
                    );
                }
                Err(reason) => error = reason,
            }
        }
        Err(format!(
            "{error}\n      start {:?}\n      events {observed:?}\n      steps {steps:?}",
            self.starts
        ))
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
    if (last - previous).is_multiple_of(2) {
        Ok(())
    } else {
        Err(format!(
            "no history row for the last of {last} transitions; the latest row has number {previous}"
        ))
    }
}

/// Like [`check_history`], for the embedded broker, which also counts takeovers. A takeover of a connected
/// client has a number, but changes no status, so only the order of the statuses can be checked.
fn check_history_with_takeovers(rows: &[HistoryRow], last: u64) -> Result<(), String> {
    let mut previous: Option<&HistoryRow> = None;
    for row in rows {
        let previous_status = previous.map_or("offline", |row| row.status.as_str());
        let is_next = previous.is_none_or(|previous| row.number > previous.number);
        let has_right_status = if row.is_takeover() {
            row.status == "online" && previous_status == "online"
        } else {
            row.status != previous_status
        };
        if !is_next || !has_right_status || row.number > last {
            return Err(format!(
                "wrong history row {row:?} after {previous:?}; the row of the client has {last} \
                 transitions"
            ));
        }
        previous = Some(row);
    }
    Ok(())
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
    profile: &Profile,
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
