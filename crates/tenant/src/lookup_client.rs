//! Limits the load on the certificate gateway. Caches results, shares one request between
//! concurrent lookups of the same client, limits the number of concurrent requests, and sends only
//! probes during an outage (circuit breaker).

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use moka::Expiry;
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::{GatewayClient, TenantLookup, TenantLookupOutcome, metrics};
use domain::ClientId;
use service::{Admission, Breaker, spawn_detached_item};

/// Maximum number of clients in the cache.
const MAX_CACHED_CLIENTS: u64 = 200_000;

/// Limits of a [`LookupClient`].
#[derive(Debug, Clone)]
pub struct LookupLimits {
    /// Maximum number of requests in flight.
    pub max_concurrency: usize,
    /// Timeout of one request.
    pub request_timeout: Duration,
    /// A request that takes longer than this counts as a failure for the circuit breaker, even if
    /// the response arrives later.
    pub slow_threshold: Duration,
    /// How long a found tenant is cached.
    pub cache_ttl: Duration,
    /// How long a "not found" result is cached.
    pub negative_cache_ttl: Duration,
    /// Time between the opening of the circuit breaker and the first probe.
    pub breaker_probe_interval: Duration,
}

/// Looks up tenants at the gateway. Clones share the cache, the limits and the breaker.
#[derive(Clone)]
pub struct LookupClient(Arc<Inner>);

/// Receives the outcome of a request in flight. The value is `None` until the request has finished.
type OutcomeReceiver = watch::Receiver<Option<TenantLookupOutcome>>;

/// Sends requests to the certificate gateway. Tests implement gateways with faults.
#[async_trait]
pub trait Gateway: Send + Sync + 'static {
    /// Sends one request.
    async fn lookup(&self, client: &ClientId) -> TenantLookupOutcome;

    /// Returns the URL of the gateway, for messages to the operator.
    fn url(&self) -> &str;
}

#[async_trait]
impl Gateway for GatewayClient {
    async fn lookup(&self, client: &ClientId) -> TenantLookupOutcome {
        self.lookup(client).await
    }

    fn url(&self) -> &str {
        self.url()
    }
}

struct Inner {
    gateway: Box<dyn Gateway>,
    limits: LookupLimits,
    cache: Cache<ClientId, TenantLookupOutcome>,
    /// Requests in flight, by client id. Concurrent lookups of a client wait for the same request.
    inflight_requests: Mutex<HashMap<ClientId, OutcomeReceiver>>,
    request_permits: Semaphore,
    breaker: Breaker<ClientId>,
}

struct CacheTtl {
    found_tenant_ttl: Duration,
    not_found_ttl: Duration,
}

impl Expiry<ClientId, TenantLookupOutcome> for CacheTtl {
    fn expire_after_create(
        &self,
        _: &ClientId,
        outcome: &TenantLookupOutcome,
        _: std::time::Instant,
    ) -> Option<Duration> {
        Some(match outcome {
            TenantLookupOutcome::Found(_) => self.found_tenant_ttl,
            TenantLookupOutcome::NotFound => self.not_found_ttl,
            TenantLookupOutcome::Unavailable => Duration::ZERO,
        })
    }
}

impl LookupClient {
    /// Creates a lookup client with an empty cache and a closed breaker.
    #[must_use]
    pub fn new(gateway: GatewayClient, limits: LookupLimits) -> Self {
        Self::with_gateway(Box::new(gateway), limits)
    }

    /// Like [`Self::new`], for another implementation of the gateway.
    #[must_use]
    pub fn with_gateway(gateway: Box<dyn Gateway>, limits: LookupLimits) -> Self {
        let ttl = CacheTtl {
            found_tenant_ttl: limits.cache_ttl,
            not_found_ttl: limits.negative_cache_ttl,
        };
        Self(Arc::new(Inner {
            gateway,
            cache: Cache::builder()
                .max_capacity(MAX_CACHED_CLIENTS)
                .expire_after(ttl)
                .build(),
            inflight_requests: Mutex::default(),
            request_permits: Semaphore::new(limits.max_concurrency),
            breaker: Breaker::new(
                "tenant lookup",
                limits.breaker_probe_interval,
                metrics::set_tenant_breaker_open,
            ),
            limits,
        }))
    }

