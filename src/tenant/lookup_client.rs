//! Limits the load on the certificate gateway: caches results, shares one request between
//! concurrent lookups of a client, bounds concurrency, and stops during outages (circuit breaker).

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
use super::{GatewayClient, TenantLookup, TenantLookupOutcome};
use crate::domain::ClientId;
use crate::telemetry::metrics;

/// Maximum number of clients in the cache.
const CACHE_CAPACITY: u64 = 200_000;

/// Limits of a [`LookupClient`].
#[derive(Debug, Clone)]
pub struct LookupLimits {
    /// Maximum number of requests in flight.
    pub max_concurrency: usize,
    /// Timeout of one request.
    pub timeout: Duration,
    /// The breaker counts a slower request as a failure, even if a response follows.
    pub slow_threshold: Duration,
    /// How long a found tenant is cached.
    pub cache_ttl: Duration,
    /// How long "not found" is cached.
    pub negative_cache_ttl: Duration,
    /// Time from the breaker's opening to its first probe.
    pub breaker_probe_interval: Duration,
}

/// Looks up tenants at the gateway. Clones share the cache, the limits and the breaker.
#[derive(Clone)]
pub struct LookupClient(Arc<Inner>);

/// Receives the outcome of a request in flight; `None` until the request has finished.
type OutcomeReceiver = watch::Receiver<Option<TenantLookupOutcome>>;

struct Inner {
    gateway: GatewayClient,
    limits: LookupLimits,
    cache: Cache<ClientId, TenantLookupOutcome>,
    /// Requests in flight by client. Concurrent lookups of a client wait for the same request.
    inflight_requests: Mutex<HashMap<ClientId, OutcomeReceiver>>,
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
        outcome: &TenantLookupOutcome,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(match outcome {
            TenantLookupOutcome::Found(_) => self.found,
            TenantLookupOutcome::NotFound => self.not_found,
            TenantLookupOutcome::Unavailable => Duration::ZERO,
        })
    }
}

impl LookupClient {
    /// Creates a lookup client with an empty cache and a closed breaker.
    #[must_use]
    pub fn new(gateway: GatewayClient, limits: LookupLimits) -> Self {
        let ttl = CacheTtl {
            found: limits.cache_ttl,
            not_found: limits.negative_cache_ttl,
        };
        Self(Arc::new(Inner {
            gateway,
            cache: Cache::builder()
                .max_capacity(CACHE_CAPACITY)
                .expire_after(ttl)
                .build(),
            inflight_requests: Mutex::default(),
            permits: Semaphore::new(limits.max_concurrency),
            breaker: Breaker::new(limits.breaker_probe_interval),
            limits,
        }))
    }

    /// Returns the request in flight for this client, or starts one. The request continues after
    /// all waiting lookups have reached their deadline, and its result is cached.
    fn inflight_request(&self, client: &ClientId, admission: Admission) -> OutcomeReceiver {
        let mut requests = self.0.inflight_requests.lock();
        if let Some(outcome) = requests.get(client) {
            if admission == Admission::Probe {
                self.0.breaker.cancel_probe();
            }
            return outcome.clone();
        }
        let (sender, receiver) = watch::channel(None);
        requests.insert(client.clone(), receiver.clone());
        let (inner, client) = (self.0.clone(), client.clone());
        tokio::spawn(async move {
            let outcome = inner.request(&client, admission).await;
            if outcome != TenantLookupOutcome::Unavailable {
                inner.cache.insert(client.clone(), outcome.clone());
            }
            inner.inflight_requests.lock().remove(&client);
            // Fails if no lookup waits any more.
            let _ = sender.send(Some(outcome));
        });
        receiver
    }
}

impl Inner {
    async fn request(&self, client: &ClientId, admission: Admission) -> TenantLookupOutcome {
        let _permit = if admission == Admission::Probe {
            // A probe needs no permit: requests that hang may hold all of them.
            None
        } else {
            let permit = self.permits.acquire().await.ok();
            if self.breaker.open_duration().is_some() {
                return TenantLookupOutcome::Unavailable;
            }
            permit
        };
        metrics::tenant_gateway_request();
        let mut request = Box::pin(timeout(self.limits.timeout, self.gateway.lookup(client)));
        let Ok(response) = timeout(self.limits.slow_threshold, &mut request).await else {
            // Too slow for the breaker, but a late response is still cached.
            self.breaker.record_failure(client, admission);
            return request.await.unwrap_or(TenantLookupOutcome::Unavailable);
        };
        let outcome = response.unwrap_or(TenantLookupOutcome::Unavailable);
        match outcome {
            TenantLookupOutcome::Found(_) | TenantLookupOutcome::NotFound => {
                self.breaker.record_success(client, admission);
            }
            TenantLookupOutcome::Unavailable => self.breaker.record_failure(client, admission),
        }
        outcome
    }
}

#[async_trait]
impl TenantLookup for LookupClient {
    async fn lookup(&self, client: &ClientId, deadline: Instant) -> TenantLookupOutcome {
        if let Some(cached) = self.0.cache.get(client) {
            return cached;
        }
        let admission = self.0.breaker.admit();
        if admission == Admission::Rejected {
            return TenantLookupOutcome::Unavailable;
        }
        let mut request = self.inflight_request(client, admission);
        let outcome = async {
            let finished = request.wait_for(Option::is_some).await;
            finished.ok().and_then(|outcome| outcome.clone())
        };
        let breaker = &self.0.breaker;
        tokio::select! {
            outcome = outcome => outcome.unwrap_or(TenantLookupOutcome::Unavailable),
            () = sleep_until(deadline) => TenantLookupOutcome::Unavailable,
            // Lookups that wait for a permit stop waiting when the breaker opens.
            () = breaker.wait_until_open(), if admission == Admission::Granted => {
                TenantLookupOutcome::Unavailable
            }
        }
    }

    async fn check(&self) -> Result<String, String> {
        let url = self.0.gateway.url();
        // No certificate has this common name, so the gateway should respond "not found".
        let test_client =
            ClientId::new("cloud-connector-doctor").map_err(|error| error.to_string())?;
        let request = self.0.gateway.lookup(&test_client);
        let response = timeout(self.0.limits.timeout, request).await;
        match response.unwrap_or(TenantLookupOutcome::Unavailable) {
            TenantLookupOutcome::Found(_) | TenantLookupOutcome::NotFound => {
                Ok(format!("{url} responds"))
            }
            TenantLookupOutcome::Unavailable => Err(format!(
                "tenant.gateway_url: no valid response from {url}; check the URL and \
                 tenant.gateway_ca. Clients keep their current tenants meanwhile"
            )),
        }
    }

    fn health_note(&self) -> String {
        match self.0.breaker.open_duration() {
            None => "ok".to_owned(),
            Some(open) => format!(
                "unavailable: breaker open for {} s; clients keep their current tenants",
                open.as_secs()
            ),
        }
    }
}
