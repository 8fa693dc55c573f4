//! Processes one batch: decode the messages, load the stored states, apply the presence rules, look
//! up tenants, report hosts to inventory, and write everything in one transaction.

use std::collections::HashMap;

use futures::future::join_all;
use tokio::time::Instant;

use super::inventory_step::{ConnectedHost, ReportedHosts};
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
use crate::tenant::{MassLossVerdict, TenantLookupOutcome};

/// The decoded messages of a batch.
#[derive(Default)]
struct ParsedBatch {
    /// Each client's messages, in order.
    signals: HashMap<ClientId, Vec<PresenceSignal>>,
    /// Messages that cannot be processed.
    dead_letters: Vec<DeadLetter>,
    /// Handshake errors to publish after the commit, each with its outbound topic.
    handshake_errors: Vec<(ClientTopic, HandshakeError)>,
}

/// The rows to write for a batch, except its dead letters.
struct BuiltBatch {
    rows: PresenceBatch,
    /// For each client in `rows.upserts`, the index of its online message in the batch's inputs.
    upsert_inputs: HashMap<ClientId, usize>,
    mass_loss: MassLossVerdict,
}

/// Writes the inputs to the database in one transaction.
///
/// The caller retries after an error and passes the same `reported_hosts` again.
pub(super) async fn record(
    deps: &RecorderDeps,
    inputs: &[&RecorderInput],
    leases: &[PartitionLease],
    reported_hosts: &mut ReportedHosts,
) -> Result<WriteOutcome, StoreError> {
    let now = deps.clock.now();
    let parsed = parse(inputs, now);
    let clients: Vec<ClientId> = parsed.signals.keys().cloned().collect();
    let stored = if clients.is_empty() {
        HashMap::new()
    } else {
        deps.store.load_states(&clients).await?
    };
    let BuiltBatch {
        mut rows,
        upsert_inputs,
        mass_loss,
    } = build_batch(deps, &stored, parsed.signals, reported_hosts, now).await;
    rows.dead_letters = parsed.dead_letters;
    rows.dead_letter_limits = deps.config.dead_letter_limits;
    let (upserts, heartbeats) = (rows.upserts.len(), rows.heartbeats.len());
    let ends = rows.ends.len();
    let outcome = if rows.is_empty() {
        WriteOutcome::Committed
    } else {
        bisect::write(deps, rows, inputs, &upsert_inputs, leases, now).await?
    };
    if outcome == WriteOutcome::Committed {
        // Another batch may have detected a mass loss while this one was written.
        if deps.mass_loss.is_overruled_since(&mass_loss) {
            restore_tenants(deps, &mass_loss.cleared, now).await;
        }
        metrics::messages_applied("online", upserts);
        metrics::messages_applied("heartbeat", heartbeats);
        metrics::messages_applied("offline", ends);
        for handshake_error in parsed.handshake_errors {
            deps.handshake_errors.send(handshake_error);
        }
    }
    Ok(outcome)
}

/// Decodes all messages. Messages that cannot be processed become dead letters.
fn parse(inputs: &[&RecorderInput], now: Timestamp) -> ParsedBatch {
    let mut parsed = ParsedBatch::default();
    for (input_index, input) in inputs.iter().enumerate() {
        match input {
            RecorderInput::ConnectionClosed { client } => {
                parsed.add_signal(client, PresenceSignal::ConnectionClosed { at: now });
            }
            RecorderInput::UnknownTopic { message } => {
                parsed.dead_letter(None, message, &Rejection::unknown_topic());
            }
            RecorderInput::Message { topic, message, .. } => {
                parsed.add_message(input_index, input, topic, message);
            }
        }
    }
    parsed
}

impl ParsedBatch {
    fn add_message(
        &mut self,
        input_index: usize,
        input: &RecorderInput,
        topic: &ClientTopic,
        message: &InboundMessage,
    ) {
        let client = &topic.client;
        match protocol::decode(topic.channel, message) {
            Ok(ClientMessage::InvalidHandshake(error)) => {
                self.dead_letter(Some(client), message, &error.rejection);
                let outbound_topic = ClientTopic {
                    channel: protocol::Channel::Handshake(Direction::ToClient),
                    ..topic.clone()
                };
                self.handshake_errors.push((outbound_topic, error));
            }
            Ok(decoded) => match to_signal(input_index, input, topic, message, decoded) {
                Some(signal) => self.add_signal(client, signal),
                None => metrics::message_ignored(client, "not_presence"),
            },
            Err(rejection) => self.dead_letter(Some(client), message, &rejection),
        }
    }

