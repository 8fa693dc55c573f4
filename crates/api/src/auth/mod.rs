//! Authenticates callers by a pre-shared key or by the header `x-rh-identity`.
//!
//! A request handler takes an argument of type [`OrgCaller`], [`AccountCaller`] or
//! [`ManagementCaller`]. The handler runs only if the caller is authenticated and does not exceed
//! its rate limits. `failures` counts, logs and throttles failed authentications.

mod failures;
mod identity;
mod keys;

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts as RequestParts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::error::ApiError;
use super::middleware::AccessLogContext;
use super::rate_limits::RateLimitSubject;
use super::{ApiState, Scope, SharedState};
use domain::{Identity, OrgId, Tenant};

pub(super) use failures::{AuthFailures, FailureReason};
pub use keys::Keys;

pub(super) const IDENTITY_HEADER: &str = "x-rh-identity";
/// Header that contains the name of the caller's pre-shared key. It does not contain the id of an
/// MQTT client.
pub(super) const CLIENT_ID_HEADER: &str = "x-rh-cloud-connector-client-id";
pub(super) const PSK_HEADER: &str = "x-rh-cloud-connector-psk";
pub(super) const ORG_ID_HEADER: &str = "x-rh-cloud-connector-org-id";
pub(super) const ACCOUNT_HEADER: &str = "x-rh-cloud-connector-account";

/// The headers that authenticate a caller by a pre-shared key.
const KEY_HEADERS: [&str; 4] = [CLIENT_ID_HEADER, PSK_HEADER, ORG_ID_HEADER, ACCOUNT_HEADER];

/// An authenticated v2 caller, and the organization that the caller acts for.
#[derive(Debug, Clone)]
pub(super) struct OrgCaller {
    /// The caller's name in the audit log: the name of the key, or the type of the identity.
    pub audit_name: String,
    /// Distinguishes the callers of the organization: the name of the key, or the type of the identity and
    /// the id of its user, system or service account.
    pub unique_name: String,
    pub org_id: OrgId,
}

/// An authenticated v1 caller, and the account that the caller acts for.
#[derive(Debug, Clone)]
pub(super) struct AccountCaller {
    /// The caller's name: the name of the key, or the type of the identity.
    pub audit_name: String,
    pub account: String,
}

/// An authenticated caller of the management endpoints. The caller may access the connections of
/// any tenant.
#[derive(Debug, Clone)]
pub(super) struct ManagementCaller {
    /// The caller's name in the audit log: the name of the key, or the email address of the
    /// associate.
    pub audit_name: String,
}

/// The reason why a request was rejected before its handler ran.
#[derive(Debug)]
pub(super) enum AuthError {
    /// Authentication failed. All reasons have the same response, so the response does not reveal
    /// which check failed.
    Unauthenticated(FailureReason),
    /// The gateway sent an invalid identity, or an identity that the endpoint does not accept.
    InvalidIdentity {
        reason: FailureReason,
        /// The cause in the response.
        cause: String,
    },
    /// Authentication failed, and too many authentications from the same address or for the same
    /// name have failed before. Contains the time until the next failure gets its normal response.
    TooManyFailures(Duration),
    /// A rate limit is exceeded. Contains the time until the next request is allowed.
    RateLimited(Duration),
}

impl AuthError {
    /// Counts, logs and throttles a failed authentication.
    fn report(self, request: &RequestParts, state: &ApiState) -> Self {
        let reason = match &self {
            Self::Unauthenticated(reason) | Self::InvalidIdentity { reason, .. } => *reason,
            Self::TooManyFailures(_) | Self::RateLimited(_) => return self,
        };
        match state.auth_failures.on_failure(reason, request) {
            Ok(()) => self,
            Err(wait_time) => Self::TooManyFailures(wait_time),
        }
    }
}

impl IntoResponse for AuthError {
    fn into_response(self) -> Response {
        let content_type = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
        match self {
            Self::Unauthenticated(_) => (
                StatusCode::UNAUTHORIZED,
                content_type,
                "Authentication failed",
            )
                .into_response(),
            Self::InvalidIdentity { cause, .. } => {
                let text = format!("Bad Request: {cause}");
                (StatusCode::BAD_REQUEST, content_type, text).into_response()
            }
            Self::TooManyFailures(wait_time) => {
                ApiError::too_many_auth_failures(wait_time).into_response()
            }
            Self::RateLimited(wait_time) => ApiError::rate_limited(wait_time).into_response(),
        }
    }
}

