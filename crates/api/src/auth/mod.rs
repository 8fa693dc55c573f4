//! Authenticates callers by a pre-shared key or by the header `x-rh-identity`.
//!
//! A request handler takes an argument of type [`OrgCaller`], [`AccountCaller`] or
//! [`ManagementCaller`]. The handler runs only if the caller is authenticated and does not exceed
//! its rate limits.

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

pub use keys::Keys;

pub(super) const IDENTITY_HEADER: &str = "x-rh-identity";
/// Header that contains the name of the caller's pre-shared key. It does not contain the id of an
/// MQTT client.
pub(super) const CLIENT_ID_HEADER: &str = "x-rh-cloud-connector-client-id";
pub(super) const PSK_HEADER: &str = "x-rh-cloud-connector-psk";
pub(super) const ORG_ID_HEADER: &str = "x-rh-cloud-connector-org-id";
pub(super) const ACCOUNT_HEADER: &str = "x-rh-cloud-connector-account";

/// An authenticated v2 caller, and the organization that the caller acts for.
#[derive(Debug, Clone)]
pub(super) struct OrgCaller {
    /// The caller's name in the audit log: the name of the key, or the type of the identity.
    pub audit_name: String,
    pub org_id: OrgId,
}

/// An authenticated v1 caller, and the account that the caller acts for.
#[derive(Debug, Clone)]
pub(super) struct AccountCaller {
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
    /// Authentication failed. All causes have the same response, so the response does not reveal
    /// which check failed.
    Unauthenticated,
    /// The gateway sent an invalid identity. The text is the cause.
    InvalidIdentity(String),
    /// A rate limit is exceeded. Contains the time until the next request is allowed.
    RateLimited(Duration),
}

impl IntoResponse for AuthError {
    fn into_response(self) -> Response {
        let content_type = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
        match self {
            Self::Unauthenticated => (
                StatusCode::UNAUTHORIZED,
                content_type,
                "Authentication failed",
            )
                .into_response(),
            Self::InvalidIdentity(cause) => {
                let text = format!("Bad Request: {cause}");
                (StatusCode::BAD_REQUEST, content_type, text).into_response()
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
        let headers = &request.headers;
        if let Some((identity_type, tenant)) = trusted_tenant(headers, state)? {
            let org_id = tenant.org_id;
            check_rate_limits(
                request,
                state,
                (&identity_type, Credential::Identity),
                RateLimitSubject::Organization(org_id.as_str()),
            )?;
            return Ok(Self {
                audit_name: identity_type,
                org_id,
            });
        }
        let key_name = authenticate_key(headers, state, Scope::Tenant)?;
        let org_id = OrgId::new(header_text(headers, ORG_ID_HEADER)?)
            .map_err(|_| AuthError::Unauthenticated)?;
        check_rate_limits(
            request,
            state,
            (key_name, Credential::Key),
            RateLimitSubject::Organization(org_id.as_str()),
        )?;
        Ok(Self {
            audit_name: key_name.to_owned(),
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
        let headers = &request.headers;
        if let Some((identity_type, Tenant { account, org_id })) = trusted_tenant(headers, state)? {
            check_rate_limits(
                request,
                state,
                (&identity_type, Credential::Identity),
                RateLimitSubject::Organization(org_id.as_str()),
            )?;
            return Ok(Self { account });
        }
        let key_name = authenticate_key(headers, state, Scope::Tenant)?;
        let account = header_text(headers, ACCOUNT_HEADER)?;
        if account.is_empty() {
            return Err(AuthError::Unauthenticated);
        }
        check_rate_limits(
            request,
            state,
            (key_name, Credential::Key),
            RateLimitSubject::Account(account),
        )?;
        let account = account.to_owned();
        Ok(Self { account })
    }
}

impl FromRequestParts<SharedState> for ManagementCaller {
    type Rejection = AuthError;

    async fn from_request_parts(
        request: &mut RequestParts,
        state: &SharedState,
    ) -> Result<Self, AuthError> {
        let headers = &request.headers;
        let (audit_name, credential) = match trusted_identity(headers, state)? {
            Some(identity) if identity::is_associate(&identity) => {
                let email = identity.associate_email().unwrap_or("unknown associate");
                (email.to_owned(), Credential::Identity)
            }
            Some(_) => return Err(AuthError::Unauthenticated),
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
fn trusted_identity(headers: &HeaderMap, state: &ApiState) -> Result<Option<Identity>, AuthError> {
    if !state.trust_identity_header {
        return Ok(None);
    }
    match headers.get(IDENTITY_HEADER) {
        Some(header) if !header.is_empty() => identity::parse(header).map(Some),
        _ => Ok(None),
    }
}

/// Returns the type and the tenant of the identity in the header `x-rh-identity`. Returns `None` if
/// there is no trusted identity. Fails if the identity has no tenant.
fn trusted_tenant(
    headers: &HeaderMap,
    state: &ApiState,
) -> Result<Option<(String, Tenant)>, AuthError> {
    let Some(identity) = trusted_identity(headers, state)? else {
        return Ok(None);
    };
    let tenant = identity
        .tenant()
        .ok_or_else(identity::missing_org_id_error)?;
    let identity_type = identity.identity_type().unwrap_or_default();
    Ok(Some((identity_type.to_owned(), tenant.clone())))
}

/// Checks the pre-shared key and its scope. Returns the name of the key.
fn authenticate_key<'a>(
    headers: &'a HeaderMap,
    state: &ApiState,
    scope: Scope,
) -> Result<&'a str, AuthError> {
    let key_name = header_text(headers, CLIENT_ID_HEADER)?;
    let secret = header_text(headers, PSK_HEADER)?;
    if state.keys.authorizes(key_name, secret, scope) {
        Ok(key_name)
    } else {
        Err(AuthError::Unauthenticated)
    }
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

/// Returns the text of a header. Fails if the header is missing or not printable text.
fn header_text<'a>(headers: &'a HeaderMap, header_name: &str) -> Result<&'a str, AuthError> {
    let value = headers.get(header_name).ok_or(AuthError::Unauthenticated)?;
    value.to_str().map_err(|_| AuthError::Unauthenticated)
}
