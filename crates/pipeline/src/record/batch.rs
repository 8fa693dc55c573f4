//! Processes one batch. The steps are: decode the messages, load the stored states, apply the
//! presence rules, look up tenants, report hosts to inventory, and write all rows in one
//! transaction.

use std::collections::HashMap;

use futures::future::join_all;
use tokio::time::Instant;

use super::host_reporting::{ConnectedHost, ReportedHosts};
use super::presence::{self, AppliedOnlineMessage, PresenceChange, PresenceSignal, ReplayKind};
use super::{RecorderDeps, RecorderInput, bisect, metrics};
use domain::{ClientId, Tenant, Timestamp};
use protocol::{self, ClientMessage, ClientTopic, HandshakeError, InboundMessage, Rejection};
use store::{
    ConnectionEnd, ConnectionUpsert, DeadLetter, HeartbeatUpdate, PartitionLease, PresenceBatch,
    ReceivedAt, StoreError, StoredState, TenantChange, WriteOutcome,
};
use tenant::{self, MassLossVerdict, TenantLookupOutcome};

/// The decoded messages of a batch.
#[derive(Default)]
struct DecodedBatch {
    /// Each client's messages, in the order of the inputs.
    signals: HashMap<ClientId, Vec<PresenceSignal>>,
    /// The messages that cannot be processed.
    dead_letters: Vec<DeadLetter>,
    /// Handshake errors to publish after the commit, each with the topic of the invalid handshake.
    handshake_errors: Vec<(ClientTopic, HandshakeError)>,
}

/// The rows to write for a batch, without the dead letters.
struct BatchToWrite {
    rows: PresenceBatch,
    /// For each client in `rows.upserts`, the index of its online message in the batch's inputs.
    upsert_input_indexes: HashMap<ClientId, usize>,
    mass_loss_verdict: MassLossVerdict,
}

/// Writes the inputs to the database in one transaction.
///
/// After an error, the caller retries with the same `reported_hosts`. Hosts that were already
/// reported are then not reported again.
pub(super) async fn write_inputs(
    deps: &RecorderDeps,
    inputs: &[&RecorderInput],
    leases: &[PartitionLease],
    reported_hosts: &mut ReportedHosts,
) -> Result<WriteOutcome, StoreError> {
    let now = deps.clock.now();
    let decoded_batch = decode_inputs(inputs, now);
    let clients: Vec<ClientId> = decoded_batch.signals.keys().cloned().collect();
    let stored_states = if clients.is_empty() {
        HashMap::new()
    } else {
        deps.presence.load_client_states(&clients).await?
    };
    let BatchToWrite {
        mut rows,
        upsert_input_indexes,
        mass_loss_verdict,
    } = build_batch(
        deps,
        &stored_states,
        decoded_batch.signals,
        reported_hosts,
        now,
    )
    .await;
    rows.dead_letters = decoded_batch.dead_letters;
    rows.dead_letter_limits = deps.config.dead_letter_limits;
    let (upserts, heartbeats) = (rows.upserts.len(), rows.heartbeats.len());
    let connection_ends = rows.connection_ends.len();
    let outcome = if rows.is_empty() {
        WriteOutcome::Committed
    } else {
        bisect::write_batch(deps, rows, inputs, &upsert_input_indexes, leases, now).await?
    };
    if outcome == WriteOutcome::Committed {
        // Another writer may have detected a mass loss of tenants while this batch was written. The
        // tenants that this batch cleared are then restored.
        if deps
            .mass_loss_detector
            .must_restore_cleared_tenants(&mass_loss_verdict)
        {
            restore_tenants(deps, &mass_loss_verdict.cleared_tenants, now).await;
        }
        metrics::count_applied_messages("online", upserts);
        metrics::count_applied_messages("heartbeat", heartbeats);
        metrics::count_applied_messages("offline", connection_ends);
        for handshake_error in decoded_batch.handshake_errors {
            deps.handshake_error_sender.send(handshake_error);
        }
    }
    Ok(outcome)
}

