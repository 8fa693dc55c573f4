//! Parsing of the `x-rh-identity` header, which a gateway in front of this service sets.

use axum::http::HeaderValue;

use super::AuthError;
use crate::domain::{Identity, IdentityError};

/// Identity type of staff. Only these identities may use the management endpoints.
const ASSOCIATE: &str = "Associate";
const X509: &str = "X509";

/// Parses the header.
///
/// Identities of type `Associate` or `X509` without an account number may lack an organization.
pub(super) fn parse(header: &HeaderValue) -> Result<Identity, AuthError> {
    let text = header.to_str().unwrap_or_default();
    let identity = Identity::from_base64(text).map_err(|error| match error {
        IdentityError::NotBase64 => invalid("unable to b64 decode x-rh-identity header"),
        IdentityError::InvalidOrgId(_)
        | IdentityError::InvalidAccount(_)
        | IdentityError::WrongType("identity") => missing_org_id(),
        IdentityError::NotJson { .. } | IdentityError::WrongType(_) => AuthError::InvalidIdentity(
            format!("x-rh-identity header does not contain valid JSON: {error}"),
        ),
    })?;
    let may_lack_org =
        matches!(identity.kind(), Some(ASSOCIATE | X509)) && identity.account().is_empty();
    if identity.tenant().is_none() && !may_lack_org {
        return Err(missing_org_id());
    }
    if identity.kind().is_none() {
        return Err(invalid("x-rh-identity header is missing type"));
    }
    Ok(identity)
}

pub(super) fn is_associate(identity: &Identity) -> bool {
    identity.kind() == Some(ASSOCIATE)
}

pub(super) fn missing_org_id() -> AuthError {
    invalid("x-rh-identity header has an invalid or missing org_id")
}

fn invalid(cause: &str) -> AuthError {
    AuthError::InvalidIdentity(cause.to_owned())
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// Encodes and parses an identity. The error is the cause that the caller receives.
    fn parse_json(identity: &str) -> Result<Identity, String> {
        let header = HeaderValue::from_str(&STANDARD.encode(identity)).unwrap();
        parse(&header).map_err(|error| match error {
            AuthError::InvalidIdentity(cause) => cause,
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn error_for_an_invalid_identity_names_the_cause() {
        let not_base64 = parse(&HeaderValue::from_static("%%%")).unwrap_err();
        let expected = "unable to b64 decode x-rh-identity header";
        assert!(matches!(not_base64, AuthError::InvalidIdentity(cause) if cause == expected));
        let missing_org = "x-rh-identity header has an invalid or missing org_id";
        for (identity, expected) in [
            ("{", "x-rh-identity header does not contain valid JSON: "),
            (
                r#"{"identity":{"org_id":5}}"#,
                "x-rh-identity header does not contain valid JSON: ",
            ),
            ("{}", missing_org),
            (r#"{"identity":{"type":"User"}}"#, missing_org),
            (r#"{"identity":{"type":"User","org_id":""}}"#, missing_org),
            (
                r#"{"identity":{"type":"Associate","account_number":"1"}}"#,
                missing_org,
            ),
            (
                r#"{"identity":{"org_id":"1"}}"#,
                "x-rh-identity header is missing type",
            ),
        ] {
            let cause = parse_json(identity).unwrap_err();
            assert!(cause.starts_with(expected), "{identity}: {cause}");
        }
    }

    #[test]
    fn associate_and_x509_identities_may_lack_an_organization() {
        for identity in [
            r#"{"identity":{"type":"Associate","associate":{"email":"a@example.com"}}}"#,
            r#"{"identity":{"type":"X509","x509":{"subject_dn":"/CN=a"}}}"#,
            r#"{"identity":{"type":"User","internal":{"org_id":"7"}}}"#,
        ] {
            assert!(parse_json(identity).is_ok(), "{identity}");
        }
    }
}
