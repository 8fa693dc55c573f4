//! Processes one batch of decoded messages. The steps are: load the stored states, apply the
//! presence rules, look up tenants, write all rows in one transaction, and queue reports to inventory
//! and to the sources service.

use std::collections::HashMap;

use futures::future::join_all;
use tokio::time::Instant;

use super::answers::merge_answers;
use super::bisect::{self, WriteError, WriteProgress};
use super::decoded_job::DecodedJob;
use super::presence::{
    self, AppliedOnlineMessage, PresenceChange, PresenceRules, PresenceSignal, ReplayKind,
};
use super::transitions::{OnlineChange, OnlineRows};
use super::writer::WriterContext;
use super::{RecorderDeps, RecorderInput, metrics};
use domain::{ClientId, Identity, Tenant, Timestamp};
use protocol::{ClientMessage, ClientTopic, InboundMessage};
use store::{
    ConnectionEnd, ConnectionUpsert, DeadLetter, DeliveredReport, HeartbeatUpdate, LastSeen,
    PartitionLease, PresenceBatch, PresenceColumns, ReceivedAt, ReplacedRow, StoredState,
    TenantChange, WriteOutcome,
};
use tenant::{self, MassLossVerdict, TenantLookupOutcome};

/// The rows to write for a batch, without the dead letters.
struct BatchToWrite {
    rows: PresenceBatch,
    /// For each client in `rows.upserts`, the index of its online message in the batch's inputs.
    upsert_input_indexes: HashMap<ClientId, usize>,
    /// The identities of the clients whose tenants were found.
    identities: HashMap<ClientId, Identity>,
    mass_loss_verdict: MassLossVerdict,
}

/// What the earlier attempts to write a batch have done. A retry does not repeat it.
#[derive(Default)]
pub(super) struct BatchProgress {
    /// Reports to inventory of earlier batches. They are stored with this batch.
    pub delivered_reports: Vec<DeliveredReport>,
    /// Number of inputs whose ignored messages are counted. A later attempt could also ignore
    /// messages that an earlier attempt has applied. The inputs of jobs that were added after the
    /// first attempt have higher indexes and are not counted yet.
    counted_inputs: usize,
    write_progress: WriteProgress,
}

/// Writes the messages of the jobs to the database in one transaction.
///
/// After an error, the caller retries with the same `progress`.
pub(super) async fn write_jobs(
    context: &WriterContext,
    jobs: &mut [DecodedJob],
    progress: &mut BatchProgress,
) -> Result<WriteOutcome, WriteError> {
    let deps = &*context.deps;
    let now = deps.clock.now();
    let mut leases: Vec<PartitionLease> = jobs.iter().filter_map(|job| job.lease).collect();
    leases.sort_unstable();
    leases.dedup();
    let signals = signals_by_client(jobs, progress.counted_inputs);
    let clients: Vec<ClientId> = signals.keys().cloned().collect();
    let stored_states = if clients.is_empty() {
        HashMap::new()
    } else {
        deps.presence.load_client_states(&clients).await?
    };
    let BatchToWrite {
        mut rows,
        upsert_input_indexes,
        identities,
        mass_loss_verdict,
    } = build_batch(deps, &stored_states, signals, now).await;
    let next_index = jobs.iter().map(DecodedJob::next_index).max();
    progress.counted_inputs = progress.counted_inputs.max(next_index.unwrap_or(0));
    rows.dead_letters = new_dead_letters(jobs, &progress.write_progress);
    rows.answers = merge_answers(jobs.iter().flat_map(|job| &job.answers));
    rows.dead_letter_limits = deps.config.dead_letter_limits;
    rows.delivered_reports
        .clone_from(&progress.delivered_reports);
    progress.write_progress.identities = identities;
    let outcome = if rows.is_empty() {
        WriteOutcome::Committed
    } else {
        let find_online_message = |client: &ClientId| {
            let input_index = *upsert_input_indexes.get(client)?;
            jobs.iter().find_map(|job| job.online_message(input_index))
        };
        let write_progress = &mut progress.write_progress;
        bisect::write_batch(
            context,
            rows,
            &leases,
            now,
            write_progress,
            find_online_message,
        )
        .await?
    };
    // Another writer may have detected a mass loss of tenants while this batch was written. The
    // tenants that this batch cleared are then restored.
    if outcome == WriteOutcome::Committed
        && deps
            .mass_loss_detector
            .must_restore_cleared_tenants(&mass_loss_verdict)
    {
        restore_tenants(deps, &mass_loss_verdict.cleared_tenants, now).await;
    }
    Ok(outcome)
}