/// Decodes all messages of a batch. Messages that cannot be processed become dead letters.
fn decode_inputs(inputs: &[&RecorderInput], now: Timestamp) -> DecodedBatch {
    let mut decoded_batch = DecodedBatch::default();
    for (input_index, input) in inputs.iter().enumerate() {
        match input {
            RecorderInput::ConnectionClosed { client } => {
                decoded_batch
                    .add_signal(client, PresenceSignal::ConnectionClosed { closed_at: now });
            }
            RecorderInput::UnknownTopic { message } => {
                decoded_batch.add_dead_letter(None, message, &Rejection::unknown_topic());
            }
            RecorderInput::Message { topic, message, .. } => {
                decoded_batch.add_message(input_index, input, topic, message);
            }
        }
    }
    decoded_batch
}

impl DecodedBatch {
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
                self.add_dead_letter(Some(client), message, &error.rejection);
                self.handshake_errors.push((topic.clone(), error));
            }
            Ok(decoded_message) => {
                match to_presence_signal(input_index, input, topic, message, decoded_message) {
                    Some(signal) => self.add_signal(client, signal),
                    None => metrics::count_ignored_message(client, "not_presence"),
                }
            }
            Err(rejection) => self.add_dead_letter(Some(client), message, &rejection),
        }
    }

    fn add_signal(&mut self, client: &ClientId, signal: PresenceSignal) {
        self.signals.entry(client.clone()).or_default().push(signal);
    }

    /// Adds a dead letter unless the batch already contains an equal dead letter. Equal dead
    /// letters share a row, and one upsert statement cannot change the same row twice.
    fn add_dead_letter(
        &mut self,
        client: Option<&ClientId>,
        message: &InboundMessage,
        rejection: &Rejection,
    ) {
        metrics::count_dead_letter(&message.topic, rejection);
        let dead_letter = DeadLetter::new(client.cloned(), message, rejection);
        let is_equal = |other: &DeadLetter| {
            other.sha256 == dead_letter.sha256
                && other.topic == dead_letter.topic
                && other.client == dead_letter.client
        };
        if !self.dead_letters.iter().any(is_equal) {
            self.dead_letters.push(dead_letter);
        }
    }
}

/// Converts a decoded message to a presence signal. Returns `None` if the message does not affect
/// presence.
fn to_presence_signal(
    input_index: usize,
    input: &RecorderInput,
    topic: &ClientTopic,
    message: &InboundMessage,
    decoded_message: ClientMessage,
) -> Option<PresenceSignal> {
    let RecorderInput::Message {
        position,
        from_answers_topic,
        ..
    } = input
    else {
        return None;
    };
    let received_at = ReceivedAt {
        time: message.received_at,
        position: *position,
        stamp: message.ingest_stamp,
    };
    match decoded_message {
        ClientMessage::Online(online) => Some(PresenceSignal::Online {
            online,
            dialect: topic.channel.dialect().name(),
            topic_prefix: topic.prefix.clone(),
            received_at,
            replay_kind: if message.is_operator_replay {
                ReplayKind::RequestedByOperator
            } else if message.retained {
                ReplayKind::RetainedByBroker
            } else {
                ReplayKind::NotReplayed
            },
            input_index,
        }),
        // The client may have reconnected after it sent the replayed offline message. The replay
        // must not disconnect the client.
        ClientMessage::Offline if message.is_operator_replay => None,
        ClientMessage::Offline => Some(PresenceSignal::Offline { received_at }),
        // A replayed heartbeat does not prove that the client is connected now.
        ClientMessage::Heartbeat | ClientMessage::Response(_)
            if message.retained || message.is_operator_replay =>
        {
            None
        }
        ClientMessage::Heartbeat | ClientMessage::Response(_) => Some(PresenceSignal::Heartbeat {
            received_at,
            from_answers_topic: *from_answers_topic,
        }),
        ClientMessage::InvalidHandshake(_) | ClientMessage::Ignored => None,
    }
}

