//! Writes a batch even if the database rejects one of its rows.
//!
//! Decoding already rejects all values that the databases are known to reject, so this is rare. The
//! batch is split in half repeatedly until the rejected row is alone. The message of that row
//! becomes a dead letter, and all other rows are written.

use std::collections::{BTreeSet, HashMap};

use super::{RecorderDeps, RecorderInput};
use crate::domain::{ClientId, RejectReason, Timestamp};
use crate::protocol::Rejection;
use crate::store::{
    DeadLetter, DeadLetterLimits, PartitionLease, PresenceBatch, StoreError, WriteOutcome,
};
use crate::telemetry::metrics;

/// Writes a batch, in one transaction unless the database rejects a row. `upsert_inputs` maps each
/// client in `batch.upserts` to the index of its message in `inputs`.
pub(super) async fn write(
    deps: &RecorderDeps,
    batch: PresenceBatch,
    inputs: &[&RecorderInput],
    upsert_inputs: &HashMap<ClientId, usize>,
    leases: &[PartitionLease],
    now: Timestamp,
) -> Result<WriteOutcome, StoreError> {
    let mut pending = vec![batch];
    while let Some(batch) = pending.pop() {
        match deps.store.record_batch(&batch, leases, now).await {
            Ok(WriteOutcome::Committed) => {}
            Ok(WriteOutcome::Fenced(lost_leases)) => return Ok(WriteOutcome::Fenced(lost_leases)),
            Err(StoreError::RowRejected(error)) => {
                let smaller = split_rejected(batch, &error.to_string(), |client| {
                    upsert_inputs.get(client).map(|index| inputs[*index])
                });
                pending.extend(smaller);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(WriteOutcome::Committed)
}

/// Returns the batches to write instead of a rejected one. Empty if the rejected batch was a single
/// row that had to be discarded.
fn split_rejected<'a>(
    mut batch: PresenceBatch,
    error: &str,
    upsert_input: impl Fn(&ClientId) -> Option<&'a RecorderInput>,
) -> Vec<PresenceBatch> {
    let clients = clients(&batch);
    if clients.len() > 1 {
        return halves(batch, &clients);
    }
    let dead_letters = std::mem::take(&mut batch.dead_letters);
    if dead_letters.len() > 1 || (!dead_letters.is_empty() && !batch.is_empty()) {
        let mut parts = one_batch_per_dead_letter(dead_letters, batch.dead_letter_limits);
        parts.push(batch);
        return parts;
    }
    let Some(upsert) = batch.upserts.pop() else {
        // The rejected row is a dead letter, a heartbeat or the end of a connection, so it cannot
        // become a dead letter. No known message causes this.
        metrics::row_discarded(error);
        return Vec::new();
    };
    let rejection = Rejection::new(
        RejectReason::RejectedByDatabase,
        format!("the database rejected the row: {error}"),
    );
    if let Some(RecorderInput::Message { message, .. }) = upsert_input(&upsert.client_id) {
        metrics::dead_letter(&message.topic, &rejection);
        let client = Some(upsert.client_id);
        batch
            .dead_letters
            .push(DeadLetter::new(client, message, &rejection));
    }
    vec![batch]
}

fn one_batch_per_dead_letter(
    dead_letters: Vec<DeadLetter>,
    limits: DeadLetterLimits,
) -> Vec<PresenceBatch> {
    dead_letters
        .into_iter()
        .map(|dead_letter| PresenceBatch {
            dead_letters: vec![dead_letter],
            dead_letter_limits: limits,
            ..PresenceBatch::default()
        })
        .collect()
}

/// Returns the clients in the batch. `None` stands for dead letters without a client.
fn clients(batch: &PresenceBatch) -> BTreeSet<Option<ClientId>> {
    let upserts = batch.upserts.iter().map(|row| &row.client_id);
    let heartbeats = batch.heartbeats.iter().map(|row| &row.client_id);
    let ends = batch.ends.iter().map(|row| &row.client_id);
    let presence_clients = upserts.chain(heartbeats).chain(ends);
    let dead_letter_clients = batch.dead_letters.iter().map(|row| row.client.clone());
    presence_clients
        .cloned()
        .map(Some)
        .chain(dead_letter_clients)
        .collect()
}

/// Splits a batch in two with half of the clients each. All rows of one client stay together.
fn halves(batch: PresenceBatch, clients: &BTreeSet<Option<ClientId>>) -> Vec<PresenceBatch> {
    let first_half: BTreeSet<_> = clients.iter().take(clients.len() / 2).collect();
    let limits = batch.dead_letter_limits;
    let mut halves = [PresenceBatch::default(), PresenceBatch::default()];
    for half in &mut halves {
        half.dead_letter_limits = limits;
    }
    let index = |client: &Option<ClientId>| usize::from(!first_half.contains(client));
    for row in batch.upserts {
        let half = index(&Some(row.client_id.clone()));
        halves[half].upserts.push(row);
    }
    for row in batch.heartbeats {
        let half = index(&Some(row.client_id.clone()));
        halves[half].heartbeats.push(row);
    }
    for row in batch.ends {
        let half = index(&Some(row.client_id.clone()));
        halves[half].ends.push(row);
    }
    for row in batch.dead_letters {
        halves[index(&row.client)].dead_letters.push(row);
    }
    halves.into()
}
