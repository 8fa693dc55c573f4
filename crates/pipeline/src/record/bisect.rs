//! Writes a batch even if the database rejects one of its rows.
//!
//! A rejected row is rare, because decoding rejects all values that the databases are known to
//! reject. This module splits the batch in half repeatedly until a batch contains only the rejected
//! row. The message of this row becomes a dead letter, and all other rows are written.

use std::collections::{BTreeSet, HashMap};

use super::{RecorderDeps, RecorderInput, metrics};
use domain::{ClientId, RejectReason, Timestamp};
use protocol::Rejection;
use store::{
    DeadLetter, DeadLetterLimits, PartitionLease, PresenceBatch, StoreError, WriteOutcome,
};

/// Writes a batch in one transaction. If the database rejects a row, splits the batch and writes
/// the parts in separate transactions.
///
/// `upsert_input_indexes` contains, for each client in `batch.upserts`, the index of its online
/// message in `inputs`.
pub(super) async fn write_batch(
    deps: &RecorderDeps,
    batch: PresenceBatch,
    inputs: &[&RecorderInput],
    upsert_input_indexes: &HashMap<ClientId, usize>,
    leases: &[PartitionLease],
    now: Timestamp,
) -> Result<WriteOutcome, StoreError> {
    let mut batches_to_write = vec![batch];
    while let Some(batch) = batches_to_write.pop() {
        match deps.store.record_batch(&batch, leases, now).await {
            Ok(WriteOutcome::Committed) => {}
            Ok(WriteOutcome::Fenced(lost_leases)) => return Ok(WriteOutcome::Fenced(lost_leases)),
            Err(StoreError::RowRejected(error)) => {
                let smaller_batches = split_rejected_batch(batch, &error.to_string(), |client| {
                    upsert_input_indexes.get(client).map(|index| inputs[*index])
                });
                batches_to_write.extend(smaller_batches);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(WriteOutcome::Committed)
}

/// Returns the batches to write instead of a rejected batch. Returns no batch if the rejected batch
/// contained a single row and this row cannot become a dead letter.
fn split_rejected_batch<'a>(
    mut batch: PresenceBatch,
    error: &str,
    find_upsert_input: impl Fn(&ClientId) -> Option<&'a RecorderInput>,
) -> Vec<PresenceBatch> {
    let clients = clients_of_batch(&batch);
    if clients.len() > 1 {
        return split_by_client(batch, &clients);
    }
    let dead_letters = std::mem::take(&mut batch.dead_letters);
    if dead_letters.len() > 1 || (!dead_letters.is_empty() && !batch.is_empty()) {
        let mut smaller_batches = one_batch_per_dead_letter(dead_letters, batch.dead_letter_limits);
        smaller_batches.push(batch);
        return smaller_batches;
    }
    let Some(upsert) = batch.upserts.pop() else {
        // The rejected row is a dead letter, a heartbeat or the end of a connection. Such a row
        // cannot become a dead letter, so it is discarded. No known message causes the database to
        // reject such a row.
        metrics::count_discarded_row(error);
        return Vec::new();
    };
    let rejection = Rejection::new(
        RejectReason::RejectedByDatabase,
        format!("the database rejected the row: {error}"),
    );
    if let Some(RecorderInput::Message { message, .. }) = find_upsert_input(&upsert.client_id) {
        metrics::count_dead_letter(&message.topic, &rejection);
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
fn clients_of_batch(batch: &PresenceBatch) -> BTreeSet<Option<ClientId>> {
    let upserts = batch.upserts.iter().map(|row| &row.client_id);
    let heartbeats = batch.heartbeats.iter().map(|row| &row.client_id);
    let ends = batch.connection_ends.iter().map(|row| &row.client_id);
    let presence_clients = upserts.chain(heartbeats).chain(ends);
    let dead_letter_clients = batch.dead_letters.iter().map(|row| row.client.clone());
    presence_clients
        .cloned()
        .map(Some)
        .chain(dead_letter_clients)
        .collect()
}

/// Splits a batch into two batches with half of the clients each. All rows of one client are in the
/// same batch.
fn split_by_client(
    batch: PresenceBatch,
    clients: &BTreeSet<Option<ClientId>>,
) -> Vec<PresenceBatch> {
    let first_half: BTreeSet<_> = clients.iter().take(clients.len() / 2).collect();
    let limits = batch.dead_letter_limits;
    let mut halves = [PresenceBatch::default(), PresenceBatch::default()];
    for half in &mut halves {
        half.dead_letter_limits = limits;
    }
    let half_index = |client: &Option<ClientId>| usize::from(!first_half.contains(client));
    for row in batch.upserts {
        let half = half_index(&Some(row.client_id.clone()));
        halves[half].upserts.push(row);
    }
    for row in batch.heartbeats {
        let half = half_index(&Some(row.client_id.clone()));
        halves[half].heartbeats.push(row);
    }
    for row in batch.connection_ends {
        let half = half_index(&Some(row.client_id.clone()));
        halves[half].connection_ends.push(row);
    }
    for row in batch.dead_letters {
        halves[half_index(&row.client)].dead_letters.push(row);
    }
    halves.into()
}