    fn add_signal(&mut self, client: &ClientId, signal: PresenceSignal) {
        self.signals.entry(client.clone()).or_default().push(signal);
    }

    /// Adds a dead letter unless the batch already has an equal one: one upsert statement cannot
    /// change the same row twice.
    fn dead_letter(
        &mut self,
        client: Option<&ClientId>,
        message: &InboundMessage,
        rejection: &Rejection,
    ) {
        metrics::dead_letter(&message.topic, rejection);
        let new = DeadLetter::new(client.cloned(), message, rejection);
        let is_equal = |other: &DeadLetter| {
            other.sha256 == new.sha256 && other.topic == new.topic && other.client == new.client
        };
        if !self.dead_letters.iter().any(is_equal) {
            self.dead_letters.push(new);
        }
    }
}

/// Converts a decoded message. Returns `None` if the message does not affect presence.
fn to_signal(
    input_index: usize,
    input: &RecorderInput,
    topic: &ClientTopic,
    message: &InboundMessage,
    decoded: ClientMessage,
) -> Option<PresenceSignal> {
    let RecorderInput::Message {
        position,
        unordered,
        ..
    } = input
    else {
        return None;
    };
    let received = ReceivedAt {
        time: message.received_at,
        position: *position,
    };
    match decoded {
        ClientMessage::Online(online) => Some(PresenceSignal::Online {
            online,
            dialect: topic.channel.dialect(),
            topic_prefix: topic.prefix.clone(),
            received,
            replay: if message.operator_replay {
                ReplayKind::RequestedByOperator
            } else if message.retained {
                ReplayKind::RetainedByBroker
            } else {
                ReplayKind::NotReplayed
            },
            input_index,
        }),
        // A replayed offline message must not remove a client that has reconnected since.
        ClientMessage::Offline if message.operator_replay => None,
        ClientMessage::Offline => Some(PresenceSignal::Offline { received }),
        // A replayed heartbeat does not prove that the client is connected now.
        ClientMessage::Heartbeat | ClientMessage::Response(_)
            if message.retained || message.operator_replay =>
        {
            None
        }
        ClientMessage::Heartbeat | ClientMessage::Response(_) => Some(PresenceSignal::Heartbeat {
            received_at: message.received_at,
            unordered: *unordered,
        }),
        ClientMessage::InvalidHandshake(_) | ClientMessage::Ignored => None,
    }
}

/// Applies each client's messages, looks up tenants, reports hosts to inventory, and builds the
/// rows.
async fn build_batch(
    deps: &RecorderDeps,
    stored: &HashMap<ClientId, StoredState>,
    signals: HashMap<ClientId, Vec<PresenceSignal>>,
    reported_hosts: &mut ReportedHosts,
    now: Timestamp,
) -> BuiltBatch {
    let mut changes = Vec::with_capacity(signals.len());
    for (client, signals) in signals {
        let change = presence::apply(
            stored.get(&client),
            signals,
            deps.config.stale_online_window,
            |ignored| metrics::message_ignored(&client, ignored.reason()),
        );
        if change != PresenceChange::default() {
            changes.push((client, change));
        }
    }
    // Concurrent writers lock rows in the same order, which prevents deadlocks.
    changes.sort_by(|a, b| a.0.cmp(&b.0));
    let mut lookups = look_up_tenants(deps, &changes).await;
    let clients_with_tenant =
        changes
            .iter()
            .zip(&mut lookups)
            .filter_map(|((client, _), lookup)| {
                let tenant = stored.get(client).and_then(known_tenant)?;
                Some((client, tenant, lookup.as_mut()?))
            });
    let mass_loss = deps.mass_loss.evaluate(clients_with_tenant);
    restore_tenants(deps, &mass_loss.restore, now).await;
    report_hosts(deps, &changes, &lookups, reported_hosts, now).await;
    let mut rows = PresenceBatch::default();
    let mut upsert_inputs = HashMap::new();
    for ((client, change), lookup) in changes.into_iter().zip(lookups) {
        let tenant = lookup.map(|lookup| tenant_change(lookup, stored.get(&client), now));
        if let Some(resolved) = change.upsert {
            upsert_inputs.insert(client.clone(), resolved.input_index);
            let tenant = tenant.unwrap_or_else(|| keep_tenant(stored.get(&client)));
            let reported_at = reported_hosts.reported_at(&client, resolved.input_index);
            let upsert = connection_upsert(deps, &client, *resolved, tenant, reported_at);
            rows.upserts.push(upsert);
        } else if let Some(received_at) = change.heartbeat {
            rows.heartbeats.push(HeartbeatUpdate {
                client_id: client.clone(),
                received_at,
                tenant,
            });
        }
        if let Some(received) = change.end {
            rows.ends.push(ConnectionEnd {
                client_id: client,
                received,
            });
        }
    }
    BuiltBatch {
        rows,
        upsert_inputs,
        mass_loss,
    }
}

