//! Sends queued registrations to the sources service. The queue length and the number of concurrent
//! requests are limited. A cache prevents repeated registrations.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use futures::StreamExt as _;
use moka::sync::Cache;
use tokio::sync::mpsc;

use super::client::{RegistrationOutcome, Source, SourcesClient};
use crate::metrics;
use domain::{ClientId, Identity};
use service::LogThrottle;
use service::TaskGroup;

/// Maximum number of queued registrations. If the queue is full, a registration is dropped, and the
/// proxy is registered when it reconnects.
const MAX_QUEUED_REGISTRATIONS: usize = 1000;
/// Maximum number of registrations in flight.
const MAX_REGISTRATIONS_IN_FLIGHT: usize = 8;
/// A registration that was successful or rejected is cached for this time and not repeated. This
/// limits the number of requests when many proxies reconnect at once.
const CACHE_TTL: Duration = Duration::from_hours(1);
/// Maximum number of cached registrations.
const MAX_CACHED_REGISTRATIONS: u64 = 100_000;
/// Delay before each retry of a failed registration. Without retries, a proxy that stays connected
/// for months would remain unregistered for months.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

struct Registration {
    identity: Identity,
    source: Source,
    client: ClientId,
}

/// Status of a finished registration, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RegistrationStatus {
    AlreadyExists,
    Created,
    Rejected,
    Failed,
    /// An equal registration was processed less than [`CACHE_TTL`] ago.
    Cached,
    /// The queue was full or closed.
    Dropped,
}

impl RegistrationStatus {
    fn as_str(self) -> &'static str {
        match self {
            Self::AlreadyExists => "existed",
            Self::Created => "created",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::Cached => "cached",
            Self::Dropped => "dropped",
        }
    }
}

impl From<&RegistrationOutcome> for RegistrationStatus {
    fn from(outcome: &RegistrationOutcome) -> Self {
        match outcome {
            RegistrationOutcome::AlreadyExists => Self::AlreadyExists,
            RegistrationOutcome::Created => Self::Created,
            RegistrationOutcome::Rejected(_) => Self::Rejected,
            RegistrationOutcome::Failed(_) => Self::Failed,
        }
    }
}

/// The receiving end of the queue, for [`process_registrations`].
pub struct RegistrationQueue(mpsc::Receiver<Registration>);

/// The sending end of the queue. Clones send to the same queue.
#[derive(Clone)]
pub struct SourceRegistrar(mpsc::Sender<Registration>);

impl SourceRegistrar {
    /// Creates a queue. Returns the sending end and the receiving end.
    #[must_use]
    pub fn channel() -> (Self, RegistrationQueue) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_REGISTRATIONS);
        (Self(sender), RegistrationQueue(receiver))
    }

    /// Queues a registration without waiting. If the queue is full or closed, drops the
    /// registration and returns false.
    pub fn try_register(&self, identity: &Identity, source: Source, client: &ClientId) -> bool {
        static LOG_THROTTLE: LogThrottle = LogThrottle::new();
        let send_result = self.0.try_send(Registration {
            identity: identity.clone(),
            source,
            client: client.clone(),
        });
        if send_result.is_err() {
            metrics::count_source_registration(RegistrationStatus::Dropped.as_str());
            if LOG_THROTTLE.should_log() {
                tracing::warn!(client_id = %client, "source registration dropped: queue full or closed");
            }
        }
        send_result.is_ok()
    }
}

/// Processes queued registrations until `tasks` is cancelled. Cancellation drops the registrations
/// in flight. The proxies are then registered when they reconnect.
pub async fn process_registrations(
    queue: RegistrationQueue,
    sources: SourcesClient,
    tasks: TaskGroup,
) {
    process_registrations_with_delays(queue, sources, tasks.clone(), &RETRY_DELAYS).await;
    // If the recorder has stopped, there are no more registrations.
    tasks.cancelled().await;
}

/// Processes queued registrations until all [`SourceRegistrar`]s are dropped or `tasks` is
/// cancelled.
pub(super) async fn process_registrations_with_delays(
    mut queue: RegistrationQueue,
    sources: SourcesClient,
    tasks: TaskGroup,
    retry_delays: &[Duration],
) {
    let processor = RegistrationProcessor {
        sources,
        hasher: RandomState::new(),
        cache: Cache::builder()
            .max_capacity(MAX_CACHED_REGISTRATIONS)
            .time_to_live(CACHE_TTL)
            .build(),
        retry_delays,
    };
    let registrations = futures::stream::poll_fn(move |context| queue.0.poll_recv(context));
    let process_all = registrations
        .for_each_concurrent(MAX_REGISTRATIONS_IN_FLIGHT, |registration| {
            processor.process(registration)
        });
    tokio::select! {
        () = process_all => {}
        () = tasks.cancelled() => {}
    }
}

struct RegistrationProcessor<'a> {
    sources: SourcesClient,
    hasher: RandomState,
    /// Hashes of recent registrations. A hash needs less memory than a source. A hash collision
    /// only delays a registration by at most [`CACHE_TTL`].
    cache: Cache<u64, ()>,
    retry_delays: &'a [Duration],
}

impl RegistrationProcessor<'_> {
    async fn process(&self, registration: Registration) {
        let Registration {
            identity,
            source,
            client,
        } = &registration;
        let org = identity.tenant().map(|tenant| &tenant.org_id);
        let cache_key = self.hasher.hash_one((org, client, source));
        // The key is inserted before the request, so concurrent equal registrations send only one
        // request.
        if !self.cache.entry(cache_key).or_insert(()).is_fresh() {
            metrics::count_source_registration(RegistrationStatus::Cached.as_str());
            return;
        }
        let outcome = self.register_with_retries(&registration).await;
        if matches!(outcome, RegistrationOutcome::Failed(_)) {
            self.cache.invalidate(&cache_key);
        }
        metrics::count_source_registration(RegistrationStatus::from(&outcome).as_str());
        log_outcome(client, &outcome);
    }

    /// Registers a source. Retries after a failure, but not after a rejection. Returns the outcome
    /// of the last attempt.
    async fn register_with_retries(&self, registration: &Registration) -> RegistrationOutcome {
        let Registration {
            identity,
            source,
            client,
        } = registration;
        let mut outcome = self.sources.register(identity, source, client).await;
        for delay in self.retry_delays {
            let RegistrationOutcome::Failed(reason) = &outcome else {
                break;
            };
            tracing::debug!(client_id = %client, reason, "source registration failed; retrying");
            tokio::time::sleep(*delay).await;
            outcome = self.sources.register(identity, source, client).await;
        }
        outcome
    }
}

/// Logs the outcome. Limits the number of warnings about failures, so an outage cannot fill the
/// disk with logs.
fn log_outcome(client: &ClientId, outcome: &RegistrationOutcome) {
    static LOG_THROTTLE: LogThrottle = LogThrottle::new();
    match outcome {
        RegistrationOutcome::Created => tracing::info!(client_id = %client, "source registered"),
        RegistrationOutcome::AlreadyExists => {
            tracing::debug!(client_id = %client, "source is already registered");
        }
        RegistrationOutcome::Rejected(body) => {
            tracing::warn!(client_id = %client, body, "source rejected by the sources service");
        }
        RegistrationOutcome::Failed(reason) if LOG_THROTTLE.should_log() => {
            tracing::warn!(
                client_id = %client, reason,
                "source registration failed; check sources.url (further failures are only counted)"
            );
        }
        RegistrationOutcome::Failed(reason) => {
            tracing::debug!(client_id = %client, reason, "source registration failed");
        }
    }
}
