//! Writing a batch although the database refuses a row of it.
//!
//! What either database would refuse is found in Rust first, so this is for what nobody thought of:
//! the batch is halved until the row is found, and that one goes to the dead letters.

use std::collections::{BTreeSet, HashMap};

use super::{RecorderDeps, RecorderInput};
use crate::domain::{ClientId, Timestamp};
use crate::protocol::Rejection;
use crate::store::{
    DeadLetter, DeadLetterLimits, PartitionLease, PresenceBatch, StoreError, WriteOutcome,
};
use crate::telemetry::metrics;

/// Writes a batch, in one transaction if the database takes it. `sources` says which event each
/// arrival is of.
pub(super) async fn write(
    parts: &RecorderDeps,
    batch: PresenceBatch,
    events: &[&RecorderInput],
    sources: &HashMap<ClientId, usize>,
    fences: &[PartitionLease],
    now: Timestamp,
) -> Result<WriteOutcome, StoreError> {
    let mut left = vec![batch];
    while let Some(batch) = left.pop() {
        match parts.store.record_batch(&batch, fences, now).await {
            Ok(WriteOutcome::Committed) => {}
            Ok(WriteOutcome::Fenced(lost)) => return Ok(WriteOutcome::Fenced(lost)),
            Err(StoreError::RowRejected(error)) => {
                let why = error.to_string();
                left.extend(smaller(batch, &why, |client| {
                    sources.get(client).map(|at| events[*at])
                }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(WriteOutcome::Committed)
}

/// What to try instead of a batch that was refused. Nothing, if it was one row that is given up.
fn smaller<'a>(
    mut batch: PresenceBatch,
    why: &str,
    event_of: impl Fn(&ClientId) -> Option<&'a RecorderInput>,
) -> Vec<PresenceBatch> {
    let clients = clients(&batch);
    if clients.len() > 1 {
        return halves(batch, &clients);
    }
    let letters = std::mem::take(&mut batch.dead_letters);
    if letters.len() > 1 || (!letters.is_empty() && !batch.is_empty()) {
        let mut apart = one_letter_each(letters, batch.letters);
        apart.push(batch);
        return apart;
    }
    let Some(arrival) = batch.arrivals.pop() else {
        // Names and times that were read from messages that parse: not known to happen.
        metrics::row_given_up(why);
        return Vec::new();
    };
    let rejected = Rejection::new("refused", format!("the database refuses the row: {why}"));
    if let Some(RecorderInput::Message { message, .. }) = event_of(&arrival.client_id) {
        metrics::dead_letter(&message.topic, &rejected);
        let client = Some(arrival.client_id);
        batch
            .dead_letters
            .push(DeadLetter::new(client, message, &rejected));
    }
    vec![batch]
}

fn one_letter_each(letters: Vec<DeadLetter>, limits: DeadLetterLimits) -> Vec<PresenceBatch> {
    let one = |letter| PresenceBatch {
        dead_letters: vec![letter],
        letters: limits,
        ..PresenceBatch::default()
    };
    letters.into_iter().map(one).collect()
}

fn clients(batch: &PresenceBatch) -> BTreeSet<Option<ClientId>> {
    let arrivals = batch.arrivals.iter().map(|row| &row.client_id);
    let sightings = batch.sightings.iter().map(|row| &row.client_id);
    let departures = batch.departures.iter().map(|row| &row.client_id);
    let named = arrivals.chain(sightings).chain(departures);
    let letters = batch.dead_letters.iter().map(|row| row.client.clone());
    named.cloned().map(Some).chain(letters).collect()
}

/// Half of the clients each: what is written of one client stays together.
fn halves(batch: PresenceBatch, clients: &BTreeSet<Option<ClientId>>) -> Vec<PresenceBatch> {
    let first: BTreeSet<_> = clients.iter().take(clients.len() / 2).collect();
    let is_first = |client: &Option<ClientId>| first.contains(client);
    let named = |client: &ClientId| is_first(&Some(client.clone()));
    let mut halves = [PresenceBatch::default(), PresenceBatch::default()];
    for half in &mut halves {
        half.letters = batch.letters;
    }
    let [a, b] = &mut halves;
    for row in batch.arrivals {
        let half = if named(&row.client_id) {
            &mut *a
        } else {
            &mut *b
        };
        half.arrivals.push(row);
    }
    for row in batch.sightings {
        let half = if named(&row.client_id) {
            &mut *a
        } else {
            &mut *b
        };
        half.sightings.push(row);
    }
    for row in batch.departures {
        let half = if named(&row.client_id) {
            &mut *a
        } else {
            &mut *b
        };
        half.departures.push(row);
    }
    for row in batch.dead_letters {
        let half = if is_first(&row.client) {
            &mut *a
        } else {
            &mut *b
        };
        half.dead_letters.push(row);
    }
    halves.into()
}
