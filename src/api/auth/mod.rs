//! Authentication of callers, by pre-shared key or by the `x-rh-identity` header.
//!
//! A handler with an argument of type [`OrgCaller`], [`AccountCaller`] or [`ManagementCaller`] only
//! runs if the caller is authenticated and within its rate limits.

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
use super::{ApiState, SharedState};
use crate::config::Scope;
use crate::domain::{Identity, OrgId, Tenant};

pub use keys::Keys;

pub(super) const IDENTITY_HEADER: &str = "x-rh-identity";
pub(super) const CLIENT_ID_HEADER: &str = "x-rh-cloud-connector-client-id";
pub(super) const PSK_HEADER: &str = "x-rh-cloud-connector-psk";
pub(super) const ORG_ID_HEADER: &str = "x-rh-cloud-connector-org-id";
pub(super) const ACCOUNT_HEADER: &str = "x-rh-cloud-connector-account";

/// An authenticated v2 caller and the organization that it acts for.
#[derive(Debug, Clone)]
pub(super) struct OrgCaller {
    /// Name of the key, or type of the identity. Used in the audit log.
    pub name: String,
    pub org: OrgId,
}

/// An authenticated v1 caller and the account that it acts for.
#[derive(Debug, Clone)]
pub(super) struct AccountCaller {
    pub account: String,
}

/// An authenticated caller of the management endpoints, which work on connections of any tenant.
#[derive(Debug, Clone)]
pub(super) struct ManagementCaller {
    /// Name of the key, or email address of the associate. Used in the audit log.
    pub name: String,
}

/// Why a request was rejected before its handler ran.
#[derive(Debug)]
pub(super) enum AuthError {
    /// Covers all reasons, so the response does not reveal which check failed.
    Unauthenticated,
    /// The gateway sent an invalid identity. The text names the cause.
    InvalidIdentity(String),
    /// The rate limit is exceeded for this long.
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
            Self::RateLimited(wait) => ApiError::rate_limited(wait).into_response(),
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
        if let Some((name, tenant)) = trusted_tenant(headers, state)? {
            let org = tenant.org_id;
            admit(
                request,
                state,
                (&name, Credential::Identity),
                RateLimitSubject::Organization(org.as_str()),
            )?;
            return Ok(Self { name, org });
        }
        let key_name = authenticate_key(headers, state, Scope::Tenant)?;
        let org = OrgId::new(header_text(headers, ORG_ID_HEADER)?)
            .map_err(|_| AuthError::Unauthenticated)?;
        admit(
            request,
            state,
            (key_name, Credential::Key),
            RateLimitSubject::Organization(org.as_str()),
        )?;
        let name = key_name.to_owned();
        Ok(Self { name, org })
    }
}

impl FromRequestParts<SharedState> for AccountCaller {
    type Rejection = AuthError;

    async fn from_request_parts(
        request: &mut RequestParts,
        state: &SharedState,
    ) -> Result<Self, AuthError> {
        let headers = &request.headers;
        if let Some((name, Tenant { account, org_id })) = trusted_tenant(headers, state)? {
            admit(
                request,
                state,
                (&name, Credential::Identity),
                RateLimitSubject::Organization(org_id.as_str()),
            )?;
            return Ok(Self { account });
        }
        let key_name = authenticate_key(headers, state, Scope::Tenant)?;
        let account = header_text(headers, ACCOUNT_HEADER)?;
        if account.is_empty() {
            return Err(AuthError::Unauthenticated);
        }
        admit(
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
        let (name, credential) = match trusted_identity(headers, state)? {
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
        admit(
            request,
            state,
            (&name, credential),
            RateLimitSubject::AllTenants,
        )?;
        Ok(Self { name })
    }
}

/// Returns the identity from the header. Returns `None` if the header is missing, empty or not
/// trusted.
fn trusted_identity(headers: &HeaderMap, state: &ApiState) -> Result<Option<Identity>, AuthError> {
    if !state.trust_identity_header {
        return Ok(None);
    }
    match headers.get(IDENTITY_HEADER) {
        Some(header) if !header.is_empty() => identity::parse(header).map(Some),
        _ => Ok(None),
    }
}

/// Returns the type and the tenant of the trusted identity. Fails if the identity has no tenant.
fn trusted_tenant(
    headers: &HeaderMap,
    state: &ApiState,
) -> Result<Option<(String, Tenant)>, AuthError> {
    let Some(identity) = trusted_identity(headers, state)? else {
        return Ok(None);
    };
    let tenant = identity.tenant().ok_or_else(identity::missing_org_id)?;
    let identity_type = identity.kind().unwrap_or_default();
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

/// How a caller authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Credential {
    Key,
    Identity,
}

/// Applies the rate limits to an authenticated caller, and sets the caller for the access log.
fn admit(
    request: &RequestParts,
    state: &ApiState,
    (name, credential): (&str, Credential),
    subject: RateLimitSubject<'_>,
) -> Result<(), AuthError> {
    if let Some(log_context) = request.extensions.get::<AccessLogContext>() {
        log_context.set_caller(name, subject.tenant());
    }
    let key = (credential == Credential::Key).then_some(name);
    let checked = state.rate_limits.check(key, subject);
    checked.map_err(AuthError::RateLimited)
}

fn header_text<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, AuthError> {
    let value = headers.get(name).ok_or(AuthError::Unauthenticated)?;
    value.to_str().map_err(|_| AuthError::Unauthenticated)
}
