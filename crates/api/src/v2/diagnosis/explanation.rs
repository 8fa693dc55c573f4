//! Derives the summary and the suggestion of a diagnosis from the facts about a client.

use super::NextLookup;
use super::rejections::{TAKEN_OVER, duplicate_id_suggestion, suggestion as rejection_suggestion};
use crate::LookupRetries;
use domain::{BrokerRejection, OfflineReason, OrgId, Timestamp};
use store::{ClientRecord, ClientStatus, HistoryEntry, StoredDeadLetter};

/// Number of reconnects within an hour above which the connection of a client is unstable.
const MANY_RECONNECTS: u64 = 10;
/// Time in which reconnects and takeovers are recent, in seconds.
const RECENT_SECONDS: i64 = 3600;

const EXTERNAL_BROKER_HINT: &str =
    " The log of the external MQTT broker shows whether it rejected the client.";

/// What is known about a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientFacts<'a> {
    pub now: Timestamp,
    /// The stored client. `None` if the client is unknown.
    pub record: Option<&'a ClientRecord>,
    /// The latest history entries of all organizations, newest first.
    pub history: &'a [HistoryEntry],
    /// The latest dead letters, last received first.
    pub dead_letters: &'a [StoredDeadLetter],
    /// The latest rejections by the embedded broker. `None` with an external broker.
    pub rejections: Option<&'a [BrokerRejection]>,
    pub lookup_retries: LookupRetries,
}

/// Why a client can or cannot be reached, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Explanation {
    /// One sentence.
    pub summary: String,
    /// What to do. `None` if there is no known problem.
    pub suggestion: Option<String>,
}

/// Explains the state of a client.
pub(super) fn explain(facts: &ClientFacts<'_>) -> Explanation {
    let (summary, suggestion) = match facts.record {
        None => facts.explain_unknown(),
        Some(record) => match (record.status, &record.tenant) {
            (ClientStatus::Disconnected { at, reason }, _) => {
                facts.explain_disconnected(record, at, reason)
            }
            (ClientStatus::Connected, None) => facts.explain_tenantless(record),
            (ClientStatus::Connected, Some(tenant)) => {
                facts.explain_connected(record, &tenant.org_id)
            }
        },
    };
    Explanation {
        summary,
        suggestion,
    }
}

