//! Failed authentications: counted and logged by reason, and throttled by caller address and by
//! claimed caller name.
//!
//! The credentials of a request are checked first. Only the response to a failure is throttled, so
//! right credentials are always accepted, even if an attacker uses the same address or name. See
//! docs/decisions/026-failed-authentications.md.

use std::hash::{BuildHasher as _, Hash, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::http::request::Parts as RequestParts;

use super::CLIENT_ID_HEADER;
use crate::client_address::client_address;
use crate::{AuthFailureLimit, metrics};
use service::rate_limit::RateLimiter;
use service::{LogThrottle, log_text, request_id};

/// Maximum number of characters of the claimed caller name in the log.
const MAX_LOGGED_NAME_CHARS: usize = 64;

/// Why a request was not authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureReason {
    /// The request has no credentials.
    NoCredentials,
    /// One of the headers of a key is missing or not printable.
    MissingHeader,
    /// A header that authenticates the caller occurs more than once.
    DuplicateHeader,
    /// No key has this name.
    UnknownCaller,
    /// The key with this name has another secret.
    WrongSecret,
    /// The key is right, but does not have the scope of the endpoint.
    MissingScope,
    /// The key is right, but the organization or account is missing or invalid.
    InvalidTenant,
    /// The header `x-rh-identity` is invalid.
    InvalidIdentity,
    /// The identity is valid, but the endpoint requires another type or an organization.
    UnsuitableIdentity,
}

impl FailureReason {
    pub const ALL: [Self; 9] = [
        Self::NoCredentials,
        Self::MissingHeader,
        Self::DuplicateHeader,
        Self::UnknownCaller,
        Self::WrongSecret,
        Self::MissingScope,
        Self::InvalidTenant,
        Self::InvalidIdentity,
        Self::UnsuitableIdentity,
    ];

    /// Returns the name of the reason in the log and in the metric.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoCredentials => "no_credentials",
            Self::MissingHeader => "missing_header",
            Self::DuplicateHeader => "duplicate_header",
            Self::UnknownCaller => "unknown_caller",
            Self::WrongSecret => "wrong_secret",
            Self::MissingScope => "missing_scope",
            Self::InvalidTenant => "invalid_tenant",
            Self::InvalidIdentity => "invalid_identity",
            Self::UnsuitableIdentity => "unsuitable_identity",
        }
    }

    /// Returns false if the credentials are right, and only insufficient for the endpoint. Such a
    /// request does not guess credentials.
    fn is_throttled(self) -> bool {
        match self {
            Self::NoCredentials
            | Self::MissingHeader
            | Self::DuplicateHeader
            | Self::UnknownCaller
            | Self::WrongSecret
            | Self::InvalidIdentity => true,
            Self::MissingScope | Self::InvalidTenant | Self::UnsuitableIdentity => false,
        }
    }

    fn log_throttle(self) -> &'static LogThrottle {
        static LOG_THROTTLES: [LogThrottle; FailureReason::ALL.len()] =
            [const { LogThrottle::new() }; FailureReason::ALL.len()];
        &LOG_THROTTLES[self as usize]
    }
}

/// Counts, logs and throttles failed authentications.
pub(crate) struct AuthFailures {
    by_address: FailureLimiter,
    by_name: FailureLimiter,
}

impl AuthFailures {
    pub fn new(limit: AuthFailureLimit) -> Self {
        Self {
            by_address: FailureLimiter::new(limit),
            by_name: FailureLimiter::new(limit),
        }
    }

    /// Counts and logs a failed authentication.
    ///
    /// # Errors
    /// If there were too many failures from the same address or for the same name. The error is the
    /// time until the next failure gets its normal response.
    pub fn on_failure(
        &self,
        reason: FailureReason,
        request: &RequestParts,
    ) -> Result<(), Duration> {
        metrics::count_auth_failure(reason);
        let client_address = client_address(&request.extensions);
        let caller = claimed_name(&request.headers);
        if reason.log_throttle().should_log() {
            tracing::info!(
                request_id = request_id::current(),
                reason = reason.as_str(),
                caller = caller.as_deref(),
                client_address = client_address.map(tracing::field::display),
                "authentication failed"
            );
        }
        if !reason.is_throttled() {
            return Ok(());
        }
        let by_address = client_address.map(|address| self.by_address.count(&network(address)));
        let name = request.headers.get(CLIENT_ID_HEADER);
        let by_name = name.map(|name| self.by_name.count(name.as_bytes()));
        // Both limiters count each failure, so both results are computed before one is returned.
        by_address.unwrap_or(Ok(()))?;
        by_name.unwrap_or(Ok(()))
    }
}

