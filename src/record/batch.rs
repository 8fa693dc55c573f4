//! The steps of one batch: parse, read what is known, fold, look tenants up, write.

use std::collections::HashMap;

use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::fold::{self, Fate, Settled, Step};
use super::{Event, Parts};
use crate::domain::{ClientId, Dialect, Kind, Tenant, Timestamp};
use crate::protocol::status::{Control, parse_control};
use crate::protocol::{Received, Rejected, Topics};
use crate::store::{Arrival, Batch, Fence, Known, StoreError, TenantChange, Written};
use crate::telemetry::metrics;
use crate::tenant::Lookup;

/// Each client's steps, in order.
type Steps = HashMap<ClientId, Vec<Step>>;

/// Records events in one transaction.
pub(super) async fn record(
    parts: &Parts,
    events: impl Iterator<Item = &Event>,
    fences: &[Fence],
) -> Result<Written, StoreError> {
    let steps = parse(&parts.topics, events);
    if steps.is_empty() {
        return Ok(Written::Done);
    }
    let clients: Vec<ClientId> = steps.keys().cloned().collect();
    let known = parts.store.known(&clients).await?;
    let (connected, departures) = fold_all(parts, &known, &steps);
    let now = parts.clock.now();
    let mut arrivals = with_tenants(parts, &known, connected, now).await;
    // In order, so that writers side by side never wait for each other in a circle.
    arrivals.sort_by(|a, b| a.client_id.cmp(&b.client_id));
    let batch = Batch {
        arrivals,
        departures,
    };
    if batch.is_empty() {
        return Ok(Written::Done);
    }
    let written = parts.store.record_batch(&batch, fences, now).await?;
    if written == Written::Done {
        metrics::recorded("online", batch.arrivals.len());
        metrics::recorded("offline", batch.departures.len());
    }
    Ok(written)
}

/// Parses every message. What can never be processed is set aside here, with its reason.
fn parse<'a>(topics: &Topics, events: impl Iterator<Item = &'a Event>) -> Steps {
    let mut steps = Steps::new();
    for event in events {
        match event {
            Event::LinkEnded { client } => {
                steps.entry(client.clone()).or_default().push(Step::Offline);
            }
            Event::Message { client, message } => match step(topics, message) {
                Ok(Some(step)) => steps.entry(client.clone()).or_default().push(step),
                Ok(None) => metrics::without_effect(client, "not_presence"),
                Err(rejected) => metrics::rejected(&message.topic, &rejected),
            },
        }
    }
    steps
}

fn fold_all(
    parts: &Parts,
    known: &HashMap<ClientId, Known>,
    steps: &Steps,
) -> (Vec<(ClientId, Settled)>, Vec<ClientId>) {
    let mut connected = Vec::new();
    let mut departures = Vec::new();
    for (client, steps) in steps {
        let row = known.get(client).and_then(|known| known.connected.as_ref());
        let fate = fold::fold(row, steps, parts.settings.old_within, |why| {
            metrics::without_effect(client, why.reason());
        });
        match fate {
            Fate::Connected(settled) => connected.push((client.clone(), *settled)),
            Fate::Gone if row.is_some() => departures.push(client.clone()),
            // Also the offline of a client that was not there.
            Fate::Unchanged | Fate::Gone => {}
        }
    }
    departures.sort();
    (connected, departures)
}

fn step(topics: &Topics, message: &Received) -> Result<Option<Step>, Rejected> {
    let topic = topics
        .parse(&message.topic)
        .ok_or_else(|| Rejected::new("unknown_topic", "no client has this topic"))?;
    Ok(match parse_control(&message.payload)? {
        Control::Online(online) => Some(Step::Online {
            online,
            prefix: topic.prefix,
            received: message.received,
        }),
        Control::Offline => Some(Step::Offline),
        Control::Pong { .. } | Control::Ignored => None,
    })
}

/// Looks everybody up at once, until the deadline. No answer in time is no answer.
async fn with_tenants(
    parts: &Parts,
    known: &HashMap<ClientId, Known>,
    connected: Vec<(ClientId, Settled)>,
    now: Timestamp,
) -> Vec<Arrival> {
    let deadline = Instant::now() + parts.settings.tenant_deadline;
    let lookups = connected.into_iter().map(|(client, settled)| async move {
        let lookup = timeout_at(deadline, parts.tenants.lookup(&client))
            .await
            .unwrap_or(Lookup::Unavailable);
        metrics::tenant_lookup(lookup.outcome());
        let tenant = tenant_change(lookup, known.get(&client), now);
        Arrival {
            client_id: client,
            dialect: Dialect::Status,
            kind: Kind::Host,
            topic_prefix: settled.prefix,
            reported: settled.reported,
            message_id: settled.message_id,
            message_sent: settled.sent,
            last_seen: settled.received,
            tenant,
        }
    });
    join_all(lookups).await
}

fn tenant_change(lookup: Lookup, known: Option<&Known>, now: Timestamp) -> TenantChange {
    match lookup {
        Lookup::Found(tenant) => TenantChange::Found(tenant),
        Lookup::NotFound => TenantChange::NotFound(now),
        Lookup::Unavailable => match known.and_then(remembered) {
            Some(tenant) => TenantChange::Kept(tenant),
            None => TenantChange::Unknown,
        },
    }
}

/// The row's tenant; for a client that had left, the one it left with.
fn remembered(known: &Known) -> Option<Tenant> {
    match &known.connected {
        Some(row) => row.tenant.clone(),
        None => known.departed_tenant.clone(),
    }
}
