//! Who is calling, and for whom.

mod identity;
mod keys;

use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts as RequestParts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::error::ApiError;
use super::limits::For;
use super::observe::Noted;
use super::{Parts, Shared};
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
pub(super) struct Manager {
    /// For the audit: a key's name, or a member of staff.
    pub name: String,
}

/// Why nobody is let in.
#[derive(Debug)]
pub(super) enum Refused {
    /// Whatever the reason: the caller learns nothing from a failure.
    Unauthenticated,
    /// The gateway in front made an identity that cannot be used.
    Identity(String),
    /// A limit is used up, for so long.
    TooMany(Duration),
}

impl IntoResponse for Refused {
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

impl FromRequestParts<Shared> for Caller {
    type Rejection = Refused;

    async fn from_request_parts(
        request: &mut RequestParts,
        shared: &Shared,
    ) -> Result<Self, Refused> {
        let headers = &request.headers;
        if let Some((name, tenant)) = trusted_tenant(headers, shared)? {
            let org = tenant.org_id;
            admit(
                request,
                shared,
                (&name, Proof::Identity),
                For::Organisation(org.as_str()),
            )?;
            return Ok(Self { name, org });
        }
        let caller = key(headers, shared, Scope::Tenant)?;
        let org = OrgId::new(text(headers, ORG_ID)?).map_err(|_| Refused::Unauthenticated)?;
        admit(
            request,
            shared,
            (caller, Proof::Key),
            For::Organisation(org.as_str()),
        )?;
        let name = caller.to_owned();
        Ok(Self { name, org })
    }
}

impl FromRequestParts<Shared> for AccountCaller {
    type Rejection = Refused;

    async fn from_request_parts(
        request: &mut RequestParts,
        shared: &Shared,
    ) -> Result<Self, Refused> {
        let headers = &request.headers;
        if let Some((name, Tenant { account, org_id })) = trusted_tenant(headers, shared)? {
            admit(
                request,
                shared,
                (&name, Proof::Identity),
                For::Organisation(org_id.as_str()),
            )?;
            return Ok(Self { account });
        }
        let caller = key(headers, shared, Scope::Tenant)?;
        let account = text(headers, ACCOUNT)?;
        if account.is_empty() {
            return Err(Refused::Unauthenticated);
        }
        admit(request, shared, (caller, Proof::Key), For::Account(account))?;
        let account = account.to_owned();
        Ok(Self { account })
    }
}

impl FromRequestParts<Shared> for Manager {
    type Rejection = Refused;

    async fn from_request_parts(
        request: &mut RequestParts,
        shared: &Shared,
    ) -> Result<Self, Refused> {
        let headers = &request.headers;
        let identity = trusted_identity(headers, shared)?;
        let proof = match identity {
            Some(_) => Proof::Identity,
            None => Proof::Key,
        };
        let name = match identity {
            Some(identity) if identity::is_staff(&identity) => identity
                .associate()
                .unwrap_or("a member of staff")
                .to_owned(),
            Some(_) => return Err(Refused::Unauthenticated),
            None => key(headers, shared, Scope::Management)?.to_owned(),
        };
        admit(request, shared, (&name, proof), For::Everybody)?;
        Ok(Self { name })
    }
}

/// The identity, where a gateway is trusted to have made it and there is one.
fn trusted_identity(headers: &HeaderMap, parts: &Parts) -> Result<Option<Identity>, Refused> {
    if !parts.settings.trust_identity_header {
        return Ok(None);
    }
    match headers.get(IDENTITY) {
        Some(header) if !header.is_empty() => identity::read(header).map(Some),
        _ => Ok(None),
    }
}

/// The tenant of such an identity, which must name one, and who says so.
fn trusted_tenant(headers: &HeaderMap, parts: &Parts) -> Result<Option<(String, Tenant)>, Refused> {
    let Some(identity) = trusted_identity(headers, parts)? else {
        return Ok(None);
    };
    let tenant = identity.tenant().ok_or_else(identity::lacks_organisation)?;
    let name = identity.kind().unwrap_or_default();
    Ok(Some((name.to_owned(), tenant.clone())))
}

/// The caller whose key this is, if it opens what is asked for.
fn key<'a>(headers: &'a HeaderMap, parts: &Parts, scope: Scope) -> Result<&'a str, Refused> {
    let (caller, secret) = (text(headers, CLIENT_ID)?, text(headers, PSK)?);
    if parts.keys.opens(caller, secret, scope) {
        Ok(caller)
    } else {
        Err(Refused::Unauthenticated)
    }
}

/// What a caller proved who it is by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Proof {
    Key,
    Identity,
}

/// Lets in who has proved who it is, within the limits, and notes it for the request's line in the log.
fn admit(
    request: &RequestParts,
    parts: &Parts,
    (name, proof): (&str, Proof),
    behalf: For<'_>,
) -> Result<(), Refused> {
    if let Some(noted) = request.extensions.get::<Noted>() {
        noted.note(name, behalf.name());
    }
    let key = (proof == Proof::Key).then_some(name);
    parts.limits.take(key, behalf).map_err(Refused::TooMany)
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Refused> {
    let value = headers.get(name).ok_or(Refused::Unauthenticated)?;
    value.to_str().map_err(|_| Refused::Unauthenticated)
}