/// The latest sign of a problem after a time.
enum Problem<'a> {
    Rejection(&'a BrokerRejection),
    DeadLetter(&'a StoredDeadLetter),
}

impl ClientFacts<'_> {
    fn explain_unknown(&self) -> (String, Option<String>) {
        match self.latest_problem_after(Timestamp::MIN) {
            Some(Problem::Rejection(rejection)) => (
                format!(
                    "The client has never been connected: the broker rejected it at {} with the reason {}.",
                    time(rejection.at),
                    rejection.reason
                ),
                Some(rejection_suggestion(rejection)),
            ),
            Some(Problem::DeadLetter(dead_letter)) => (
                format!(
                    "The client has never been recorded as connected: its message at {} was rejected with \
                     the reason {}.",
                    time(dead_letter.last_received),
                    dead_letter.reason
                ),
                Some(dead_letter_suggestion(dead_letter)),
            ),
            None => {
                let suggestion = "Check that the client id is spelled correctly and is the common name of \
                     the machine's certificate, that the client program on the machine is running, and \
                     that it can reach the broker. GET /v2/clients?search= finds a client by its FQDN.";
                (
                    "The client is unknown: no online message of it was received, or its data was deleted \
                     after a long disconnect."
                        .to_owned(),
                    Some(suggestion.to_owned() + self.external_broker_hint()),
                )
            }
        }
    }

    fn explain_disconnected(
        &self,
        record: &ClientRecord,
        at: Timestamp,
        reason: Option<OfflineReason>,
    ) -> (String, Option<String>) {
        let subject = match &record.tenant {
            Some(tenant) => format!("The client of organization {}", tenant.org_id),
            None => "The client, which belongs to no organization,".to_owned(),
        };
        let cause = match reason {
            // The row says connected, but the embedded broker has no connection of the client.
            None if self.latest_entry_is_online() => {
                "the client has not reconnected since the service was restarted"
            }
            reason => offline_cause(reason),
        };
        let summary = format!(
            "{subject} has been disconnected since {}: {cause}",
            time(at)
        );
        match self.latest_problem_after(at) {
            Some(Problem::Rejection(rejection)) => {
                let summary = format!(
                    "{summary}, and the broker rejected it at {} with the reason {}.",
                    time(rejection.at),
                    rejection.reason
                );
                (summary, Some(rejection_suggestion(rejection)))
            }
            Some(Problem::DeadLetter(dead_letter)) => {
                let summary = format!(
                    "{summary}, and its message at {} was rejected with the reason {}.",
                    time(dead_letter.last_received),
                    dead_letter.reason
                );
                (summary, Some(dead_letter_suggestion(dead_letter)))
            }
            None if self.is_unstable(record) => {
                let summary = format!("{summary}, after {}.", reconnects(record));
                (
                    summary,
                    Some(duplicate_id_suggestion(&self.taken_over_peers())),
                )
            }
            None => {
                let may_try_to_connect = !matches!(
                    reason,
                    Some(OfflineReason::Client | OfflineReason::Disconnected)
                );
                let hint = if may_try_to_connect {
                    self.external_broker_hint()
                } else {
                    ""
                };
                let suggestion = offline_suggestion(reason).to_owned() + hint;
                (summary + ".", Some(suggestion))
            }
        }
    }

    fn explain_tenantless(&self, record: &ClientRecord) -> (String, Option<String>) {
        let lost = self
            .latest_offline_entry()
            .filter(|entry| entry.reason == OfflineReason::TenantLost.as_str());
        let state = match lost {
            Some(entry) => format!(
                "The client is connected, but it has not belonged to {} since {}",
                organization(entry.org.as_ref()),
                time(entry.at)
            ),
            None => "The client is connected, but it belongs to no organization".to_owned(),
        };
        let (failed, max) = (record.failed_lookups, self.lookup_retries.max_attempts);
        let register = "Check the registration of the machine: the tenant lookup must find an organization \
             for the client id.";
        match NextLookup::of(record, self.lookup_retries) {
            NextLookup::GaveUp => {
                let summary = format!(
                    "{state}: {failed} lookups found none, and there is no further lookup."
                );
                let client = &record.client_id;
                let suggestion = format!(
                    "{register} Then run `cloud-connector tenantless retry {client}`, or restart the client."
                );
                (summary, Some(suggestion))
            }
            NextLookup::At(next) => {
                let was_looked_up = record
                    .last_lookup_at
                    .is_some_and(|time| time > Timestamp::UNIX_EPOCH);
                let lookups = match failed {
                    0 if was_looked_up => {
                        format!("the tenant lookup found none, and is repeated at most {max} times")
                    }
                    0 => "the tenant lookup has not answered yet".to_owned(),
                    _ => format!("{failed} of at most {max} lookups found none"),
                };
                let summary = format!("{state}: {lookups}.");
                let when = if next <= self.now {
                    "The next lookup is due now; `cloud-connector update-tenantless` runs it."
                        .to_owned()
                } else {
                    format!("The next lookup is after {}.", time(next))
                };
                (summary, Some(format!("{register} {when}")))
            }
        }
    }

    fn explain_connected(&self, record: &ClientRecord, org: &OrgId) -> (String, Option<String>) {
        let since = record.connected_since;
        let summary = format!(
            "The client has been connected to organization {org} since {}",
            time(since)
        );
        if self.is_unstable(record) {
            let peers = self.taken_over_peers();
            let problem = if record.hourly_reconnects >= MANY_RECONNECTS {
                reconnects(record)
            } else {
                "connections with the same client id that replace each other".to_owned()
            };
            let summary =
                format!("{summary}, but its connection is unstable: there were {problem}.");
            return (summary, Some(duplicate_id_suggestion(&peers)));
        }
        match self.latest_problem_after(since) {
            Some(Problem::Rejection(rejection)) => {
                let summary = format!(
                    "{summary}, but the broker rejected a request with this client id at {} with the \
                     reason {}.",
                    time(rejection.at),
                    rejection.reason
                );
                return (summary, Some(rejection_suggestion(rejection)));
            }
            Some(Problem::DeadLetter(dead_letter)) => {
                let summary = format!(
                    "{summary}, but its message at {} was rejected with the reason {}.",
                    time(dead_letter.last_received),
                    dead_letter.reason
                );
                return (summary, Some(dead_letter_suggestion(dead_letter)));
            }
            None => {}
        }
        let moved = self.latest_offline_entry().filter(|entry| {
            entry.reason == OfflineReason::Moved.as_str() && entry.org.as_ref() != Some(org)
        });
        match moved {
            Some(entry) => {
                let previous = organization(entry.org.as_ref());
                let suggestion = format!(
                    "Send messages on behalf of organization {org}, because {previous} can no longer \
                     reach the client. If the move was not intended, register the machine again with \
                     the right organization."
                );
                let summary = format!("{summary}; it moved from {previous} at {}.", time(entry.at));
                (summary, Some(suggestion))
            }
            None => (summary + ".", None),
        }
    }

    /// Returns the latest rejection or dead letter after a time, whichever is later.
    fn latest_problem_after(&self, after: Timestamp) -> Option<Problem<'_>> {
        let rejections = self.rejections.unwrap_or_default().iter();
        let rejection = rejections
            .filter(|rejection| rejection.at > after)
            .max_by_key(|rejection| rejection.at);
        let dead_letters = self.dead_letters.iter();
        let dead_letter = dead_letters
            .filter(|dead_letter| dead_letter.last_received > after)
            .max_by_key(|dead_letter| dead_letter.last_received);
        match (rejection, dead_letter) {
            (Some(rejection), Some(dead_letter)) if rejection.at < dead_letter.last_received => {
                Some(Problem::DeadLetter(dead_letter))
            }
            (Some(rejection), _) => Some(Problem::Rejection(rejection)),
            (None, dead_letter) => dead_letter.map(Problem::DeadLetter),
        }
    }

    fn latest_entry_is_online(&self) -> bool {
        let latest = self.history.first();
        latest.is_some_and(|entry| entry.status == "online")
    }

    fn latest_offline_entry(&self) -> Option<&HistoryEntry> {
        self.history.iter().find(|entry| entry.status == "offline")
    }

    /// Returns whether the client has reconnected often, or was taken over repeatedly, within the last
    /// hour.
    fn is_unstable(&self, record: &ClientRecord) -> bool {
        let reconnects_often = record.hourly_reconnects >= MANY_RECONNECTS
            && record
                .hourly_reconnects_since
                .is_some_and(|since| self.is_recent(since));
        reconnects_often || !self.taken_over_peers().is_empty()
    }

    /// Returns the addresses of the latest takeovers within the last hour.
    fn taken_over_peers(&self) -> Vec<&str> {
        let rejections = self.rejections.unwrap_or_default().iter();
        let mut peers: Vec<&str> = rejections
            .filter(|rejection| rejection.reason == TAKEN_OVER && self.is_recent(rejection.at))
            .map(|rejection| rejection.peer.as_str())
            .collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }

    fn is_recent(&self, time: Timestamp) -> bool {
        self.now.as_second().saturating_sub(time.as_second()) <= RECENT_SECONDS
    }

    fn external_broker_hint(&self) -> &'static str {
        if self.rejections.is_none() {
            EXTERNAL_BROKER_HINT
        } else {
            ""
        }
    }
}

