//! The steps of one batch: parse, read what is known, apply, look tenants up, write.

use std::collections::HashMap;

use futures::future::join_all;
use tokio::time::Instant;

use super::inventory_step::{ConnectedHost, ReportedHosts};
use super::losses::MassLossVerdict;
use super::presence::{self, PresenceChange, PresenceSignal, ReplayKind, ResolvedOnline};
use super::{RecorderDeps, RecorderInput, bisect};
use crate::domain::{ClientId, Tenant, Timestamp};
use crate::protocol::{
    self, ClientMessage, ClientTopic, Direction, HandshakeError, InboundMessage, Rejection,
};
use crate::store::{
    ConnectionEnd, ConnectionUpsert, DeadLetter, HeartbeatUpdate, PartitionLease, PresenceBatch,
    ReceivedAt, StoreError, StoredState, TenantChange, WriteOutcome,
};
use crate::telemetry::metrics;
use crate::tenant::TenantLookupOutcome;

/// A batch's messages, gone through once.
#[derive(Default)]
struct ParsedBatch {
    /// Each client's steps, in order.
    steps: HashMap<ClientId, Vec<PresenceSignal>>,
    /// What can never be processed.
    dead_letters: Vec<DeadLetter>,
    /// Clients to be told that their handshake was not taken.
    refusals: Vec<(ClientTopic, HandshakeError)>,
}

