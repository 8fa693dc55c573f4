//! The steps of one batch: parse, read what is known, fold, look tenants up, write.

use std::collections::HashMap;

use futures::future::join_all;
use tokio::time::Instant;

use super::announce::{Arrived, HeardOf};
use super::fold::{self, Fate, Settled, Step, Voice};
use super::losses::Judgement;
use super::{Event, Parts, split};
use crate::domain::{ClientId, Tenant, Timestamp};
use crate::protocol::{self, ClientTopic, Direction, Received, Refusal, Rejected, Said};
use crate::store::{
    Arrival, Batch, DeadLetter, Departure, Fence, Heard, Known, Sighting, StoreError, TenantChange,
    Written,
};
use crate::telemetry::metrics;
use crate::tenant::Lookup;

/// A batch's messages, gone through once.
#[derive(Default)]
struct Parsed {
    /// Each client's steps, in order.
    steps: HashMap<ClientId, Vec<Step>>,
    /// What can never be processed.
    dead_letters: Vec<DeadLetter>,
    /// Clients to be told that their handshake was not taken.
    refusals: Vec<(ClientTopic, Refusal)>,
}

/// Records events in one transaction.
pub(super) async fn record(
    parts: &Parts,
    events: &[&Event],
    fences: &[Fence],
    heard_of: &mut HeardOf,
) -> Result<Written, StoreError> {
    let now = parts.clock.now();
    let parsed = parse(events, now);
    let clients: Vec<ClientId> = parsed.steps.keys().cloned().collect();
    let known = if clients.is_empty() {
        HashMap::new()
    } else {
        parts.store.known(&clients).await?
    };
    let (mut batch, sources, judgement) = settle(parts, &known, parsed.steps, heard_of, now).await;
    batch.dead_letters = parsed.dead_letters;
    batch.letters = parts.settings.letters;
    let arrived = batch.arrivals.len();
    let (seen, left) = (batch.sightings.len(), batch.departures.len());
    let written = if batch.is_empty() {
        Written::Done
    } else {
        split::write(parts, batch, events, &sources, fences, now).await?
    };
    if written == Written::Done && parts.losses.is_overruled(&judgement) {
        give_back(parts, &judgement.taken, now).await;
    }
    if written == Written::Done {
        metrics::recorded("online", arrived);
        metrics::recorded("alive", seen);
        metrics::recorded("offline", left);
        for refusal in parsed.refusals {
            parts.refusals.tell(refusal);
        }
    }
    Ok(written)
}

/// Parses every message. What can never be processed is set aside here, with its reason.
fn parse(events: &[&Event], now: Timestamp) -> Parsed {
    let mut parsed = Parsed::default();
    for (at, event) in events.iter().enumerate() {
        match event {
            Event::LinkEnded { client } => {
                let step = Step::LinkEnded { at: now };
                parsed.steps.entry(client.clone()).or_default().push(step);
            }
            Event::Stray { message } => {
                parsed.set_aside(None, message, &Rejected::unknown_topic());
            }
            Event::Message { topic, message, .. } => parsed.take(at, event, topic, message),
        }
    }
    parsed
}

impl Parsed {
    fn take(&mut self, at: usize, event: &Event, topic: &ClientTopic, message: &Received) {
        let client = &topic.client;
        match protocol::read(topic.route, message) {
            Ok(Said::Refused(refusal)) => {
                self.set_aside(Some(client), message, &refusal.why);
                let back = ClientTopic {
                    route: protocol::Route::Handshake(Direction::ToClient),
                    ..topic.clone()
                };
                self.refusals.push((back, refusal));
            }
            Ok(said) => match step(at, event, topic, message, said) {
                Some(step) => self.steps.entry(client.clone()).or_default().push(step),
                None => metrics::without_effect(client, "not_presence"),
            },
            Err(why) => self.set_aside(Some(client), message, &why),
        }
    }

    /// The same message twice in a batch is one letter: a statement can touch a row once.
    fn set_aside(&mut self, client: Option<&ClientId>, message: &Received, why: &Rejected) {
        metrics::dead_letter(&message.topic, why);
        let letter = DeadLetter::new(client.cloned(), message, why);
        let same = |other: &DeadLetter| {
            other.sha256 == letter.sha256
                && other.topic == letter.topic
                && other.client == letter.client
        };
        if !self.dead_letters.iter().any(same) {
            self.dead_letters.push(letter);
        }
    }
}

fn step(
    at: usize,
    event: &Event,
    topic: &ClientTopic,
    message: &Received,
    said: Said,
) -> Option<Step> {
    let Event::Message { place, late, .. } = event else {
        return None;
    };
    let heard = Heard {
        at: message.received,
        place: *place,
    };
    match said {
        Said::Online(online) => Some(Step::Online {
            online,
            dialect: topic.route.dialect(),
            prefix: topic.prefix.clone(),
            heard,
            voice: match message {
                Received { again: true, .. } => Voice::OperatorsReplay,
                Received { replayed: true, .. } => Voice::BrokersReplay,
                _ => Voice::Now,
            },
            event: at,
        }),
        // An old farewell must not take a client away that has come back.
        Said::Offline if message.again => None,
        Said::Offline => Some(Step::Offline { heard }),
        // What was kept says nothing about now.
        Said::Alive | Said::Answer(_) if message.replayed || message.again => None,
        Said::Alive | Said::Answer(_) => Some(Step::Alive {
            at: message.received,
            late: *late,
        }),
        Said::Refused(_) | Said::Nothing => None,
    }
}