/// Returns a time without fractions of a second.
fn time(time: Timestamp) -> String {
    let seconds = Timestamp::from_second(time.as_second());
    seconds.unwrap_or(time).to_string()
}

fn organization(org: Option<&OrgId>) -> String {
    org.map_or_else(
        || "no organization".to_owned(),
        |org| format!("organization {org}"),
    )
}

fn reconnects(record: &ClientRecord) -> String {
    let since = record.hourly_reconnects_since.map(time).unwrap_or_default();
    format!("{} reconnects since {since}", record.hourly_reconnects)
}

fn offline_cause(reason: Option<OfflineReason>) -> &'static str {
    match reason {
        Some(OfflineReason::Client) => "the client closed its connection",
        Some(OfflineReason::Will) => {
            "the connection was lost, and the broker published the last will of the client"
        }
        Some(OfflineReason::Disconnected) => "a caller of the API disconnected the client",
        Some(OfflineReason::Expired) => "the client did not respond to pings",
        Some(OfflineReason::BrokerRestart) => {
            "the client has not reconnected after a restart of the broker"
        }
        Some(OfflineReason::TenantLost) => {
            "the tenant lookup found that the client no longer belongs to an organization"
        }
        Some(OfflineReason::Moved) => "the client moved to another organization",
        None => "the reason was not recorded",
    }
}

fn offline_suggestion(reason: Option<OfflineReason>) -> &'static str {
    match reason {
        Some(OfflineReason::Client) => {
            "Check whether the machine is switched off or the client program was stopped. Start the \
             client program to connect the client again."
        }
        Some(OfflineReason::Will) => {
            "Check that the machine is running and that it can reach the broker. The client connects \
             again by itself as soon as it can."
        }
        Some(OfflineReason::Disconnected) => {
            "The audit log contains the caller and the time of the request. The client does not connect \
             again by itself: start the client program on the machine again."
        }
        Some(OfflineReason::Expired) => {
            "Check whether the machine is suspended or overloaded, and whether a firewall drops the idle \
             connection. The next message of the client shows it as connected again."
        }
        Some(OfflineReason::BrokerRestart) => {
            "Check that the machine is running and that it can reach the broker. Other clients have \
             reconnected by themselves; otherwise restart the client program on the machine."
        }
        Some(OfflineReason::TenantLost | OfflineReason::Moved) => {
            "Check the registration of the machine: its client id must belong to the right organization. \
             Then restart the client program on the machine."
        }
        None => {
            "Check that the machine is running and that it can reach the broker. After a restart of the \
             service, clients need up to broker.reconnect_grace to reconnect."
        }
    }
}

fn dead_letter_suggestion(dead_letter: &StoredDeadLetter) -> String {
    format!(
        "Update the client program, or correct its configuration: its message on the topic {} is invalid \
         ({}). `cloud-connector dead-letters show {}` shows the message.",
        dead_letter.topic, dead_letter.detail, dead_letter.id
    )
}