/// Applies each client's messages, looks up tenants, reports hosts to inventory, and builds the
/// rows to write.
async fn build_batch(
    deps: &RecorderDeps,
    stored_states: &HashMap<ClientId, StoredState>,
    signals: HashMap<ClientId, Vec<PresenceSignal>>,
    reported_hosts: &mut ReportedHosts,
    now: Timestamp,
) -> BatchToWrite {
    let mut changes = Vec::with_capacity(signals.len());
    for (client, signals) in signals {
        let change = presence::apply_signals(
            stored_states.get(&client),
            signals,
            deps.config.stale_online_window,
            |reason| metrics::count_ignored_message(&client, reason.as_str()),
        );
        if change != PresenceChange::default() {
            changes.push((client, change));
        }
    }
    // All writers lock rows in the order of the client ids. This prevents deadlocks between
    // concurrent transactions.
    changes.sort_by(|a, b| a.0.cmp(&b.0));
    let mut lookup_outcomes = look_up_tenants(deps, &changes).await;
    let clients_with_tenant =
        changes
            .iter()
            .zip(&mut lookup_outcomes)
            .filter_map(|((client, _), lookup_outcome)| {
                let tenant = stored_states.get(client).and_then(stored_tenant)?;
                Some((client, tenant, lookup_outcome.as_mut()?))
            });
    let mass_loss_verdict = deps.mass_loss_detector.evaluate(clients_with_tenant);
    restore_tenants(deps, &mass_loss_verdict.tenants_to_restore, now).await;
    report_hosts(deps, &changes, &lookup_outcomes, reported_hosts, now).await;
    let mut rows = PresenceBatch::default();
    let mut upsert_input_indexes = HashMap::new();
    for ((client, change), lookup_outcome) in changes.into_iter().zip(lookup_outcomes) {
        let tenant = lookup_outcome
            .map(|lookup_outcome| tenant_change(lookup_outcome, stored_states.get(&client), now));
        if let Some(applied_message) = change.upsert {
            upsert_input_indexes.insert(client.clone(), applied_message.input_index);
            let tenant = tenant
                .unwrap_or_else(|| tenant_change_from_stored_state(stored_states.get(&client)));
            let reported_at =
                reported_hosts.inventory_delivery_time(&client, applied_message.input_index);
            let upsert = connection_upsert(deps, &client, *applied_message, tenant, reported_at);
            rows.upserts.push(upsert);
        } else if let Some(received_at) = change.heartbeat_received_at {
            rows.heartbeats.push(HeartbeatUpdate {
                client_id: client.clone(),
                received_at,
                tenant,
            });
        }
        if let Some(received_at) = change.offline_received_at {
            rows.connection_ends.push(ConnectionEnd {
                client_id: client,
                received_at,
            });
        }
    }
    BatchToWrite {
        rows,
        upsert_input_indexes,
        mass_loss_verdict,
    }
}

fn connection_upsert(
    deps: &RecorderDeps,
    client: &ClientId,
    applied_message: AppliedOnlineMessage,
    tenant: TenantChange,
    reported_to_inventory_at: Option<Timestamp>,
) -> ConnectionUpsert {
    let online = applied_message.online;
    let inventory_eligible = deps.inventory_reporter.as_ref().is_some_and(|inventory| {
        inventory.is_eligible(&applied_message.dialect, online.kind, &online.info)
    });
    ConnectionUpsert {
        inventory_eligible,
        reported_to_inventory_at,
        client_id: client.clone(),
        dialect: applied_message.dialect,
        kind: online.kind,
        topic_prefix: applied_message.topic_prefix,
        info: online.info,
        message_id: online.message_id,
        message_sent_at: applied_message.sent,
        received_at: applied_message.received_at,
        last_heartbeat_at: applied_message.last_heartbeat_at,
        tenant,
    }
}