/// Folds each client's messages, and looks up the tenants of those that end connected. Says, too,
/// which event each arrival is of.
async fn settle(
    parts: &Parts,
    known: &HashMap<ClientId, Known>,
    steps: HashMap<ClientId, Vec<Step>>,
    heard_of: &mut HeardOf,
    now: Timestamp,
) -> (Batch, HashMap<ClientId, usize>, Judgement) {
    let mut fates = Vec::with_capacity(steps.len());
    for (client, steps) in steps {
        let fate = fold::fold(
            known.get(&client),
            steps,
            parts.settings.old_within,
            |why| metrics::without_effect(&client, why.reason()),
        );
        if fate != Fate::default() {
            fates.push((client, fate));
        }
    }
    // In order, so that writers side by side never wait for each other in a circle.
    fates.sort_by(|a, b| a.0.cmp(&b.0));
    let mut lookups = look_up(parts, &fates).await;
    let had = fates
        .iter()
        .zip(&mut lookups)
        .filter_map(|((client, _), lookup)| {
            let tenant = known.get(client).and_then(remembered)?;
            Some((client, tenant, lookup.as_mut()?))
        });
    let judgement = parts.losses.judge(had);
    give_back(parts, &judgement.back, now).await;
    announce(parts, &fates, &lookups, heard_of, now).await;
    let mut batch = Batch::default();
    let mut sources = HashMap::new();
    for ((client, fate), lookup) in fates.into_iter().zip(lookups) {
        let tenant = lookup.map(|lookup| change(lookup, known.get(&client), now));
        if let Some(settled) = fate.arrival {
            sources.insert(client.clone(), settled.event);
            let tenant = tenant.unwrap_or_else(|| as_it_was(known.get(&client)));
            let inventory = parts.inventory.as_ref();
            let is_host = inventory.is_some_and(|inventory| {
                let online = &settled.online;
                inventory.would_take(settled.dialect, online.kind, &online.reported)
            });
            let mut arrival = arrival(&client, *settled, tenant, is_host);
            arrival.announced_at = heard_of.at(&client, sources[&client]);
            batch.arrivals.push(arrival);
        } else if let Some(at) = fate.sighting {
            batch.sightings.push(Sighting {
                client_id: client.clone(),
                at,
                tenant,
            });
        }
        if let Some(heard) = fate.departure {
            let client_id = client;
            batch.departures.push(Departure { client_id, heard });
        }
    }
    (batch, sources, judgement)
}

fn arrival(
    client: &ClientId,
    settled: Settled,
    tenant: TenantChange,
    can_be_announced: bool,
) -> Arrival {
    let online = settled.online;
    Arrival {
        can_be_announced,
        announced_at: None,
        client_id: client.clone(),
        dialect: settled.dialect,
        kind: online.kind,
        topic_prefix: settled.prefix,
        reported: online.reported,
        message_id: online.message_id,
        message_sent: settled.sent,
        heard: settled.heard,
        alive_at: settled.alive_at,
        tenant,
    }
}

/// Looks everybody up at once, until the deadline. No answer in time is no answer. Nobody is looked
/// up who is gone in the end, or stays as it was.
async fn look_up(parts: &Parts, fates: &[(ClientId, Fate)]) -> Vec<Option<Lookup>> {
    let deadline = Instant::now() + parts.settings.tenant_deadline;
    let lookups = fates.iter().map(|(client, fate)| async move {
        if !fate.comes {
            return None;
        }
        let lookup = parts.tenants.lookup(client, deadline).await;
        metrics::tenant_lookup(lookup.outcome());
        Some(lookup)
    });
    join_all(lookups).await
}

/// Gives tenants back that were taken because of answers that are not believed any more.
async fn give_back(parts: &Parts, back: &[(ClientId, Tenant)], now: Timestamp) {
    if !back.is_empty()
        && let Err(error) = parts.store.restore_tenants(back, now).await
    {
        let clients = back.len();
        tracing::error!(%error, clients, "tenants that were wrongly taken are not given back");
    }
}

/// Tells inventory of those that were found. Who comes back by a sign of life is owed: what it is
/// stands in the store, and the stale updater reads it there.
async fn announce(
    parts: &Parts,
    fates: &[(ClientId, Fate)],
    lookups: &[Option<Lookup>],
    heard_of: &mut HeardOf,
    now: Timestamp,
) {
    let found = fates.iter().zip(lookups);
    let arrived: Vec<Arrived<'_>> = found
        .filter_map(|((client, fate), lookup)| {
            let (Some(settled), Some(Lookup::Found(found))) = (&fate.arrival, lookup) else {
                return None;
            };
            Some(Arrived {
                client,
                settled,
                found,
            })
        })
        .collect();
    if let Some(registrar) = &parts.sources {
        heard_of.register(registrar, &arrived);
    }
    if let Some(inventory) = &parts.inventory {
        heard_of.tell(inventory, arrived.into_iter(), now).await;
    }
}

fn change(lookup: Lookup, known: Option<&Known>, now: Timestamp) -> TenantChange {
    match lookup {
        Lookup::Found(found) => TenantChange::Found(found.tenant),
        Lookup::NotFound => TenantChange::NotFound(now),
        Lookup::Unavailable => as_it_was(known),
    }
}

/// The row's tenant; for a client that had left, the one it left with.
fn as_it_was(known: Option<&Known>) -> TenantChange {
    match known.and_then(remembered) {
        Some(tenant) => TenantChange::Kept(tenant),
        None => TenantChange::Unknown,
    }
}

fn remembered(known: &Known) -> Option<Tenant> {
    match (&known.connected, &known.departed) {
        (Some(row), _) => row.tenant.clone(),
        (None, Some(left)) => left.tenant.clone(),
        (None, None) => None,
    }
}
