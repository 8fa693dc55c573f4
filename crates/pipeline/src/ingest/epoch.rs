//! The epoch of a connection to an external broker, and the stamps of its messages.
//!
//! A session at the broker has one connection at a time. Each connection acquires an epoch from the
//! database after its CONNACK, so a later connection of the session has a higher epoch. The epoch
//! and the number of a message in its connection order all messages of the session, whichever host
//! forwards them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::metrics;
use domain::IngestStamp;
use store::{IngestEpoch, IngestEpochRepository};

/// Maximum time that the first message of a connection waits for the epoch. The first messages need
/// an epoch most: the broker queued them while another host may have been active. The limit covers
/// a slow database and a restart of the database, in which no message could be recorded anyway.
/// Messages must also be forwarded while the database is unavailable for longer.
const MAX_WAIT_FOR_EPOCH: Duration = Duration::from_secs(15);
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(250);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Issues the epochs of a session.
#[derive(Clone)]
pub struct EpochSource {
    /// The database.
    pub repository: Arc<dyn IngestEpochRepository>,
    /// Name of the session, which identifies the broker and the MQTT client id.
    pub session_name: String,
}

/// The epoch of one connection. Until the epoch is acquired, messages have no stamp.
pub(super) struct ConnectionEpoch {
    epoch: watch::Receiver<Option<IngestEpoch>>,
    /// Number of messages of the connection so far.
    sequence: i64,
    /// `None` if the connection needs no epoch.
    _acquisition: Option<AbortOnDropHandle<()>>,
}

impl ConnectionEpoch {
    /// Acquires an epoch in the background. Call this function after the CONNACK. `session_present` is the
    /// value in the CONNACK.
    pub fn acquire(source: Option<&EpochSource>, session_present: bool) -> Self {
        metrics::set_ingest_epoch(0);
        let (sender, epoch) = watch::channel(None);
        let acquisition = source.cloned().map(|source| {
            // A panic of the task leaves the connection without an epoch, like an unavailable
            // database.
            AbortOnDropHandle::new(tokio::spawn(acquire_epoch(source, session_present, sender)))
        });
        Self {
            epoch,
            sequence: 0,
            _acquisition: acquisition,
        }
    }

    /// Waits until the epoch is acquired, but not longer than [`MAX_WAIT_FOR_EPOCH`]. Returns
    /// immediately if the connection needs no epoch.
    pub async fn wait(&mut self) {
        let acquired = self.epoch.wait_for(Option::is_some);
        // Without an epoch, the messages are forwarded without stamps.
        let _ = tokio::time::timeout(MAX_WAIT_FOR_EPOCH, acquired).await;
    }

    /// Returns the stamp of the next message.
    pub fn next_stamp(&mut self) -> Option<IngestStamp> {
        self.sequence += 1;
        let IngestEpoch { session, epoch } = (*self.epoch.borrow())?;
        Some(IngestStamp {
            session,
            epoch,
            sequence: self.sequence,
        })
    }
}

/// Acquires an epoch. Retries until it succeeds.
async fn acquire_epoch(
    source: EpochSource,
    session_present: bool,
    sender: watch::Sender<Option<IngestEpoch>>,
) {
    let mut retry_interval = MIN_RETRY_INTERVAL;
    let mut has_failed = false;
    let epoch = loop {
        match source
            .repository
            .next_ingest_epoch(&source.session_name, session_present)
            .await
        {
            Ok(epoch) => break epoch,
            Err(error) if has_failed => {
                tracing::debug!(%error, "failed to acquire an ingest epoch");
            }
            Err(error) => tracing::warn!(
                %error,
                "failed to acquire an ingest epoch; retrying; until then, receive times decide \
                 the order of heartbeats and offline messages"
            ),
        }
        has_failed = true;
        tokio::time::sleep(retry_interval).await;
        retry_interval = (retry_interval * 2).min(MAX_RETRY_INTERVAL);
    };
    let IngestEpoch {
        session,
        epoch: number,
    } = epoch;
    tracing::info!(session, epoch = number, "acquired ingest epoch");
    metrics::set_ingest_epoch(number);
    sender.send_replace(Some(epoch));
}
