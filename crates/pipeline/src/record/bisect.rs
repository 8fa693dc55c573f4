//! Writes a batch even if the database rejects one of its rows.
//!
//! A rejected row is rare, because decoding rejects all values that the databases are known to
//! reject. The store splits the batch in half repeatedly until a batch contains only the rejected
//! row. The message of this row becomes a dead letter, and all other rows are written.
//!
//! All rejected rows of a batch are collected before the first dead letter is written. If the
//! database rejects the rows of most clients, the batch is retried without dead letters, see
//! [`RejectionMonitor`](super::rejections::RejectionMonitor). While such an outage lasts, an attempt writes the rows of only one client.

use std::collections::{HashMap, HashSet};

use super::host_reporting::report_committed_hosts;
use super::metrics;
use super::rejections::{BatchRows, RejectionOutage, RowKind};
use super::writer::WriterContext;
use domain::{ClientId, Identity, RejectReason, Timestamp};
use protocol::{InboundMessage, Rejection};
use store::{
    ConnectionUpsert, DeadLetter, PartitionLease, PartsObserver, PresenceBatch, RejectedPart,
    SplitBatch, StoreError, TenantChange, WriteOutcome,
};

/// An attempt to write a batch failed. The recorder retries the batch.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// The database is unavailable.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The database rejects the rows of most clients.
    #[error("{0}")]
    RejectionOutage(RejectionOutage),
    /// The database accepted a row again after it had rejected the rows of most clients.
    #[error("the database accepts rows again")]
    RejectionOutageEnded,
}

impl From<RejectionOutage> for WriteError {
    fn from(outage: RejectionOutage) -> Self {
        Self::RejectionOutage(outage)
    }
}

/// What the earlier attempts to write a batch have done.
#[derive(Default)]
pub(super) struct WriteProgress {
    /// Number of rounds of [`write_batch`] whose rows are counted in the window of the monitor. An
    /// attempt writes the batch in the first round, and the dead letters of rejected rows in the
    /// next rounds.
    counted_rounds: usize,
    /// Fingerprints and clients of the dead letters that earlier attempts have stored. Storing a
    /// dead letter again would count another occurrence of the message.
    stored_dead_letters: HashSet<(Option<ClientId>, String)>,
    /// The identities of the clients whose tenants the current attempt has found.
    pub identities: HashMap<ClientId, Identity>,
}

impl WriteProgress {
    /// Returns whether an earlier attempt has stored the dead letter.
    pub fn has_stored(&self, dead_letter: &DeadLetter) -> bool {
        !self.stored_dead_letters.is_empty()
            && self
                .stored_dead_letters
                .contains(&(dead_letter.client.clone(), dead_letter.fingerprint()))
    }
}

/// Writes a batch in one transaction. If the database rejects a row, splits the batch and writes
/// the parts in separate transactions.
///
/// `find_online_message` returns the message that caused the upsert of a client.
pub(super) async fn write_batch<'a>(
    context: &WriterContext,
    batch: PresenceBatch,
    leases: &[PartitionLease],
    now: Timestamp,
    progress: &mut WriteProgress,
    find_online_message: impl Fn(&ClientId) -> Option<&'a InboundMessage>,
) -> Result<WriteOutcome, WriteError> {
    if let Some(outage) = context.monitor().outage() {
        let fenced = probe(context, &outage, &batch, leases, now, progress).await?;
        if let Some(fenced) = fenced {
            return Ok(fenced);
        }
    }
    let mut discarded_rows = Vec::new();
    let mut new_dead_letters = Vec::new();
    let mut batches_to_write = vec![batch];
    let mut round = 0;
    while !batches_to_write.is_empty() {
        round += 1;
        let mut observer = BatchObserver::new(context, now, progress, round);
        for batch in std::mem::take(&mut batches_to_write) {
            let presence = &*context.deps.presence;
            let outcome = store::record_batch_in_parts(presence, batch, leases, now, &mut observer);
            match outcome.await? {
                WriteOutcome::Committed => {}
                outcome @ (WriteOutcome::Fenced(_) | WriteOutcome::Conflict) => return Ok(outcome),
            }
        }
        for part in observer.finish()? {
            let error = part.rejection.to_string();
            match replace_rejected_upsert(part.rows, &error, &find_online_message) {
                Some((mut batch, dead_letter)) => {
                    new_dead_letters.extend(dead_letter);
                    batch
                        .dead_letters
                        .retain(|dead_letter| !progress.has_stored(dead_letter));
                    if !batch.is_empty() {
                        batches_to_write.push(batch);
                    }
                }
                None => discarded_rows.push(error),
            }
        }
    }
    // Counted only now, because an error would have caused another attempt.
    for (topic, rejection) in &new_dead_letters {
        metrics::count_dead_letter(topic, rejection);
    }
    for error in &discarded_rows {
        metrics::count_discarded_row(error);
    }
    Ok(WriteOutcome::Committed)
}

/// Writes the rows of one client during an outage, to detect the end of the outage. Returns the
/// outcome if the rows were not written for another reason. Returns `None` if the batch contains no rows of the
/// rejected kind.
async fn probe(
    context: &WriterContext,
    outage: &RejectionOutage,
    batch: &PresenceBatch,
    leases: &[PartitionLease],
    now: Timestamp,
    progress: &mut WriteProgress,
) -> Result<Option<WriteOutcome>, WriteError> {
    // A random client, because the row of a certain client can be rejected for another reason.
    let Some(rows) = random_part(batch.clone(), outage.row_kind) else {
        return Ok(None);
    };
    let write = context.deps.presence.record_batch(&rows, leases, now);
    match write.await {
        Ok(WriteOutcome::Committed) => {
            on_committed(context, &rows, progress, now);
            context.monitor().end_outage();
            Err(WriteError::RejectionOutageEnded)
        }
        Ok(fenced) => Ok(Some(fenced)),
        Err(StoreError::RowRejected(_)) => Err(outage.clone().into()),
        Err(error) => Err(error.into()),
    }
}