/// The presence signals of one client, in the order of the inputs.
#[derive(Default)]
struct ClientSignals {
    signals: Vec<PresenceSignal>,
    /// Number of signals whose inputs an earlier attempt has counted. These are the first signals.
    counted: usize,
}

/// Returns each client's presence signals. An earlier attempt has counted the ignored messages of
/// the first `counted_inputs` inputs.
fn signals_by_client(
    jobs: &mut [DecodedJob],
    counted_inputs: usize,
) -> HashMap<ClientId, ClientSignals> {
    let mut signals: HashMap<ClientId, ClientSignals> = HashMap::new();
    for indexed in jobs.iter_mut().flat_map(DecodedJob::next_signals) {
        let client_signals = signals.entry(indexed.client).or_default();
        client_signals.signals.push(indexed.signal);
        if indexed.input_index < counted_inputs {
            client_signals.counted += 1;
        }
    }
    signals
}

/// Returns the dead letters of the jobs that no earlier attempt has stored. Equal dead letters are
/// returned once. They share a row, and one upsert statement cannot change the same row twice.
fn new_dead_letters(jobs: &[DecodedJob], progress: &WriteProgress) -> Vec<DeadLetter> {
    let mut new_dead_letters: Vec<DeadLetter> = Vec::new();
    for dead_letter in jobs.iter().flat_map(|job| &job.dead_letters) {
        let is_equal = |other: &DeadLetter| {
            other.sha256 == dead_letter.sha256
                && other.topic == dead_letter.topic
                && other.client == dead_letter.client
        };
        if !new_dead_letters.iter().any(is_equal) && !progress.has_stored(dead_letter) {
            new_dead_letters.push(dead_letter.clone());
        }
    }
    new_dead_letters
}

/// Converts a decoded message to a presence signal. Returns `None` if the message does not affect
/// presence.
pub(super) fn to_presence_signal(
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
            is_takeover: message.is_takeover,
            input_index,
        }),
        // The client may have reconnected after it sent the replayed offline message. The replay
        // must not disconnect the client.
        ClientMessage::Offline { .. } if message.is_operator_replay => None,
        ClientMessage::Offline { sent } => Some(PresenceSignal::Offline {
            received_at,
            sent,
            is_last_will: message.is_last_will,
        }),
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

