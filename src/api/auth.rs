//! Who is calling, and for which organisation.

use std::collections::HashMap;

use axum::extract::FromRequestParts;
use axum::http::request::Parts as RequestParts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use subtle::{Choice, ConstantTimeEq as _};

use super::Shared;
use crate::config::Secret;
use crate::domain::OrgId;

const CLIENT_ID: &str = "x-rh-cloud-connector-client-id";
const PSK: &str = "x-rh-cloud-connector-psk";
const ORG_ID: &str = "x-rh-cloud-connector-org-id";

/// Pre-shared keys, by caller.
#[derive(Debug, Clone, Default)]
pub struct Keys(HashMap<String, Vec<Secret>>);

impl Keys {
    /// Lets a caller in with any of these secrets.
    pub fn add(&mut self, caller: impl Into<String>, secrets: Vec<Secret>) {
        self.0.entry(caller.into()).or_default().extend(secrets);
    }

    /// Compares in constant time, and with every secret that the caller has, so that the time
    /// taken says nothing about how much of a secret was right.
    fn accepts(&self, caller: &str, secret: &str) -> bool {
        let known = self.0.get(caller).map_or(&[][..], Vec::as_slice);
        let mut right = Choice::from(0);
        for candidate in known {
            right |= candidate.expose().as_bytes().ct_eq(secret.as_bytes());
        }
        right.into()
    }
}

/// A caller that proved who it is, and the organisation that it speaks for.
#[derive(Debug, Clone)]
pub(super) struct Caller {
    pub org: OrgId,
}

/// Whatever the reason: the caller learns nothing from a failure.
#[derive(Debug)]
pub(super) struct Unauthenticated;

impl IntoResponse for Unauthenticated {
    fn into_response(self) -> Response {
        let plain = [(header::CONTENT_TYPE, "text/plain; charset=utf-8")];
        (StatusCode::UNAUTHORIZED, plain, "Authentication failed").into_response()
    }
}

impl FromRequestParts<Shared> for Caller {
    type Rejection = Unauthenticated;

    async fn from_request_parts(
        request: &mut RequestParts,
        shared: &Shared,
    ) -> Result<Self, Unauthenticated> {
        let headers = &request.headers;
        let (caller, secret) = (text(headers, CLIENT_ID)?, text(headers, PSK)?);
        if !shared.keys.accepts(caller, secret) {
            return Err(Unauthenticated);
        }
        let org = OrgId::new(text(headers, ORG_ID)?).map_err(|_| Unauthenticated)?;
        Ok(Self { org })
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Unauthenticated> {
    let value = headers.get(name).ok_or(Unauthenticated)?;
    value.to_str().map_err(|_| Unauthenticated)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_let_in_with_any_of_its_own_secrets_and_no_other() {
        let mut keys = Keys::default();
        keys.add("a", vec![Secret::new("new"), Secret::new("old")]);
        keys.add("b", vec![Secret::new("other")]);
        assert!(keys.accepts("a", "new"));
        assert!(keys.accepts("a", "old"));
        for (caller, secret) in [
            ("a", "other"),
            ("a", ""),
            ("b", "new"),
            ("c", "new"),
            ("", ""),
        ] {
            assert!(!keys.accepts(caller, secret), "{caller} {secret}");
        }
    }
}