/// Returns the name of the key that the request claims to have, in the form for the log.
fn claimed_name(headers: &HeaderMap) -> Option<String> {
    let name = headers.get(CLIENT_ID_HEADER)?;
    let name = String::from_utf8_lossy(name.as_bytes());
    Some(log_text(&name, MAX_LOGGED_NAME_CHARS))
}

/// Returns the address whose failures are counted together. One machine can usually choose among
/// all IPv6 addresses with the same first 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
    }
}

/// A rate limiter with a fixed maximum number of buckets. Attackers choose the names, so names with
/// the same hash share a bucket. A shared bucket affects only the responses to failures.
struct FailureLimiter {
    hasher: RandomState,
    limiter: RateLimiter<u16>,
}

impl FailureLimiter {
    fn new(limit: AuthFailureLimit) -> Self {
        Self {
            hasher: RandomState::new(),
            limiter: RateLimiter::new(limit.burst, limit.per_second),
        }
    }

    fn count(&self, key: &(impl Hash + ?Sized)) -> Result<(), Duration> {
        let [low, high, ..] = self.hasher.hash_one(key).to_le_bytes();
        self.limiter.take_token(&u16::from_le_bytes([low, high]))
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::extract::Request;

    use super::*;
    use crate::middleware::Peer;

    const LIMIT: AuthFailureLimit = AuthFailureLimit {
        burst: 2,
        per_second: 0.5,
    };

    fn request(peer: &str, name: &[u8]) -> RequestParts {
        let request = Request::builder().header(CLIENT_ID_HEADER, name);
        let (mut parts, ()) = request.body(()).unwrap().into_parts();
        let peer: IpAddr = peer.parse().unwrap();
        parts.extensions.insert(Peer(SocketAddr::from((peer, 1))));
        parts
    }

    fn fail(failures: &AuthFailures, peer: &str, name: &str) -> Result<(), Duration> {
        failures.on_failure(FailureReason::WrongSecret, &request(peer, name.as_bytes()))
    }

    #[tokio::test(start_paused = true)]
    async fn failures_are_limited_by_address_and_by_name() {
        let failures = AuthFailures::new(LIMIT);
        let throttled = Err(Duration::from_secs(2));
        assert_eq!(fail(&failures, "192.0.2.1", "a"), Ok(()));
        assert_eq!(fail(&failures, "192.0.2.1", "b"), Ok(()));
        assert_eq!(fail(&failures, "192.0.2.1", "c"), throttled, "same address");
        assert_eq!(fail(&failures, "192.0.2.2", "a"), Ok(()));
        assert_eq!(fail(&failures, "192.0.2.3", "a"), throttled, "same name");
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(fail(&failures, "192.0.2.1", "a"), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_of_one_ipv6_network_are_counted_together() {
        let failures = AuthFailures::new(LIMIT);
        assert_eq!(fail(&failures, "2001:db8::1", "a"), Ok(()));
        assert_eq!(fail(&failures, "2001:db8::2", "b"), Ok(()));
        assert!(fail(&failures, "2001:db8::3", "c").is_err());
        assert_eq!(fail(&failures, "2001:db8:0:1::1", "d"), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn right_but_insufficient_credentials_are_not_throttled() {
        let failures = AuthFailures::new(LIMIT);
        for _ in 0..100 {
            let request = request("192.0.2.1", b"a");
            let result = failures.on_failure(FailureReason::MissingScope, &request);
            assert_eq!(result, Ok(()));
        }
        assert_eq!(fail(&failures, "192.0.2.1", "a"), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn many_different_names_use_a_bounded_amount_of_memory() {
        let failures = AuthFailures::new(LIMIT);
        for n in 0..200_000 {
            let _ = failures.by_name.count(&n);
        }
        let buckets = failures.by_name.limiter.bucket_count();
        assert!(buckets <= 65_536, "{buckets} buckets");
    }

    #[test]
    fn the_logged_name_is_truncated_and_escaped() {
        let name = claimed_name(&request("192.0.2.1", b"a\tb\xff").headers);
        assert_eq!(name.as_deref(), Some("a\\tb\u{fffd}"));
        let name = claimed_name(&request("192.0.2.1", &vec![b'x'; 60_000]).headers);
        assert!(name.unwrap().len() < 100);
    }

    #[test]
    fn each_reason_has_its_own_index_and_name() {
        for (index, reason) in FailureReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index, "{}", reason.as_str());
        }
    }
}
