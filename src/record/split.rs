//! Writing a batch although the database refuses a row of it.
//!
//! What either database would refuse is found in Rust first, so this is for what nobody thought of:
//! the batch is halved until the row is found, and that one goes to the dead letters.

use std::collections::{BTreeSet, HashMap};

use super::{Event, Parts};
use crate::domain::{ClientId, Timestamp};
use crate::protocol::Rejected;
use crate::store::{Batch, DeadLetter, Fence, StoreError, Written};
use crate::telemetry::metrics;

/// Writes a batch, in one transaction if the database takes it. `sources` says which event each
/// arrival is of.
pub(super) async fn write(
    parts: &Parts,
    batch: Batch,
    events: &[&Event],
    sources: &HashMap<ClientId, usize>,
    fences: &[Fence],
    now: Timestamp,
) -> Result<Written, StoreError> {
    let mut left = vec![batch];
    while let Some(batch) = left.pop() {
        match parts.store.record_batch(&batch, fences, now).await {
            Ok(Written::Done) => {}
            Ok(fenced) => return Ok(fenced),
            Err(StoreError::Refused(error)) => {
                let why = error.to_string();
                left.extend(smaller(batch, &why, |client| {
                    sources.get(client).map(|at| events[*at])
                }));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Written::Done)
}

/// What to try instead of a batch that was refused. Nothing, if it was one row that is given up.
fn smaller<'a>(
    mut batch: Batch,
    why: &str,
    event_of: impl Fn(&ClientId) -> Option<&'a Event>,
) -> Vec<Batch> {
    let clients = clients(&batch);
    if clients.len() > 1 {
        return halves(batch, &clients);
    }
    if !batch.dead_letters.is_empty() && !(batch.arrivals.is_empty() && is_quiet(&batch)) {
        let dead_letters = std::mem::take(&mut batch.dead_letters);
        let apart = Batch {
            dead_letters,
            letters_per_client: batch.letters_per_client,
            ..Batch::default()
        };
        return vec![apart, batch];
    }
    if batch.dead_letters.len() > 1 {
        return one_letter_each(batch);
    }
    let Some(arrival) = batch.arrivals.pop() else {
        // Names and times that were read from messages that parse: not known to happen.
        metrics::row_given_up(why);
        return Vec::new();
    };
    let rejected = Rejected::new("refused", format!("the database refuses the row: {why}"));
    if let Some(Event::Message { message, .. }) = event_of(&arrival.client_id) {
        metrics::dead_letter(&message.topic, &rejected);
        let client = Some(arrival.client_id);
        batch
            .dead_letters
            .push(DeadLetter::new(client, message, &rejected));
    }
    vec![batch]
}

fn is_quiet(batch: &Batch) -> bool {
    batch.sightings.is_empty() && batch.departures.is_empty()
}

fn one_letter_each(batch: Batch) -> Vec<Batch> {
    let letters_per_client = batch.letters_per_client;
    let letters = batch.dead_letters.into_iter();
    let one = |letter| Batch {
        dead_letters: vec![letter],
        letters_per_client,
        ..Batch::default()
    };
    letters.map(one).collect()
}

fn clients(batch: &Batch) -> BTreeSet<Option<ClientId>> {
    let arrivals = batch.arrivals.iter().map(|row| &row.client_id);
    let sightings = batch.sightings.iter().map(|row| &row.client_id);
    let departures = batch.departures.iter().map(|row| &row.client_id);
    let named = arrivals.chain(sightings).chain(departures);
    let letters = batch.dead_letters.iter().map(|row| row.client.clone());
    named.cloned().map(Some).chain(letters).collect()
}

/// Half of the clients each: what is written of one client stays together.
fn halves(batch: Batch, clients: &BTreeSet<Option<ClientId>>) -> Vec<Batch> {
    let first: BTreeSet<_> = clients.iter().take(clients.len() / 2).collect();
    let is_first = |client: &Option<ClientId>| first.contains(client);
    let named = |client: &ClientId| is_first(&Some(client.clone()));
    let part = |rows: (Vec<_>, Vec<_>), more: (Vec<_>, Vec<_>), gone: (Vec<_>, Vec<_>)| {
        ((rows.0, more.0, gone.0), (rows.1, more.1, gone.1))
    };
    let (a, b) = part(
        batch
            .arrivals
            .into_iter()
            .partition(|row| named(&row.client_id)),
        batch
            .sightings
            .into_iter()
            .partition(|row| named(&row.client_id)),
        batch
            .departures
            .into_iter()
            .partition(|row| named(&row.client_id)),
    );
    let (letters_a, letters_b) = batch
        .dead_letters
        .into_iter()
        .partition(|row| is_first(&row.client));
    let letters_per_client = batch.letters_per_client;
    let whole = |(arrivals, sightings, departures), dead_letters| Batch {
        arrivals,
        sightings,
        departures,
        dead_letters,
        letters_per_client,
    };
    vec![whole(a, letters_a), whole(b, letters_b)]
}