    /// Returns a receiver for the outcome of the request that looks up `client`. Starts the request
    /// if it is not in flight yet. The request continues even if all waiting lookups reach their
    /// deadlines, and its result is cached.
    fn join_or_start_request(&self, client: &ClientId, admission: Admission) -> OutcomeReceiver {
        let mut requests = self.0.inflight_requests.lock();
        if let Some(outcome_receiver) = requests.get(client) {
            if admission == Admission::Probe {
                self.0.breaker.cancel_probe();
            }
            return outcome_receiver.clone();
        }
        let (sender, receiver) = watch::channel(None);
        requests.insert(client.clone(), receiver.clone());
        let request = InflightRequest {
            inner: self.0.clone(),
            client: client.clone(),
        };
        spawn_detached_item("tenant_gateway_request", async move {
            let (inner, client) = (&request.inner, &request.client);
            let outcome = inner.request_tenant(client, admission).await;
            if outcome != TenantLookupOutcome::Unavailable {
                inner.cache.insert(client.clone(), outcome.clone());
            }
            drop(request);
            // `send` fails if no lookup waits for the outcome any more. That is not an error.
            let _ = sender.send(Some(outcome));
        });
        receiver
    }
}

/// An entry in [`Inner::inflight_requests`]. Dropping the value removes the entry, even if the
/// request panics. Otherwise all later lookups of the client would wait for that request.
struct InflightRequest {
    inner: Arc<Inner>,
    client: ClientId,
}

impl Drop for InflightRequest {
    fn drop(&mut self) {
        self.inner.inflight_requests.lock().remove(&self.client);
    }
}

/// A request that the circuit breaker admitted, until its result is recorded. A probe that is dropped
/// without a result, for example because of a panic, counts as failed. Otherwise the breaker would
/// wait for that result, admit no other probe, and stay open.
struct AdmittedRequest<'a> {
    breaker: &'a Breaker<ClientId>,
    client: &'a ClientId,
    admission: Admission,
    has_result: bool,
}

impl AdmittedRequest<'_> {
    fn succeed(mut self) {
        self.has_result = true;
        self.breaker.record_success(self.client, self.admission);
    }

    fn fail(mut self) {
        self.has_result = true;
        self.breaker.record_failure(self.client, self.admission);
    }
}

impl Drop for AdmittedRequest<'_> {
    fn drop(&mut self) {
        if !self.has_result && self.admission == Admission::Probe {
            self.breaker.record_failure(self.client, self.admission);
        }
    }
}

impl Inner {
    async fn request_tenant(&self, client: &ClientId, admission: Admission) -> TenantLookupOutcome {
        let admitted_request = AdmittedRequest {
            breaker: &self.breaker,
            client,
            admission,
            has_result: false,
        };
        let _permit = if admission == Admission::Probe {
            // A probe does not take a permit. Otherwise the probe could wait for a long time,
            // because requests without a response may hold all permits.
            None
        } else {
            let permit = self.request_permits.acquire().await.ok();
            if self.breaker.open_duration().is_some() {
                return TenantLookupOutcome::Unavailable;
            }
            permit
        };
        metrics::count_tenant_gateway_request();
        let mut request = Box::pin(timeout(
            self.limits.request_timeout,
            self.gateway.lookup(client),
        ));
        let Ok(response) = timeout(self.limits.slow_threshold, &mut request).await else {
            // The request is slow, so the breaker counts a failure. The request continues, because
            // a late response can still be cached.
            admitted_request.fail();
            return request.await.unwrap_or(TenantLookupOutcome::Unavailable);
        };
        let outcome = response.unwrap_or(TenantLookupOutcome::Unavailable);
        match outcome {
            TenantLookupOutcome::Found(_) | TenantLookupOutcome::NotFound => {
                admitted_request.succeed();
            }
            TenantLookupOutcome::Unavailable => admitted_request.fail(),
        }
        outcome
    }
}

#[async_trait]
impl TenantLookup for LookupClient {
    async fn lookup(&self, client: &ClientId, deadline: Instant) -> TenantLookupOutcome {
        if let Some(cached_outcome) = self.0.cache.get(client) {
            return cached_outcome;
        }
        let admission = self.0.breaker.admit();
        if admission == Admission::Rejected {
            return TenantLookupOutcome::Unavailable;
        }
        let mut request = self.join_or_start_request(client, admission);
        let outcome = async {
            let wait_result = request.wait_for(Option::is_some).await;
            wait_result.ok().and_then(|outcome| outcome.clone())
        };
        let breaker = &self.0.breaker;
        tokio::select! {
            outcome = outcome => outcome.unwrap_or(TenantLookupOutcome::Unavailable),
            () = sleep_until(deadline) => TenantLookupOutcome::Unavailable,
            // When the breaker opens, all lookups except the probe stop waiting for their requests.
            () = breaker.wait_until_open(), if admission == Admission::Granted => {
                TenantLookupOutcome::Unavailable
            }
        }
    }

    async fn check_availability(&self) -> Result<String, String> {
        let url = self.0.gateway.url();
        // No certificate has this common name, so the gateway should respond "not found".
        let test_client =
            ClientId::new("cloud-connector-doctor").map_err(|error| error.to_string())?;
        let request = self.0.gateway.lookup(&test_client);
        let response = timeout(self.0.limits.request_timeout, request).await;
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