impl FromRequestParts<SharedState> for OrgCaller {
    type Rejection = AuthError;

    async fn from_request_parts(
        request: &mut RequestParts,
        state: &SharedState,
    ) -> Result<Self, AuthError> {
        Self::authenticate(request, state).map_err(|error| error.report(request, state))
    }
}

impl OrgCaller {
    fn authenticate(request: &RequestParts, state: &ApiState) -> Result<Self, AuthError> {
        let headers = &request.headers;
        if let Some(identity) = trusted_tenant(headers, state)? {
            let TenantIdentity {
                identity_type,
                unique_name,
                tenant: Tenant { org_id, .. },
            } = identity;
            check_rate_limits(
                request,
                state,
                (&identity_type, Credential::Identity),
                RateLimitSubject::Organization(org_id.as_str()),
            )?;
            return Ok(Self {
                audit_name: identity_type,
                unique_name,
                org_id,
            });
        }
        let key_name = authenticate_key(headers, state, Scope::Tenant)?;
        let org_id = header_text(headers, ORG_ID_HEADER).and_then(|org_id| OrgId::new(org_id).ok());
        let org_id = org_id.ok_or(AuthError::Unauthenticated(FailureReason::InvalidTenant))?;
        check_rate_limits(
            request,
            state,
            (key_name, Credential::Key),
            RateLimitSubject::Organization(org_id.as_str()),
        )?;
        Ok(Self {
            audit_name: key_name.to_owned(),
            unique_name: format!("key:{key_name}"),
            org_id,
        })
    }
}

impl FromRequestParts<SharedState> for AccountCaller {
    type Rejection = AuthError;

    async fn from_request_parts(
        request: &mut RequestParts,
        state: &SharedState,
    ) -> Result<Self, AuthError> {
        Self::authenticate(request, state).map_err(|error| error.report(request, state))
    }
}

impl AccountCaller {
    fn authenticate(request: &RequestParts, state: &ApiState) -> Result<Self, AuthError> {
        let headers = &request.headers;
        if let Some(identity) = trusted_tenant(headers, state)? {
            let TenantIdentity {
                identity_type,
                tenant: Tenant { account, org_id },
                ..
            } = identity;
            check_rate_limits(
                request,
                state,
                (&identity_type, Credential::Identity),
                RateLimitSubject::Organization(org_id.as_str()),
            )?;
            return Ok(Self {
                audit_name: identity_type,
                account,
            });
        }
        let key_name = authenticate_key(headers, state, Scope::Tenant)?;
        let account = header_text(headers, ACCOUNT_HEADER).filter(|account| !account.is_empty());
        let account = account.ok_or(AuthError::Unauthenticated(FailureReason::InvalidTenant))?;
        check_rate_limits(
            request,
            state,
            (key_name, Credential::Key),
            RateLimitSubject::Account(account),
        )?;
        Ok(Self {
            audit_name: key_name.to_owned(),
            account: account.to_owned(),
        })
    }
}

impl FromRequestParts<SharedState> for ManagementCaller {
    type Rejection = AuthError;

    async fn from_request_parts(
        request: &mut RequestParts,
        state: &SharedState,
    ) -> Result<Self, AuthError> {
        Self::authenticate(request, state).map_err(|error| error.report(request, state))
    }
}

impl ManagementCaller {
    fn authenticate(request: &RequestParts, state: &ApiState) -> Result<Self, AuthError> {
        let headers = &request.headers;
        let (audit_name, credential) = match trusted_identity(headers, state)? {
            Some(identity) if identity::is_associate(&identity) => {
                let email = identity.associate_email().unwrap_or("unknown associate");
                (email.to_owned(), Credential::Identity)
            }
            Some(_) => {
                let reason = FailureReason::UnsuitableIdentity;
                return Err(AuthError::Unauthenticated(reason));
            }
            None => {
                let key_name = authenticate_key(headers, state, Scope::Management)?;
                (key_name.to_owned(), Credential::Key)
            }
        };
        check_rate_limits(
            request,
            state,
            (&audit_name, credential),
            RateLimitSubject::AllTenants,
        )?;
        Ok(Self { audit_name })
    }
}

