//! The lease of a session at an external broker.
//!
//! A session has one connection at a time: the broker closes the connection of a process when another
//! process connects with the same client id. Without a lease, two processes would disconnect each
//! other again and again. With the lease, one process is active, and the others are on standby.
//!
//! The lease only prevents needless takeovers. Messages are in order without it, because the broker
//! and the epochs order the connections (docs/decisions/017-ingest-epoch-and-sequence.md). Therefore an
//! active process continues while the database is unavailable, and a process that starts without a
//! database connects without a lease.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::epoch::EpochSource;
use service::LogThrottle;

/// Time after which another process takes over from a process that no longer renews its lease.
const LEASE_DURATION: Duration = Duration::from_secs(3);
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a process on standby tries to acquire the lease.
const ACQUIRE_INTERVAL: Duration = Duration::from_millis(500);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// A process that starts while the database is unavailable connects after this time.
const MAX_WAIT_FOR_DATABASE: Duration = Duration::from_secs(5);

/// Decides whether this process may connect with a session.
#[derive(Clone)]
pub struct SessionLease {
    /// The session.
    pub source: EpochSource,
    /// Name of this process. A restarted process should have the same name, so that it does not wait
    /// until its own lease expires.
    pub holder: String,
}

impl SessionLease {
    /// Waits until this process may connect. Calls `on_standby` when another process has the lease.
    pub(super) async fn acquire(&self, on_standby: impl Fn()) {
        let started_at = Instant::now();
        let mut is_standby = false;
        loop {
            match self.hold().await {
                Some(true) => {
                    if is_standby {
                        tracing::info!("acquired the lease of the MQTT session; connecting");
                    }
                    return;
                }
                Some(false) => {
                    if !is_standby {
                        tracing::info!(
                            "another process has the MQTT session; this process is on standby"
                        );
                    }
                    is_standby = true;
                    on_standby();
                }
                // The active process could not renew its lease either. After the outage it renews
                // first, so that the outage does not cause a takeover.
                None if is_standby => sleep(LEASE_DURATION).await,
                None if started_at.elapsed() >= MAX_WAIT_FOR_DATABASE => return,
                None => {}
            }
            sleep(ACQUIRE_INTERVAL).await;
        }
    }

    /// Renews the lease. Returns a reason when another process has acquired the lease.
    pub(super) async fn renew_until_lost(&self) -> String {
        loop {
            sleep(RENEW_INTERVAL).await;
            if self.hold().await == Some(false) {
                return "another process has acquired the lease of the MQTT session".to_owned();
            }
        }
    }

    /// Ends the lease, so that another process takes over immediately.
    pub(super) async fn release(&self) {
        let EpochSource {
            repository,
            session_name,
        } = &self.source;
        let release = repository.release_ingest_session(session_name, &self.holder);
        match timeout(REQUEST_TIMEOUT, release).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "failed to release the MQTT session"),
            Err(_) => tracing::debug!("failed to release the MQTT session in time"),
        }
    }

    /// Acquires or renews the lease. Returns whether this process has it, or `None` if the database
    /// does not respond.
    async fn hold(&self) -> Option<bool> {
        static LOG_THROTTLE: LogThrottle = LogThrottle::new();
        let EpochSource {
            repository,
            session_name,
        } = &self.source;
        let request = repository.hold_ingest_session(session_name, &self.holder, LEASE_DURATION);
        let error = match timeout(REQUEST_TIMEOUT, request).await {
            Ok(Ok(is_held)) => return Some(is_held),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no response within {REQUEST_TIMEOUT:?}"),
        };
        if LOG_THROTTLE.should_log() {
            tracing::debug!(error, "failed to renew the lease of the MQTT session");
        }
        None
    }
}
