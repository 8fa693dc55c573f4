//! Registering beside the recording: bounded in what waits, in how many at once, and in how often.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use futures::StreamExt as _;
use moka::sync::Cache;
use tokio::sync::mpsc;

use super::client::{Outcome, Source, Sources};
use crate::domain::{ClientId, Identity};
use crate::shutdown::TaskGroup;
use crate::telemetry::metrics::{self, LogThrottle};

/// More than this in line are dropped: a proxy that comes back is registered then.
const IN_LINE: usize = 1000;
/// Registrations under way at once.
const AT_ONCE: usize = 8;
/// What was registered or refused is left alone this long, so that those who come back all at once
/// do not cost the service a request each.
const REMEMBERED_FOR: Duration = Duration::from_hours(1);
/// How many of these are remembered.
const REMEMBERED: u64 = 100_000;
/// How long after each failure it is tried again. A proxy may stay connected for months, and nothing
/// else would register it.
const TRIED_AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];

struct Registration {
    identity: Identity,
    source: Source,
    client: ClientId,
}

/// Where registrations come out, for [`run`].
pub struct RegistrationQueue(mpsc::Receiver<Registration>);

/// Where registrations go in. A clone is the same.
#[derive(Clone)]
pub struct SourceRegistrar(mpsc::Sender<Registration>);

impl SourceRegistrar {
    /// Both ends.
    #[must_use]
    pub fn channel() -> (Self, RegistrationQueue) {
        let (sender, receiver) = mpsc::channel(IN_LINE);
        (Self(sender), RegistrationQueue(receiver))
    }

    /// Has a source registered when its turn comes. Never waits: false if too many are in line, or
    /// nobody registers any more, and it was dropped.
    pub fn try_register(&self, identity: &Identity, source: Source, client: &ClientId) -> bool {
        static SAID: LogThrottle = LogThrottle::new();
        let taken = self.0.try_send(Registration {
            identity: identity.clone(),
            source,
            client: client.clone(),
        });
        if taken.is_err() {
            metrics::source_registered("dropped");
            if SAID.now() {
                tracing::warn!(client_id = %client, "a source is not registered: too many are in line");
            }
        }
        taken.is_ok()
    }
}

/// Registers what comes, a few at a time, until there is nobody who could order more or `stopper`
/// asks. What is under way then is dropped: a proxy that comes back is looked for first.
pub async fn run(orders: RegistrationQueue, sources: Sources, stopper: TaskGroup) {
    run_with(orders, sources, stopper, &TRIED_AGAIN_AFTER).await;
}

pub(super) async fn run_with(
    mut orders: RegistrationQueue,
    sources: Sources,
    stopper: TaskGroup,
    tried_again_after: &[Duration],
) {
    let registering = Registering {
        sources,
        hasher: RandomState::new(),
        memory: Cache::builder()
            .max_capacity(REMEMBERED)
            .time_to_live(REMEMBERED_FOR)
            .build(),
        tried_again_after,
    };
    let coming = futures::stream::poll_fn(move |context| orders.0.poll_recv(context));
    let all = coming.for_each_concurrent(AT_ONCE, |order| registering.one(order));
    tokio::select! {
        () = all => {}
        () = stopper.asked() => {}
    }
}

struct Registering<'a> {
    sources: Sources,
    hasher: RandomState,
    /// By hash: what a client says may be long, and the worst that two alike can cost is that one of
    /// them is registered an hour later.
    memory: Cache<u64, ()>,
    tried_again_after: &'a [Duration],
}

impl Registering<'_> {
    async fn one(&self, order: Registration) {
        let org = order.identity.tenant().map(|tenant| &tenant.org_id);
        let key = self.hasher.hash_one((org, &order.client, &order.source));
        // Before it is done, or the same twice at once would be made twice.
        if !self.memory.entry(key).or_insert(()).is_fresh() {
            metrics::source_registered("remembered");
            return;
        }
        let outcome = self.tried(&order).await;
        if matches!(outcome, Outcome::Failed(_)) {
            self.memory.invalidate(&key);
        }
        say(&order.client, &outcome);
    }

    /// The last outcome. Only failures are tried again: what was refused would be refused again.
    async fn tried(&self, order: &Registration) -> Outcome {
        let Registration {
            identity,
            source,
            client,
        } = order;
        let mut outcome = self.sources.register(identity, source, client).await;
        for pause in self.tried_again_after {
            let Outcome::Failed(why) = &outcome else {
                break;
            };
            tracing::debug!(client_id = %client, why, "a source is not registered yet");
            tokio::time::sleep(*pause).await;
            outcome = self.sources.register(identity, source, client).await;
        }
        outcome
    }
}

/// Counts an outcome and logs it. A line for each failure would let an outage fill the disk.
fn say(client: &ClientId, outcome: &Outcome) {
    static SAID: LogThrottle = LogThrottle::new();
    metrics::source_registered(outcome.label());
    match outcome {
        Outcome::Made => tracing::info!(client_id = %client, "a source was registered"),
        Outcome::Existed => tracing::debug!(client_id = %client, "the source is registered"),
        Outcome::Refused(body) => {
            tracing::warn!(client_id = %client, body, "the sources service refuses a source");
        }
        Outcome::Failed(why) if SAID.now() => {
            tracing::warn!(
                client_id = %client, why,
                "a source is not registered: check sources.url (others are only counted)"
            );
        }
        Outcome::Failed(why) => {
            tracing::debug!(client_id = %client, why, "a source is not registered");
        }
    }
}
