//! Asking with care: cached, once per client at a time, bounded, and not while nobody answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use moka::Expiry;
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::breaker::{Admission, Breaker};
use super::{Gateway, TenantLookup, TenantLookupOutcome};
use crate::domain::ClientId;
use crate::telemetry::metrics;

/// How many clients' answers are remembered.
const REMEMBERED: u64 = 200_000;

/// How to ask.
#[derive(Debug, Clone)]
pub struct LookupLimits {
    /// Requests under way at once.
    pub at_once: usize,
    /// How long one may take.
    pub timeout: Duration,
    /// One that takes longer than this counts as record_failure, for the breaker.
    pub slow_after: Duration,
    /// How long a found tenant is remembered.
    pub cache_ttl: Duration,
    /// How long "nobody" is remembered.
    pub negative_cache_ttl: Duration,
    /// How long after it opened the breaker lets a first probe through.
    pub breaker_probe_interval: Duration,
}

/// A gateway, asked with care. A clone is the same.
#[derive(Clone)]
pub struct LookupClient(Arc<Inner>);

struct Inner {
    gateway: Gateway,
    limits: LookupLimits,
    answers: Cache<ClientId, TenantLookupOutcome>,
    /// Requests under way, by client: whoever else wants to know waits for the same.
    flights: Mutex<HashMap<ClientId, watch::Receiver<Option<TenantLookupOutcome>>>>,
    permits: Semaphore,
    breaker: Breaker,
}

struct CacheTtl {
    found: Duration,
    not_found: Duration,
}

impl Expiry<ClientId, TenantLookupOutcome> for CacheTtl {
    fn expire_after_create(
        &self,
        _: &ClientId,
        answer: &TenantLookupOutcome,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(match answer {
            TenantLookupOutcome::Found(_) => self.found,
            TenantLookupOutcome::NotFound => self.not_found,
            TenantLookupOutcome::Unavailable => Duration::ZERO,
        })
    }
}

impl LookupClient {
    /// Asks this gateway within these limits.
    #[must_use]
    pub fn new(gateway: Gateway, limits: LookupLimits) -> Self {
        let lifetimes = CacheTtl {
            found: limits.cache_ttl,
            not_found: limits.negative_cache_ttl,
        };
        Self(Arc::new(Inner {
            gateway,
            answers: Cache::builder()
                .max_capacity(REMEMBERED)
                .expire_after(lifetimes)
                .build(),
            flights: Mutex::default(),
            permits: Semaphore::new(limits.at_once),
            breaker: Breaker::new(limits.breaker_probe_interval),
            limits,
        }))
    }

    /// The request under way for this client, or a new one. It goes on when nobody waits for it any
    /// more: its answer is remembered for whoever asks next.
    fn flight(
        &self,
        client: &ClientId,
        leave: Admission,
    ) -> watch::Receiver<Option<TenantLookupOutcome>> {
        let mut flights = self.0.flights.lock();
        if let Some(flight) = flights.get(client) {
            if leave == Admission::Probe {
                self.0.breaker.cancel_probe();
            }
            return flight.clone();
        }
        let (answer, flight) = watch::channel(None);
        flights.insert(client.clone(), flight.clone());
        let (inner, client) = (self.0.clone(), client.clone());
        tokio::spawn(async move {
            let found = inner.ask(&client, leave).await;
            if found != TenantLookupOutcome::Unavailable {
                inner.answers.insert(client.clone(), found.clone());
            }
            inner.flights.lock().remove(&client);
            // Nobody waits any more: it is remembered.
            let _ = answer.send(Some(found));
        });
        flight
    }
}

impl Inner {
    async fn ask(&self, client: &ClientId, leave: Admission) -> TenantLookupOutcome {
        let _permit = if leave == Admission::Probe {
            // Past the queue: those before it may hang.
            None
        } else {
            let permit = self.permits.acquire().await.ok();
            if self.breaker.open_for().is_some() {
                return TenantLookupOutcome::Unavailable;
            }
            permit
        };
        metrics::lookup_asked();
        let mut asking = Box::pin(timeout(self.limits.timeout, self.gateway.ask(client)));
        let in_time = timeout(self.limits.slow_after, &mut asking).await;
        let Ok(found) = in_time else {
            // Too late for whoever waited; its answer is remembered all the same.
            self.breaker.record_failure(client, leave);
            return asking.await.unwrap_or(TenantLookupOutcome::Unavailable);
        };
        let found = found.unwrap_or(TenantLookupOutcome::Unavailable);
        match found {
            TenantLookupOutcome::Found(_) | TenantLookupOutcome::NotFound => {
                self.breaker.answered(client, leave)
            }
            TenantLookupOutcome::Unavailable => self.breaker.record_failure(client, leave),
        }
        found
    }
}

#[async_trait]
impl TenantLookup for LookupClient {
    async fn lookup(&self, client: &ClientId, deadline: Instant) -> TenantLookupOutcome {
        if let Some(known) = self.0.answers.get(client) {
            return known;
        }
        let leave = self.0.breaker.leave();
        if leave == Admission::Refused {
            return TenantLookupOutcome::Unavailable;
        }
        let mut flight = self.flight(client, leave);
        let answer = async {
            let landed = flight.wait_for(Option::is_some).await;
            landed.ok().and_then(|answer| answer.clone())
        };
        tokio::select! {
            answer = answer => answer.unwrap_or(TenantLookupOutcome::Unavailable),
            () = sleep_until(deadline) => TenantLookupOutcome::Unavailable,
            // Who stands in line need not wait for what will not come.
            () = self.0.breaker.opened(), if leave == Admission::Granted => TenantLookupOutcome::Unavailable,
        }
    }

    async fn probe(&self) -> Result<String, String> {
        let url = self.0.gateway.url();
        // No certificate has this name, so any definite answer will do.
        let nobody = ClientId::new("cloud-connector-doctor").map_err(|why| why.to_string())?;
        let asked = timeout(self.0.limits.timeout, self.0.gateway.ask(&nobody)).await;
        match asked.unwrap_or(TenantLookupOutcome::Unavailable) {
            TenantLookupOutcome::Found(_) | TenantLookupOutcome::NotFound => {
                Ok(format!("{url} answers"))
            }
            TenantLookupOutcome::Unavailable => Err(format!(
                "tenant.gateway_url: {url} gives no answer that can be read; check the address and tenant.gateway_ca. Clients keep the tenants they have meanwhile"
            )),
        }
    }

    fn note(&self) -> String {
        match self.0.breaker.open_for() {
            None => "ok".to_owned(),
            Some(silent) => format!(
                "no answers for {} s: not asked but for probes; clients keep the tenants they have",
                silent.as_secs()
            ),
        }
    }
}
