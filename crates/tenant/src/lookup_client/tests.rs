use std::collections::VecDeque;

use super::*;
use domain::{Identity, OrgId, Tenant};

const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Longer than every interval between two probes.
const AFTER_NEXT_PROBE: Duration = Duration::from_mins(1);

enum Response {
    Panic,
    Fail,
    Found,
    /// Responds after this time.
    FoundAfter(Duration),
}

/// A gateway with the planned responses. It finds the tenant of every client after the last one.
struct PlannedGateway(Mutex<VecDeque<Response>>);

fn found() -> TenantLookupOutcome {
    let tenant = Tenant {
        org_id: OrgId::new("10001").unwrap(),
        account: "010101".to_owned(),
    };
    TenantLookupOutcome::from_identity(Identity::for_tenant(&tenant))
}

#[async_trait]
impl Gateway for PlannedGateway {
    async fn lookup(&self, _: &ClientId) -> TenantLookupOutcome {
        let response = self.0.lock().pop_front();
        match response {
            Some(Response::Panic) => panic!("the gateway client panics"),
            Some(Response::Fail) => TenantLookupOutcome::Unavailable,
            Some(Response::FoundAfter(duration)) => {
                tokio::time::sleep(duration).await;
                found()
            }
            Some(Response::Found) | None => found(),
        }
    }

    fn url(&self) -> &'static str {
        "planned"
    }
}

fn client(n: usize) -> ClientId {
    ClientId::new(&format!("c{n}")).unwrap()
}

fn lookup_client(responses: impl IntoIterator<Item = Response>) -> LookupClient {
    let limits = LookupLimits {
        max_concurrency: 4,
        request_timeout: Duration::from_secs(20),
        slow_threshold: Duration::from_secs(2),
        cache_ttl: Duration::from_mins(1),
        negative_cache_ttl: Duration::from_mins(1),
        breaker_probe_interval: PROBE_INTERVAL,
    };
    let gateway = PlannedGateway(Mutex::new(responses.into_iter().collect()));
    LookupClient::with_gateway(Box::new(gateway), limits)
}

async fn look_up(lookups: &LookupClient, n: usize) -> TenantLookupOutcome {
    let deadline = Instant::now() + Duration::from_secs(30);
    lookups.lookup(&client(n), deadline).await
}

/// Returns a lookup client whose breaker is open. `responses` are the responses to the probes.
async fn lookup_client_with_open_breaker(
    responses: impl IntoIterator<Item = Response>,
) -> LookupClient {
    let failures = std::iter::repeat_with(|| Response::Fail).take(20);
    let lookups = lookup_client(failures.chain(responses));
    for n in 0..20 {
        look_up(&lookups, n).await;
    }
    assert!(lookups.0.breaker.open_duration().is_some());
    lookups
}

#[tokio::test(start_paused = true)]
async fn a_client_is_looked_up_again_after_its_request_panicked() {
    let lookups = lookup_client([Response::Panic, Response::Found]);
    assert_eq!(look_up(&lookups, 1).await, TenantLookupOutcome::Unavailable);
    assert_eq!(look_up(&lookups, 1).await, found());
    assert!(lookups.0.inflight_requests.lock().is_empty());
    assert_eq!(lookups.0.request_permits.available_permits(), 4);
}

#[tokio::test(start_paused = true)]
async fn another_probe_is_sent_after_a_probe_panicked() {
    let lookups = lookup_client_with_open_breaker([Response::Panic, Response::Found]).await;
    tokio::time::advance(PROBE_INTERVAL).await;
    let outcome = look_up(&lookups, 1).await;
    assert_eq!(
        outcome,
        TenantLookupOutcome::Unavailable,
        "the probe panics"
    );
    let outcome = look_up(&lookups, 2).await;
    assert_eq!(outcome, TenantLookupOutcome::Unavailable, "no probe is due");
    tokio::time::advance(AFTER_NEXT_PROBE).await;
    assert_eq!(look_up(&lookups, 2).await, found());
    assert!(lookups.0.breaker.open_duration().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_probe_whose_lookup_is_cancelled_still_closes_the_breaker() {
    let second = Duration::from_secs(1);
    let lookups = lookup_client_with_open_breaker([Response::FoundAfter(second)]).await;
    tokio::time::advance(PROBE_INTERVAL).await;
    let cancelled = timeout(second / 2, look_up(&lookups, 1)).await;
    assert!(cancelled.is_err(), "{cancelled:?}");
    tokio::time::sleep(second).await;
    assert!(lookups.0.breaker.open_duration().is_none());
    assert!(lookups.0.inflight_requests.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_late_response_to_a_slow_probe_does_not_end_the_next_probe() {
    let responses = [
        Response::FoundAfter(Duration::from_secs(15)),
        Response::FoundAfter(Duration::from_secs(15)),
    ];
    let lookups = lookup_client_with_open_breaker(responses).await;
    tokio::time::advance(PROBE_INTERVAL).await;
    let first = tokio::spawn({
        let lookups = lookups.clone();
        async move { look_up(&lookups, 1).await }
    });
    // The first probe counts as failed after 2 seconds. The second probe starts 10 seconds later.
    tokio::time::sleep(Duration::from_secs(14)).await;
    let second = lookups.0.breaker.admit();
    assert_eq!(second, Admission::Probe);
    assert_eq!(first.await.unwrap(), found());
    assert_eq!(lookups.0.breaker.admit(), Admission::Rejected);
}
