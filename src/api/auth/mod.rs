//! Who is calling, and for whom.

mod identity;
mod keys;

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts as RequestParts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::error::ApiError;
use super::middleware::AccessLogContext;
use super::rate_limits::For;
use super::{ApiState, SharedState};
use crate::config::Scope;
use crate::domain::{Identity, OrgId, Tenant};

pub use keys::Keys;

pub(super) const IDENTITY: &str = "x-rh-identity";
pub(super) const CLIENT_ID: &str = "x-rh-cloud-connector-client-id";
pub(super) const PSK: &str = "x-rh-cloud-connector-psk";
pub(super) const ORG_ID: &str = "x-rh-cloud-connector-org-id";
pub(super) const ACCOUNT: &str = "x-rh-cloud-connector-account";

/// A caller that proved who it is, and the organisation that it speaks for.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    /// For the audit: a key's name, or what kind of identity it is.
    pub name: String,
    pub org: OrgId,
}

/// A caller that speaks for the tenant with this account number, as the first generation names it.
#[derive(Debug, Clone)]
pub(super) struct AccountCaller {
    pub account: String,
}

/// A caller that may do to any connection what the management endpoints do.
#[derive(Debug, Clone)]
pub(super) struct ManagementCaller {
    /// For the audit: a key's name, or a member of staff.
    pub name: String,
}

/// Why nobody is let in.
#[derive(Debug)]
pub(super) enum AuthError {
    /// Whatever the reason: the caller learns nothing from a failure.
    Unauthenticated,
    /// The gateway in front made an identity that cannot be used.
    Identity(String),
    /// A limit is used up, for so long.
    TooMany(Duration),
}

impl IntoResponse for AuthError {
    fn into_response(self) -> Response {
        let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
        match self {
            Self::Unauthenticated => {
                (StatusCode::UNAUTHORIZED, plain, "Authentication failed").into_response()
            }
            Self::Identity(why) => {
                let text = format!("Bad Request: {why}");
                (StatusCode::BAD_REQUEST, plain, text).into_response()
            }
            Self::TooMany(wait) => ApiError::too_many(wait).into_response(),
        }
    }
}

impl FromRequestParts<SharedState> for Caller {
    type Rejection = AuthError;

    async fn from_request_parts(
        request: &mut RequestParts,
        shared: &SharedState,
    ) -> Result<Self, AuthError> {
        let headers = &request.headers;
        if let Some((name, tenant)) = trusted_tenant(headers, shared)? {
            let org = tenant.org_id;
            admit(
                request,
                shared,
                (&name, Credential::Identity),
                For::Organisation(org.as_str()),
            )?;
            return Ok(Self { name, org });
        }
        let caller = key(headers, shared, Scope::Tenant)?;
        let org = OrgId::new(text(headers, ORG_ID)?).map_err(|_| AuthError::Unauthenticated)?;
        admit(
            request,
            shared,
            (caller, Credential::Key),
            For::Organisation(org.as_str()),
        )?;
        let name = caller.to_owned();
        Ok(Self { name, org })
    }
}

impl FromRequestParts<SharedState> for AccountCaller {
    type Rejection = AuthError;

    async fn from_request_parts(
        request: &mut RequestParts,
        shared: &SharedState,
    ) -> Result<Self, AuthError> {
        let headers = &request.headers;
        if let Some((name, Tenant { account, org_id })) = trusted_tenant(headers, shared)? {
            admit(
                request,
                shared,
                (&name, Credential::Identity),
                For::Organisation(org_id.as_str()),
            )?;
            return Ok(Self { account });
        }
        let caller = key(headers, shared, Scope::Tenant)?;
        let account = text(headers, ACCOUNT)?;
        if account.is_empty() {
            return Err(AuthError::Unauthenticated);
        }
        admit(
            request,
            shared,
            (caller, Credential::Key),
            For::Account(account),
        )?;
        let account = account.to_owned();
        Ok(Self { account })
    }
}

impl FromRequestParts<SharedState> for ManagementCaller {
    type Rejection = AuthError;

    async fn from_request_parts(
        request: &mut RequestParts,
        shared: &SharedState,
    ) -> Result<Self, AuthError> {
        let headers = &request.headers;
        let identity = trusted_identity(headers, shared)?;
        let proof = match identity {
            Some(_) => Credential::Identity,
            None => Credential::Key,
        };
        let name = match identity {
            Some(identity) if identity::is_staff(&identity) => identity
                .associate()
                .unwrap_or("a member of staff")
                .to_owned(),
            Some(_) => return Err(AuthError::Unauthenticated),
            None => key(headers, shared, Scope::Management)?.to_owned(),
        };
        admit(request, shared, (&name, proof), For::Everybody)?;
        Ok(Self { name })
    }
}

/// The identity, where a gateway is trusted to have made it and there is one.
fn trusted_identity(headers: &HeaderMap, parts: &ApiState) -> Result<Option<Identity>, AuthError> {
    if !parts.settings.trust_identity_header {
        return Ok(None);
    }
    match headers.get(IDENTITY) {
        Some(header) if !header.is_empty() => identity::read(header).map(Some),
        _ => Ok(None),
    }
}

/// The tenant of such an identity, which must name one, and who says so.
fn trusted_tenant(
    headers: &HeaderMap,
    parts: &ApiState,
) -> Result<Option<(String, Tenant)>, AuthError> {
    let Some(identity) = trusted_identity(headers, parts)? else {
        return Ok(None);
    };
    let tenant = identity.tenant().ok_or_else(identity::lacks_organisation)?;
    let name = identity.kind().unwrap_or_default();
    Ok(Some((name.to_owned(), tenant.clone())))
}

/// The caller whose key this is, if it opens what is asked for.
fn key<'a>(headers: &'a HeaderMap, parts: &ApiState, scope: Scope) -> Result<&'a str, AuthError> {
    let (caller, secret) = (text(headers, CLIENT_ID)?, text(headers, PSK)?);
    if parts.keys.opens(caller, secret, scope) {
        Ok(caller)
    } else {
        Err(AuthError::Unauthenticated)
    }
}

/// What a caller proved who it is by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Credential {
    Key,
    Identity,
}

/// Lets in who has proved who it is, within the limits, and notes it for the request's line in the log.
fn admit(
    request: &RequestParts,
    parts: &ApiState,
    (name, proof): (&str, Credential),
    behalf: For<'_>,
) -> Result<(), AuthError> {
    if let Some(noted) = request.extensions.get::<AccessLogContext>() {
        noted.note(name, behalf.name());
    }
    let key = (proof == Credential::Key).then_some(name);
    parts.limits.take(key, behalf).map_err(AuthError::TooMany)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, AuthError> {
    let value = headers.get(name).ok_or(AuthError::Unauthenticated)?;
    value.to_str().map_err(|_| AuthError::Unauthenticated)
}