fn connection_upsert(
    deps: &RecorderDeps,
    client: &ClientId,
    resolved: ResolvedOnline,
    tenant: TenantChange,
    reported_to_inventory_at: Option<Timestamp>,
) -> ConnectionUpsert {
    let online = resolved.online;
    let inventory_eligible = deps.inventory.as_ref().is_some_and(|inventory| {
        inventory.is_eligible(resolved.dialect, online.kind, &online.info)
    });
    ConnectionUpsert {
        inventory_eligible,
        reported_to_inventory_at,
        client_id: client.clone(),
        dialect: resolved.dialect,
        kind: online.kind,
        topic_prefix: resolved.topic_prefix,
        info: online.info,
        message_id: online.message_id,
        message_sent: resolved.sent,
        received: resolved.received,
        last_heartbeat_at: resolved.last_heartbeat_at,
        tenant,
    }
}

/// Looks up tenants concurrently, with one deadline for all. Returns one element per change: `None`
/// where no lookup is necessary.
async fn look_up_tenants(
    deps: &RecorderDeps,
    changes: &[(ClientId, PresenceChange)],
) -> Vec<Option<TenantLookupOutcome>> {
    let deadline = Instant::now() + deps.config.tenant_lookup_timeout;
    let lookups = changes.iter().map(|(client, change)| async move {
        if !change.needs_tenant_lookup {
            return None;
        }
        let lookup = deps.tenant_lookup.lookup(client, deadline).await;
        metrics::tenant_lookup_finished(lookup.status());
        Some(lookup)
    });
    join_all(lookups).await
}

/// Restores tenants that were cleared before the mass loss was detected.
async fn restore_tenants(deps: &RecorderDeps, tenants: &[(ClientId, Tenant)], now: Timestamp) {
    if !tenants.is_empty()
        && let Err(error) = deps.store.restore_tenants(tenants, now).await
    {
        let clients = tenants.len();
        tracing::error!(
            %error,
            clients,
            "failed to restore tenants after mass-loss detection"
        );
    }
}

/// Reports clients that sent an online message, and whose tenant was found, to inventory and to the
/// sources service. A client that reconnected by a heartbeat is not reported here, because its
/// facts are only in the database. The inventory refresh job reports it later.
async fn report_hosts(
    deps: &RecorderDeps,
    changes: &[(ClientId, PresenceChange)],
    lookups: &[Option<TenantLookupOutcome>],
    reported_hosts: &mut ReportedHosts,
    now: Timestamp,
) {
    let hosts: Vec<ConnectedHost<'_>> = changes
        .iter()
        .zip(lookups)
        .filter_map(|((client, change), lookup)| {
            let (Some(resolved), Some(TenantLookupOutcome::Found(found))) =
                (&change.upsert, lookup)
            else {
                return None;
            };
            Some(ConnectedHost {
                client,
                resolved,
                found,
            })
        })
        .collect();
    if let Some(registrar) = &deps.source_registrar {
        reported_hosts.register_sources(registrar, &hosts);
    }
    if let Some(inventory) = &deps.inventory {
        reported_hosts.report(inventory, hosts, now).await;
    }
}

fn tenant_change(
    lookup: TenantLookupOutcome,
    stored: Option<&StoredState>,
    now: Timestamp,
) -> TenantChange {
    match lookup {
        TenantLookupOutcome::Found(found) => TenantChange::Found(found.tenant),
        TenantLookupOutcome::NotFound => TenantChange::NotFound(now),
        TenantLookupOutcome::Unavailable => keep_tenant(stored),
    }
}

fn keep_tenant(stored: Option<&StoredState>) -> TenantChange {
    match stored.and_then(known_tenant) {
        Some(tenant) => TenantChange::Keep(tenant),
        None => TenantChange::PendingLookup,
    }
}

/// Returns the stored tenant of a connected or disconnected client.
fn known_tenant(stored: &StoredState) -> Option<Tenant> {
    match (&stored.connection, &stored.disconnect) {
        (Some(connection), _) => connection.tenant.clone(),
        (None, Some(disconnect)) => disconnect.tenant.clone(),
        (None, None) => None,
    }
}