/// Returns the identity from the header `x-rh-identity`. Returns `None` if the header is missing,
/// empty or not trusted.
///
/// Fails if one of the headers that authenticate a caller occurs more than once, because a proxy in
/// front of this service could use another value than this service. An identity header that is not
/// trusted is ignored, so it may occur more than once.
fn trusted_identity(headers: &HeaderMap, state: &ApiState) -> Result<Option<Identity>, AuthError> {
    let is_duplicate = |header_name: &str| headers.get_all(header_name).iter().nth(1).is_some();
    if state.trust_identity_header && is_duplicate(IDENTITY_HEADER) {
        return Err(identity::duplicate_error());
    }
    if KEY_HEADERS.into_iter().any(is_duplicate) {
        return Err(AuthError::Unauthenticated(FailureReason::DuplicateHeader));
    }
    if !state.trust_identity_header {
        return Ok(None);
    }
    match headers.get(IDENTITY_HEADER) {
        Some(header) if !header.is_empty() => identity::parse(header).map(Some),
        _ => Ok(None),
    }
}

/// An identity with a tenant.
struct TenantIdentity {
    identity_type: String,
    /// The type of the identity, and the id of its user, system or service account.
    unique_name: String,
    tenant: Tenant,
}

/// Returns the identity in the header `x-rh-identity`. Returns `None` if there is no trusted identity.
/// Fails if the identity has no tenant.
fn trusted_tenant(
    headers: &HeaderMap,
    state: &ApiState,
) -> Result<Option<TenantIdentity>, AuthError> {
    let Some(identity) = trusted_identity(headers, state)? else {
        return Ok(None);
    };
    let tenant = identity
        .tenant()
        .ok_or_else(identity::org_id_required_error)?;
    let identity_type = identity.identity_type().unwrap_or_default();
    Ok(Some(TenantIdentity {
        identity_type: identity_type.to_owned(),
        unique_name: format!("{identity_type}:{}", identity.subject().unwrap_or_default()),
        tenant: tenant.clone(),
    }))
}

/// Checks the pre-shared key and its scope. Returns the name of the key.
fn authenticate_key<'a>(
    headers: &'a HeaderMap,
    state: &ApiState,
    scope: Scope,
) -> Result<&'a str, AuthError> {
    let has_header = |header_name: &str| headers.contains_key(header_name);
    if !has_header(CLIENT_ID_HEADER) && !has_header(PSK_HEADER) {
        return Err(AuthError::Unauthenticated(FailureReason::NoCredentials));
    }
    let key_name = header_text(headers, CLIENT_ID_HEADER);
    let secret = header_text(headers, PSK_HEADER);
    let (Some(key_name), Some(secret)) = (key_name, secret) else {
        return Err(AuthError::Unauthenticated(FailureReason::MissingHeader));
    };
    let result = state.keys.check(key_name, secret, scope);
    result.map_err(AuthError::Unauthenticated)?;
    Ok(key_name)
}

/// The kind of credential with which a caller authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Credential {
    Key,
    Identity,
}

/// Checks the rate limits of an authenticated caller. Also sets the caller for the access log.
fn check_rate_limits(
    request: &RequestParts,
    state: &ApiState,
    (caller_name, credential): (&str, Credential),
    subject: RateLimitSubject<'_>,
) -> Result<(), AuthError> {
    if let Some(log_context) = request.extensions.get::<AccessLogContext>() {
        log_context.set_caller(caller_name, subject.tenant());
    }
    let key_name = (credential == Credential::Key).then_some(caller_name);
    state
        .rate_limits
        .count_request(key_name, subject)
        .map_err(AuthError::RateLimited)
}

/// Returns the text of a header. Returns `None` if the header is missing or not printable text.
fn header_text<'a>(headers: &'a HeaderMap, header_name: &str) -> Option<&'a str> {
    headers.get(header_name)?.to_str().ok()
}