/// Looks up tenants concurrently, with a common deadline. Returns one element for each change:
/// `None` if the change needs no lookup.
async fn look_up_tenants(
    deps: &RecorderDeps,
    changes: &[(ClientId, PresenceChange)],
) -> Vec<Option<TenantLookupOutcome>> {
    let deadline = Instant::now() + deps.config.tenant_lookup_timeout;
    let lookup_outcomes = changes.iter().map(|(client, change)| async move {
        if !change.needs_tenant_lookup {
            return None;
        }
        let lookup_outcome = deps.tenant_lookup.lookup(client, deadline).await;
        tenant::metrics::count_tenant_lookup(lookup_outcome.status());
        Some(lookup_outcome)
    });
    join_all(lookup_outcomes).await
}

/// Restores tenants that were cleared before a mass loss of tenants was detected.
async fn restore_tenants(deps: &RecorderDeps, tenants: &[(ClientId, Tenant)], now: Timestamp) {
    if !tenants.is_empty()
        && let Err(error) = deps.presence.restore_tenants(tenants, now).await
    {
        let clients = tenants.len();
        tracing::error!(
            %error,
            clients,
            "failed to restore tenants after mass-loss detection"
        );
    }
}

/// Reports hosts to inventory and to the sources service. The hosts are the clients that sent an
/// online message in this batch and whose tenant was found.
///
/// A client that reconnected by a heartbeat is not reported here, because the batch does not
/// contain its facts. The inventory refresh job reports such a client later.
async fn report_hosts(
    deps: &RecorderDeps,
    changes: &[(ClientId, PresenceChange)],
    lookup_outcomes: &[Option<TenantLookupOutcome>],
    reported_hosts: &mut ReportedHosts,
    now: Timestamp,
) {
    let hosts: Vec<ConnectedHost<'_>> = changes
        .iter()
        .zip(lookup_outcomes)
        .filter_map(|((client, change), lookup_outcome)| {
            let (Some(applied_message), Some(TenantLookupOutcome::Found(found_tenant))) =
                (&change.upsert, lookup_outcome)
            else {
                return None;
            };
            Some(ConnectedHost {
                client,
                applied_message,
                found_tenant,
            })
        })
        .collect();
    if let Some(registrar) = &deps.source_registrar {
        reported_hosts.register_sources(registrar, &hosts);
    }
    if let Some(inventory) = &deps.inventory_reporter {
        reported_hosts
            .report_to_inventory(inventory, hosts, now)
            .await;
    }
}

/// Converts the outcome of a tenant lookup to the change of the client's stored tenant.
fn tenant_change(
    lookup_outcome: TenantLookupOutcome,
    stored_state: Option<&StoredState>,
    now: Timestamp,
) -> TenantChange {
    match lookup_outcome {
        TenantLookupOutcome::Found(found) => TenantChange::Found(found.tenant),
        TenantLookupOutcome::NotFound => TenantChange::NotFound(now),
        TenantLookupOutcome::Unavailable => tenant_change_from_stored_state(stored_state),
    }
}

/// Returns the tenant change for a client without a lookup result. A stored tenant is kept. If no
/// tenant is stored, the tenant is looked up later.
fn tenant_change_from_stored_state(stored_state: Option<&StoredState>) -> TenantChange {
    match stored_state.and_then(stored_tenant) {
        Some(tenant) => TenantChange::Keep(tenant),
        None => TenantChange::PendingLookup,
    }
}

/// Returns the tenant that is stored for a connected or disconnected client.
fn stored_tenant(stored_state: &StoredState) -> Option<Tenant> {
    match (&stored_state.connection, &stored_state.disconnect) {
        (Some(connection), _) => connection.tenant.clone(),
        (None, Some(disconnect)) => disconnect.tenant.clone(),
        (None, None) => None,
    }
}
