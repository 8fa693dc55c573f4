//! The header `x-rh-identity`, that a gateway in front has set.

use axum::http::HeaderValue;

use super::AuthError;
use crate::domain::{Identity, IdentityError};

/// Members of staff, through the gateway that is theirs.
const ASSOCIATE: &str = "Associate";
const X509: &str = "X509";

/// Reads the header. Staff and certificates without an account may lack an organisation.
pub(super) fn read(header: &HeaderValue) -> Result<Identity, AuthError> {
    let text = header.to_str().unwrap_or_default();
    let identity = Identity::from_base64(text).map_err(|error| match error {
        IdentityError::NotBase64 => bad("unable to b64 decode x-rh-identity header"),
        IdentityError::Organisation(_)
        | IdentityError::Account(_)
        | IdentityError::WrongType("identity") => lacks_organisation(),
        IdentityError::NotJson { .. } | IdentityError::WrongType(_) => AuthError::Identity(
            format!("x-rh-identity header does not contain valid JSON: {error}"),
        ),
    })?;
    let may_lack =
        matches!(identity.kind(), Some(ASSOCIATE | X509)) && identity.account().is_empty();
    if identity.tenant().is_none() && !may_lack {
        return Err(lacks_organisation());
    }
    if identity.kind().is_none() {
        return Err(bad("x-rh-identity header is missing type"));
    }
    Ok(identity)
}

pub(super) fn is_staff(identity: &Identity) -> bool {
    identity.kind() == Some(ASSOCIATE)
}

pub(super) fn lacks_organisation() -> AuthError {
    bad("x-rh-identity header has an invalid or missing org_id")
}

fn bad(why: &str) -> AuthError {
    AuthError::Identity(why.to_owned())
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    fn said(identity: &str) -> Result<Identity, String> {
        let header = HeaderValue::from_str(&STANDARD.encode(identity)).unwrap();
        read(&header).map_err(|refused| match refused {
            AuthError::Identity(why) => why,
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn an_identity_that_cannot_be_used_says_why() {
        let not_base64 = read(&HeaderValue::from_static("%%%")).unwrap_err();
        let expected = "unable to b64 decode x-rh-identity header";
        assert!(matches!(not_base64, AuthError::Identity(why) if why == expected));
        let lacking = "x-rh-identity header has an invalid or missing org_id";
        for (identity, why) in [
            ("{", "x-rh-identity header does not contain valid JSON: "),
            (
                r#"{"identity":{"org_id":5}}"#,
                "x-rh-identity header does not contain valid JSON: ",
            ),
            ("{}", lacking),
            (r#"{"identity":{"type":"User"}}"#, lacking),
            (r#"{"identity":{"type":"User","org_id":""}}"#, lacking),
            (
                r#"{"identity":{"type":"Associate","account_number":"1"}}"#,
                lacking,
            ),
            (
                r#"{"identity":{"org_id":"1"}}"#,
                "x-rh-identity header is missing type",
            ),
        ] {
            let said = said(identity).unwrap_err();
            assert!(said.starts_with(why), "{identity}: {said}");
        }
    }

    #[test]
    fn staff_and_certificates_may_lack_an_organisation() {
        for identity in [
            r#"{"identity":{"type":"Associate","associate":{"email":"a@example.com"}}}"#,
            r#"{"identity":{"type":"X509","x509":{"subject_dn":"/CN=a"}}}"#,
            r#"{"identity":{"type":"User","internal":{"org_id":"7"}}}"#,
        ] {
            assert!(said(identity).is_ok(), "{identity}");
        }
    }
}