/// Records events in one transaction.
pub(super) async fn record(
    parts: &RecorderDeps,
    events: &[&RecorderInput],
    fences: &[PartitionLease],
    heard_of: &mut ReportedHosts,
) -> Result<WriteOutcome, StoreError> {
    let now = parts.clock.now();
    let parsed = parse(events, now);
    let clients: Vec<ClientId> = parsed.steps.keys().cloned().collect();
    let known = if clients.is_empty() {
        HashMap::new()
    } else {
        parts.store.load_states(&clients).await?
    };
    let (mut batch, sources, judgement) =
        build_batch(parts, &known, parsed.steps, heard_of, now).await;
    batch.dead_letters = parsed.dead_letters;
    batch.letters = parts.settings.letters;
    let arrived = batch.arrivals.len();
    let (seen, left) = (batch.sightings.len(), batch.departures.len());
    let written = if batch.is_empty() {
        WriteOutcome::Committed
    } else {
        bisect::write(parts, batch, events, &sources, fences, now).await?
    };
    if written == WriteOutcome::Committed && parts.losses.is_overruled_since(&judgement) {
        restore_tenants(parts, &judgement.taken, now).await;
    }
    if written == WriteOutcome::Committed {
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
fn parse(events: &[&RecorderInput], now: Timestamp) -> ParsedBatch {
    let mut parsed = ParsedBatch::default();
    for (at, event) in events.iter().enumerate() {
        match event {
            RecorderInput::ConnectionClosed { client } => {
                let step = PresenceSignal::ConnectionClosed { at: now };
                parsed.steps.entry(client.clone()).or_default().push(step);
            }
            RecorderInput::UnknownTopic { message } => {
                parsed.dead_letter(None, message, &Rejection::unknown_topic());
            }
            RecorderInput::Message { topic, message, .. } => parsed.take(at, event, topic, message),
        }
    }
    parsed
}

impl ParsedBatch {
    fn take(
        &mut self,
        at: usize,
        event: &RecorderInput,
        topic: &ClientTopic,
        message: &InboundMessage,
    ) {
        let client = &topic.client;
        match protocol::read(topic.route, message) {
            Ok(ClientMessage::InvalidHandshake(refusal)) => {
                self.dead_letter(Some(client), message, &refusal.why);
                let back = ClientTopic {
                    route: protocol::Channel::Handshake(Direction::ToClient),
                    ..topic.clone()
                };
                self.refusals.push((back, refusal));
            }
            Ok(said) => match step(at, event, topic, message, said) {
                Some(step) => self.steps.entry(client.clone()).or_default().push(step),
                None => metrics::without_effect(client, "not_presence"),
            },
            Err(why) => self.dead_letter(Some(client), message, &why),
        }
    }

    /// The same message twice in a batch is one letter: a statement can touch a row once.
    fn dead_letter(
        &mut self,
        client: Option<&ClientId>,
        message: &InboundMessage,
        why: &Rejection,
    ) {
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
    event: &RecorderInput,
    topic: &ClientTopic,
    message: &InboundMessage,
    said: ClientMessage,
) -> Option<PresenceSignal> {
    let RecorderInput::Message { place, late, .. } = event else {
        return None;
    };
    let heard = ReceivedAt {
        at: message.received,
        place: *place,
    };
    match said {
        ClientMessage::Online(online) => Some(PresenceSignal::Online {
            online,
            dialect: topic.route.dialect(),
            prefix: topic.prefix.clone(),
            heard,
            voice: match message {
                InboundMessage { again: true, .. } => ReplayKind::RequestedByOperator,
                InboundMessage { replayed: true, .. } => ReplayKind::RetainedByBroker,
                _ => ReplayKind::Now,
            },
            event: at,
        }),
        // An old farewell must not take a client away that has come back.
        ClientMessage::Offline if message.again => None,
        ClientMessage::Offline => Some(PresenceSignal::Offline { heard }),
        // What was kept says nothing about now.
        ClientMessage::Heartbeat | ClientMessage::Response(_)
            if message.replayed || message.again =>
        {
            None
        }
        ClientMessage::Heartbeat | ClientMessage::Response(_) => Some(PresenceSignal::Alive {
            at: message.received,
            late: *late,
        }),
        ClientMessage::InvalidHandshake(_) | ClientMessage::Ignored => None,
    }
}

/// Folds each client's messages, and looks up the tenants of those that end connected. Says, too,
/// which event each arrival is of.
async fn build_batch(
    parts: &RecorderDeps,
    known: &HashMap<ClientId, StoredState>,
    steps: HashMap<ClientId, Vec<PresenceSignal>>,
    heard_of: &mut ReportedHosts,
    now: Timestamp,
) -> (PresenceBatch, HashMap<ClientId, usize>, MassLossVerdict) {
    let mut fates = Vec::with_capacity(steps.len());
    for (client, steps) in steps {
        let fate = presence::apply(
            known.get(&client),
            steps,
            parts.settings.stale_online_window,
            |why| metrics::without_effect(&client, why.reason()),
        );
        if fate != PresenceChange::default() {
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
            let tenant = known.get(client).and_then(known_tenant)?;
            Some((client, tenant, lookup.as_mut()?))
        });
    let judgement = parts.losses.judge(had);
    restore_tenants(parts, &judgement.back, now).await;
    announce(parts, &fates, &lookups, heard_of, now).await;
    let mut batch = PresenceBatch::default();
    let mut sources = HashMap::new();
    for ((client, fate), lookup) in fates.into_iter().zip(lookups) {
        let tenant = lookup.map(|lookup| change(lookup, known.get(&client), now));
        if let Some(settled) = fate.arrival {
            sources.insert(client.clone(), settled.event);
            let tenant = tenant.unwrap_or_else(|| keep_tenant(known.get(&client)));
            let inventory = parts.inventory.as_ref();
            let is_host = inventory.is_some_and(|inventory| {
                let online = &settled.online;
                inventory.is_eligible(settled.dialect, online.kind, &online.reported)
            });
            let mut arrival = arrival(&client, *settled, tenant, is_host);
            arrival.reported_to_inventory_at = heard_of.at(&client, sources[&client]);
            batch.arrivals.push(arrival);
        } else if let Some(at) = fate.sighting {
            batch.sightings.push(HeartbeatUpdate {
                client_id: client.clone(),
                at,
                tenant,
            });
        }
        if let Some(heard) = fate.departure {
            let client_id = client;
            batch.departures.push(ConnectionEnd { client_id, heard });
        }
    }
    (batch, sources, judgement)
}

fn arrival(
    client: &ClientId,
    settled: ResolvedOnline,
    tenant: TenantChange,
    inventory_eligible: bool,
) -> ConnectionUpsert {
    let online = settled.online;
    ConnectionUpsert {
        inventory_eligible,
        reported_to_inventory_at: None,
        client_id: client.clone(),
        dialect: settled.dialect,
        kind: online.kind,
        topic_prefix: settled.prefix,
        reported: online.reported,
        message_id: online.message_id,
        message_sent: settled.sent,
        heard: settled.heard,
        last_heartbeat_at: settled.last_heartbeat_at,
        tenant,
    }
}

/// Looks everybody up at once, until the deadline. No answer in time is no answer. Nobody is looked
/// up who is gone in the end, or stays as it was.
async fn look_up(
    parts: &RecorderDeps,
    fates: &[(ClientId, PresenceChange)],
) -> Vec<Option<TenantLookupOutcome>> {
    let deadline = Instant::now() + parts.settings.tenant_lookup_timeout;
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
async fn restore_tenants(parts: &RecorderDeps, back: &[(ClientId, Tenant)], now: Timestamp) {
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
    parts: &RecorderDeps,
    fates: &[(ClientId, PresenceChange)],
    lookups: &[Option<TenantLookupOutcome>],
    heard_of: &mut ReportedHosts,
    now: Timestamp,
) {
    let found = fates.iter().zip(lookups);
    let arrived: Vec<ConnectedHost<'_>> = found
        .filter_map(|((client, fate), lookup)| {
            let (Some(settled), Some(TenantLookupOutcome::Found(found))) = (&fate.arrival, lookup)
            else {
                return None;
            };
            Some(ConnectedHost {
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

fn change(
    lookup: TenantLookupOutcome,
    known: Option<&StoredState>,
    now: Timestamp,
) -> TenantChange {
    match lookup {
        TenantLookupOutcome::Found(found) => TenantChange::Found(found.tenant),
        TenantLookupOutcome::NotFound => TenantChange::NotFound(now),
        TenantLookupOutcome::Unavailable => keep_tenant(known),
    }
}

/// The row's tenant; for a client that had left, the one it left with.
fn keep_tenant(known: Option<&StoredState>) -> TenantChange {
    match known.and_then(known_tenant) {
        Some(tenant) => TenantChange::Keep(tenant),
        None => TenantChange::PendingLookup,
    }
}

fn known_tenant(known: &StoredState) -> Option<Tenant> {
    match (&known.connected, &known.departed) {
        (Some(row), _) => row.tenant.clone(),
        (None, Some(left)) => left.tenant.clone(),
        (None, None) => None,
    }
}