/// Applies each client's messages, looks up tenants, and builds the rows to write.
async fn build_batch(
    deps: &RecorderDeps,
    stored_states: &HashMap<ClientId, StoredState>,
    signals: HashMap<ClientId, ClientSignals>,
    now: Timestamp,
) -> BatchToWrite {
    let rules = PresenceRules {
        stale_online_window: deps.config.stale_online_window,
        last_seen_interval: deps.config.last_seen_interval,
    };
    let mut changes = Vec::with_capacity(signals.len());
    for (client, ClientSignals { signals, counted }) in signals {
        let change = presence::apply_signals(
            stored_states.get(&client),
            signals,
            rules,
            |signal_index, reason| {
                if signal_index >= counted {
                    metrics::count_ignored_message(&client, reason.as_str());
                }
            },
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
    let mut rows = PresenceBatch::default();
    let mut upsert_input_indexes = HashMap::new();
    let mut identities = HashMap::new();
    for ((client, change), lookup_outcome) in changes.into_iter().zip(lookup_outcomes) {
        if let Some(TenantLookupOutcome::Found(found)) = &lookup_outcome {
            identities.insert(client.clone(), found.identity.clone());
        }
        let tenant = lookup_outcome
            .map(|lookup_outcome| tenant_change(lookup_outcome, stored_states.get(&client), now));
        if let Some(applied_message) = change.upsert {
            upsert_input_indexes.insert(client.clone(), applied_message.input_index);
            let tenant = tenant
                .unwrap_or_else(|| tenant_change_from_stored_state(stored_states.get(&client)));
            let stored_state = stored_states.get(&client);
            let last_heartbeat_at = applied_message.last_heartbeat_at;
            let received_at = applied_message.received_at.time;
            let online_rows = OnlineChange {
                client: &client,
                info: &applied_message.online.info,
                stored_state,
                tenant: tenant_of(&tenant),
                received_at,
                now,
                last_seen: last_heartbeat_at.map_or(received_at, |it| it.time.max(received_at)),
                writes_events: deps.presence.records_events(),
                counts: change.transitions,
            }
            .rows();
            let OnlineRows {
                presence,
                history,
                events,
            } = online_rows;
            rows.history.extend(history);
            rows.events.extend(events);
            let replaced = replaced_row(stored_state);
            let upsert =
                connection_upsert(deps, &client, *applied_message, tenant, replaced, presence);
            rows.upserts.push(upsert);
        } else if let Some(received_at) = change.heartbeat_received_at {
            rows.heartbeats.push(HeartbeatUpdate {
                client_id: client.clone(),
                received_at,
                tenant,
            });
        }
        if let Some(at) = change.seen_at {
            rows.last_seen.push(LastSeen {
                client_id: client.clone(),
                at,
            });
        }
        if let Some(offline) = change.offline {
            rows.connection_ends.push(ConnectionEnd {
                client_id: client,
                received_at: offline.received_at,
                reason: offline.reason,
            });
        }
    }
    BatchToWrite {
        rows,
        upsert_input_indexes,
        identities,
        mass_loss_verdict,
    }
}

fn connection_upsert(
    deps: &RecorderDeps,
    client: &ClientId,
    applied_message: AppliedOnlineMessage,
    tenant: TenantChange,
    replaced: ReplacedRow,
    presence: PresenceColumns,
) -> ConnectionUpsert {
    let online = applied_message.online;
    let inventory_eligible = deps.inventory_reporter.as_ref().is_some_and(|inventory| {
        inventory.is_eligible(&applied_message.dialect, online.kind, &online.info)
    });
    ConnectionUpsert {
        inventory_eligible,
        // The report is sent after the commit.
        reported_to_inventory_at: None,
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
        replaced,
        presence,
    }
}

/// Returns the row in `connections` that an upsert of the client replaces.
fn replaced_row(stored_state: Option<&StoredState>) -> ReplacedRow {
    let connection = stored_state.and_then(|state| state.connection.as_ref());
    connection.map_or(ReplacedRow::Absent, |row| ReplacedRow::Version(row.version))
}

/// Returns the tenant of a client after a change. `None` for a tenantless client.
fn tenant_of(change: &TenantChange) -> Option<&Tenant> {
    match change {
        TenantChange::Found(tenant) | TenantChange::Keep(tenant) => Some(tenant),
        TenantChange::NotFound(_) | TenantChange::PendingLookup => None,
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

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::record::PreparedInput;
    use crate::record::writer::Job;
    use domain::OfflineReason;
    use service::ByteBudget;

    #[test]
    fn only_signals_of_jobs_that_were_added_after_an_attempt_are_not_counted() {
        let client = ClientId::new("a").unwrap();
        let budget = ByteBudget::new(1_000_000);
        let job = |first_index| {
            let input = RecorderInput::ConnectionClosed {
                client: client.clone(),
                reason: OfflineReason::Will,
            };
            let inputs = vec![PreparedInput::new(input, &budget)];
            let job = Job::new(inputs, None, oneshot::channel().0);
            DecodedJob::new(job, first_index, Timestamp::UNIX_EPOCH)
        };
        let mut jobs = vec![job(0), job(1)];
        let signals = &signals_by_client(&mut jobs, 0)[&client];
        assert_eq!((signals.signals.len(), signals.counted), (2, 0));
        let counted_inputs = jobs[1].next_index();
        jobs.push(job(2));
        let signals = &signals_by_client(&mut jobs, counted_inputs)[&client];
        assert_eq!((signals.signals.len(), signals.counted), (3, 2));
    }
}
