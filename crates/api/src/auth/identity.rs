//! Parses the header `x-rh-identity`. A gateway in front of this service sets the header.

use axum::http::HeaderValue;

use super::AuthError;
use super::failures::FailureReason;
use domain::{Identity, IdentityError};

/// Identity type of the operator's employees. Only identities of this type may use the management
/// endpoints.
const ASSOCIATE_TYPE: &str = "Associate";
const X509_TYPE: &str = "X509";

const MISSING_ORG_ID: &str = "x-rh-identity header has an invalid or missing org_id";

/// Parses the value of the header `x-rh-identity`.
///
/// An identity must have an organization, with one exception: an identity of type `Associate` or
/// `X509` that has no account number.
pub(super) fn parse(header: &HeaderValue) -> Result<Identity, AuthError> {
    let text = header.to_str().unwrap_or_default();
    let identity = Identity::from_base64(text).map_err(|error| match error {
        IdentityError::NotBase64 => {
            invalid_identity_error("unable to b64 decode x-rh-identity header")
        }
        IdentityError::InvalidOrgId(_)
        | IdentityError::InvalidAccount(_)
        | IdentityError::WrongType("identity") => missing_org_id_error(),
        IdentityError::NotJson { .. } | IdentityError::WrongType(_) => invalid_identity_error(
            format!("x-rh-identity header does not contain valid JSON: {error}"),
        ),
    })?;
    let may_omit_org = identity.account().is_empty()
        && matches!(identity.identity_type(), Some(ASSOCIATE_TYPE | X509_TYPE));
    if identity.tenant().is_none() && !may_omit_org {
        return Err(missing_org_id_error());
    }
    if identity.identity_type().is_none() {
        return Err(invalid_identity_error(
            "x-rh-identity header is missing type",
        ));
    }
    Ok(identity)
}

pub(super) fn is_associate(identity: &Identity) -> bool {
    identity.identity_type() == Some(ASSOCIATE_TYPE)
}

/// Returns the error for a valid identity without an organization, if the endpoint requires one.
pub(super) fn org_id_required_error() -> AuthError {
    AuthError::InvalidIdentity {
        reason: FailureReason::UnsuitableIdentity,
        cause: MISSING_ORG_ID.to_owned(),
    }
}

/// Returns the error for a request with several identities.
pub(super) fn duplicate_error() -> AuthError {
    AuthError::InvalidIdentity {
        reason: FailureReason::DuplicateHeader,
        cause: "the request has more than one x-rh-identity header".to_owned(),
    }
}

fn missing_org_id_error() -> AuthError {
    invalid_identity_error(MISSING_ORG_ID)
}

fn invalid_identity_error(cause: impl Into<String>) -> AuthError {
    AuthError::InvalidIdentity {
        reason: FailureReason::InvalidIdentity,
        cause: cause.into(),
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    /// Encodes the identity as a header value, and parses the header value. The error is the error
    /// text that an API caller receives.
    fn parse_json(identity: &str) -> Result<Identity, String> {
        let header = HeaderValue::from_str(&STANDARD.encode(identity)).unwrap();
        parse(&header).map_err(|error| match error {
            AuthError::InvalidIdentity { cause, .. } => cause,
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn error_for_an_invalid_identity_names_the_cause() {
        let not_base64 = parse(&HeaderValue::from_static("%%%")).unwrap_err();
        let expected = "unable to b64 decode x-rh-identity header";
        assert!(
            matches!(not_base64, AuthError::InvalidIdentity { cause, .. } if cause == expected)
        );
        let missing_org = MISSING_ORG_ID;
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
    fn associate_and_x509_identities_may_omit_the_organization() {
        for identity in [
            r#"{"identity":{"type":"Associate","associate":{"email":"a@example.com"}}}"#,
            r#"{"identity":{"type":"X509","x509":{"subject_dn":"/CN=a"}}}"#,
            r#"{"identity":{"type":"User","internal":{"org_id":"7"}}}"#,
        ] {
            assert!(parse_json(identity).is_ok(), "{identity}");
        }
    }
}