/// Returns a random part of the batch that cannot be split and contains a row of this kind.
fn random_part(batch: PresenceBatch, row_kind: RowKind) -> Option<PresenceBatch> {
    if !row_kind.is_in(&batch) {
        return None;
    }
    match batch.split() {
        SplitBatch::Parts(mut parts) => {
            parts.retain(|part| row_kind.is_in(part));
            let index = fastrand::usize(..parts.len());
            random_part(parts.swap_remove(index), row_kind)
        }
        SplitBatch::Indivisible(part) => Some(part),
    }
}

/// Counts the rows of a transaction, remembers its dead letters, and queues the reports of its hosts.
fn on_committed(
    context: &WriterContext,
    part: &PresenceBatch,
    progress: &mut WriteProgress,
    now: Timestamp,
) {
    report_committed_hosts(context, part, &progress.identities, now);
    log_unchanged_presence(part);
    metrics::count_applied_messages("online", part.upserts.len());
    metrics::count_applied_messages("heartbeat", part.heartbeats.len());
    metrics::count_applied_messages("offline", part.connection_ends.len());
    for dead_letter in &part.dead_letters {
        let key = (dead_letter.client.clone(), dead_letter.fingerprint());
        progress.stored_dead_letters.insert(key);
    }
}

/// Writes a log line for each online message of a client that was connected already. The store logs the
/// messages that change presence.
fn log_unchanged_presence(part: &PresenceBatch) {
    if part.upserts.is_empty() || !tracing::enabled!(tracing::Level::DEBUG) {
        return;
    }
    let changed: HashSet<&ClientId> = part.history.iter().map(|row| &row.client_id).collect();
    let unchanged = |row: &&ConnectionUpsert| !changed.contains(&row.client_id);
    for row in part.upserts.iter().filter(unchanged) {
        let org_id = match &row.tenant {
            TenantChange::Found(tenant) | TenantChange::Keep(tenant) => tenant.org_id.as_str(),
            TenantChange::NotFound(_) | TenantChange::PendingLookup => "",
        };
        let updated = part
            .events
            .iter()
            .any(|event| event.client_id == row.client_id);
        let reason = if updated { "updated" } else { "unchanged" };
        metrics::log_online_message(&row.client_id, org_id, reason);
    }
}

/// Collects the rejected parts of a batch.
struct BatchObserver<'a> {
    context: &'a WriterContext,
    now: Timestamp,
    progress: &'a mut WriteProgress,
    round: usize,
    accepted_rows: usize,
    rejected_parts: Vec<RejectedPart>,
}

impl<'a> BatchObserver<'a> {
    fn new(
        context: &'a WriterContext,
        now: Timestamp,
        progress: &'a mut WriteProgress,
        round: usize,
    ) -> Self {
        Self {
            context,
            now,
            progress,
            round,
            accepted_rows: 0,
            rejected_parts: Vec::new(),
        }
    }

    /// Returns the rejected parts. Fails if the rejected parts are an outage.
    fn finish(self) -> Result<Vec<RejectedPart>, RejectionOutage> {
        if self.is_counted() {
            return Ok(self.rejected_parts);
        }
        let rows = BatchRows {
            accepted: self.accepted_rows,
            rejected: &self.rejected_parts,
        };
        if let Some(outage) = self.context.monitor().add(&rows, self.now) {
            return Err(outage);
        }
        self.progress.counted_rounds = self.round;
        Ok(self.rejected_parts)
    }

    /// Returns whether an earlier attempt has counted the rows of this round. The rows are then not
    /// counted again.
    fn is_counted(&self) -> bool {
        self.round <= self.progress.counted_rounds
    }
}

impl PartsObserver for BatchObserver<'_> {
    fn on_committed(&mut self, part: &PresenceBatch) {
        self.accepted_rows += part.message_row_count();
        on_committed(self.context, part, self.progress, self.now);
    }

    fn on_rejected(&mut self, part: RejectedPart) {
        // Delivered reports that the database rejects must not delay messages. Their hosts stay
        // pending.
        if part.rows.message_row_count() == 0 {
            metrics::count_discarded_row(&part.rejection.to_string());
            return;
        }
        self.rejected_parts.push(part);
    }
}

/// The topic of a rejected message and the reason.
type NewDeadLetter = (String, Rejection);

/// Replaces the upsert of a rejected batch with a dead letter. `batch` contains either one dead
/// letter or the presence changes of one client. Returns `None` if the batch contains no upsert.
fn replace_rejected_upsert<'a>(
    mut batch: PresenceBatch,
    error: &str,
    find_online_message: impl Fn(&ClientId) -> Option<&'a InboundMessage>,
) -> Option<(PresenceBatch, Option<NewDeadLetter>)> {
    // If there is no upsert, the rejected row is a dead letter, a heartbeat or the end of a
    // connection. Such a row cannot become a dead letter, so it is discarded. No known message
    // causes the database to reject such a row.
    let upsert = batch.upserts.pop()?;
    let rejection = Rejection::new(
        RejectReason::RejectedByDatabase,
        format!("the database rejected the row: {error}"),
    );
    let Some(message) = find_online_message(&upsert.client_id) else {
        return Some((batch, None));
    };
    let client = Some(upsert.client_id);
    batch
        .dead_letters
        .push(DeadLetter::new(client, message, &rejection));
    Some((batch, Some((message.topic.clone(), rejection))))
}
