//! The identity of a client or API caller, in the platform's format. HTTP requests contain the
//! identity in the header `x-rh-identity`.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{InvalidId, OrgId, Tenant};

/// The `auth_type` of a client that authenticated with a certificate.
pub const CERT_AUTH: &str = "cert-auth";

/// Maximum length of an account number in bytes.
const MAX_ACCOUNT_BYTES: usize = 255;

/// The reason for which an identity cannot be decoded. The error messages contain no personal data,
/// because they are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The text is not standard base64.
    #[error("the identity is not valid base64")]
    NotBase64,
    /// The decoded bytes are not JSON, or the JSON is nested too deeply.
    #[error("the identity is not valid JSON at line {line} column {column}")]
    NotJson {
        /// Line of the syntax error, starting at 1.
        line: usize,
        /// Column of the syntax error, starting at 1.
        column: usize,
    },
    /// The named field has the wrong JSON type.
    #[error("{0} has the wrong type")]
    WrongType(&'static str),
    /// The organization id is invalid.
    #[error("the organization id is invalid: {0}")]
    InvalidOrgId(InvalidId),
    /// The account number is invalid.
    #[error("the account number is invalid: {0}")]
    InvalidAccount(InvalidId),
}

/// A decoded identity, together with its base64 text.
///
/// The base64 text also contains the fields that this type does not decode. Other services
/// therefore receive the complete identity.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    base64: Arc<str>,
    tenant: Option<Tenant>,
    account: Arc<str>,
    type_name: Option<Arc<str>>,
    associate_email: Option<Arc<str>>,
    auth_type: Arc<str>,
    system_cn: Option<Arc<str>>,
    subject: Option<Arc<str>>,
}

impl Identity {
    /// Decodes the base64 of `{"identity": {…}}`. Fills in missing fields that inventory requires.
    /// A missing `auth_type` becomes `cert-auth`, and a missing `org_id` is copied from
    /// `internal.org_id`.
    ///
    /// # Errors
    /// If the text is not base64 of JSON, or a field is invalid. A missing organization is not an
    /// error. [`Identity::tenant`] then returns `None`.
    pub fn from_base64(base64: &str) -> Result<Self, IdentityError> {
        let base64 = base64.trim();
        let bytes = STANDARD
            .decode(base64)
            .map_err(|_| IdentityError::NotBase64)?;
        let mut document: Value = serde_json::from_slice(&bytes).map_err(|e| not_json_error(&e))?;
        let fields = document
            .get_mut("identity")
            .and_then(Value::as_object_mut)
            .ok_or(IdentityError::WrongType("identity"))?;
        let tenant = decode_tenant(fields)?;
        let type_name = string_field(fields, "type")?.map(Into::into);
        let system_cn = nested_string_field(fields, "system", "cn")?.map(Into::into);
        let associate_email = nested_string_field(fields, "associate", "email")?.map(Into::into);
        let account = string_field(fields, "account_number")?
            .unwrap_or_default()
            .into();
        let subject = subject(fields).map(Into::into);
        let is_changed = fill_missing_fields(fields, tenant.as_ref())?;
        let auth_type = string_field(fields, "auth_type")?
            .unwrap_or(CERT_AUTH)
            .into();
        Ok(Self {
            // If no field was missing, the identity keeps the base64 text that was received.
            base64: if is_changed {
                encode_base64(&document)
            } else {
                base64.into()
            },
            tenant,
            account,
            type_name,
            associate_email,
            auth_type,
            system_cn,
            subject,
        })
    }

    /// Creates the identity of a client whose tenant does not come from the certificate gateway.
    #[must_use]
    pub fn for_tenant(tenant: &Tenant) -> Self {
        let org_id = tenant.org_id.as_str();
        let document = json!({"identity": {
            "type": "User",
            "auth_type": CERT_AUTH,
            "account_number": tenant.account,
            "org_id": org_id,
            "internal": {"org_id": org_id},
        }});
        Self {
            base64: encode_base64(&document),
            tenant: Some(tenant.clone()),
            account: tenant.account.as_str().into(),
            type_name: Some("User".into()),
            associate_email: None,
            auth_type: CERT_AUTH.into(),
            system_cn: None,
            subject: None,
        }
    }

    /// Returns the standard base64 of `{"identity": {…}}`, which other services expect.
    #[must_use]
    pub fn to_base64(&self) -> &str {
        &self.base64
    }

    /// Returns the organization and account. Returns `None` if the identity has no organization.
    #[must_use]
    pub fn tenant(&self) -> Option<&Tenant> {
        self.tenant.as_ref()
    }

    /// Returns the account number, even if the identity has no organization. Returns an empty text
    /// if the identity has no account number.
    #[must_use]
    pub fn account(&self) -> &str {
        &self.account
    }

    /// Returns the email address of an `Associate` (a member of staff), for the audit log.
    #[must_use]
    pub fn associate_email(&self) -> Option<&str> {
        self.associate_email.as_deref()
    }

    /// Returns the `type` of the identity, for example `User` or `System`.
    #[must_use]
    pub fn identity_type(&self) -> Option<&str> {
        self.type_name.as_deref()
    }

    /// Returns the `auth_type` of the identity, for example `cert-auth`.
    #[must_use]
    pub fn auth_type(&self) -> &str {
        &self.auth_type
    }

    /// Returns the id of the user, system or service account that the identity belongs to. Returns `None`
    /// if the identity has no such id.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        self.subject.as_deref()
    }

    /// Returns the common name of the certificate that a `System` identity authenticated with.
    #[must_use]
    pub fn system_cn(&self) -> Option<&str> {
        self.system_cn.as_deref()
    }
}

/// The debug output omits the base64 text, because it contains personal data.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("tenant", &self.tenant)
            .field("identity_type", &self.type_name)
            .field("auth_type", &self.auth_type)
            .finish_non_exhaustive()
    }
}

/// Returns the tenant. Returns `None` if the identity has no organization.
fn decode_tenant(fields: &Map<String, Value>) -> Result<Option<Tenant>, IdentityError> {
    let internal_org_id = nested_string_field(fields, "internal", "org_id")?;
    let account = string_field(fields, "account_number")?.unwrap_or_default();
    if account.contains('\0') {
        let error = InvalidId::ForbiddenChar('\0');
        return Err(IdentityError::InvalidAccount(error));
    }
    if account.len() > MAX_ACCOUNT_BYTES {
        let error = InvalidId::TooLong(MAX_ACCOUNT_BYTES);
        return Err(IdentityError::InvalidAccount(error));
    }
    let Some(org_id) = string_field(fields, "org_id")?.or(internal_org_id) else {
        return Ok(None);
    };
    Ok(Some(Tenant {
        org_id: OrgId::new(org_id).map_err(IdentityError::InvalidOrgId)?,
        account: account.to_owned(),
    }))
}

/// Fills in `auth_type` and `org_id` if they are missing. Returns whether one of the two fields was
/// missing.
fn fill_missing_fields(
    fields: &mut Map<String, Value>,
    tenant: Option<&Tenant>,
) -> Result<bool, IdentityError> {
    let is_auth_type_missing = string_field(fields, "auth_type")?.is_none();
    if is_auth_type_missing {
        fields.insert("auth_type".into(), CERT_AUTH.into());
    }
    let missing_org_id = match tenant {
        Some(tenant) if string_field(fields, "org_id")?.is_none() => Some(tenant.org_id.as_str()),
        _ => None,
    };
    if let Some(org_id) = missing_org_id {
        fields.insert("org_id".into(), org_id.into());
    }
    Ok(is_auth_type_missing || missing_org_id.is_some())
}

/// Returns the id of the user, system or service account. A value that is not a string is ignored.
fn subject(fields: &Map<String, Value>) -> Option<&str> {
    let ids = [
        ("user", "user_id"),
        ("system", "cn"),
        ("service_account", "client_id"),
    ];
    let text = |(object, field): (&str, &str)| fields.get(object)?.get(field)?.as_str();
    ids.into_iter()
        .filter_map(text)
        .find(|id| !id.trim().is_empty())
}

/// Returns the text of a string field. Returns `None` if the field is absent, null or blank.
fn string_field<'a>(
    fields: &'a Map<String, Value>,
    field_name: &'static str,
) -> Result<Option<&'a str>, IdentityError> {
    match fields.get(field_name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.trim().is_empty())),
        Some(_) => Err(IdentityError::WrongType(field_name)),
    }
}

/// Returns the text of a string field in an object field. Returns `None` if the object is absent or
/// null, or if the string is absent, null or blank.
fn nested_string_field<'a>(
    fields: &'a Map<String, Value>,
    object_name: &'static str,
    field_name: &'static str,
) -> Result<Option<&'a str>, IdentityError> {
    match fields.get(object_name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(object)) => string_field(object, field_name),
        Some(_) => Err(IdentityError::WrongType(object_name)),
    }
}

fn encode_base64(document: &Value) -> Arc<str> {
    STANDARD.encode(document.to_string()).into()
}

fn not_json_error(error: &serde_json::Error) -> IdentityError {
    IdentityError::NotJson {
        line: error.line(),
        column: error.column(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity_from_json(json: &str) -> Result<Identity, IdentityError> {
        Identity::from_base64(&STANDARD.encode(json))
    }

    fn decode_json(identity: &Identity) -> Value {
        serde_json::from_slice(&STANDARD.decode(identity.to_base64()).unwrap()).unwrap()
    }

    fn org_id_and_account(identity: &Identity) -> Option<(&str, &str)> {
        let tenant = identity.tenant()?;
        Some((tenant.org_id.as_str(), tenant.account.as_str()))
    }

    #[test]
    fn complete_identity_keeps_its_base64_text() {
        // If the identity were parsed and encoded again, the spaces, the key order and the large
        // integer would change.
        let text = r#"{"identity":  {"type":"System","org_id":"10001","auth_type":"cert-auth",
            "account_number":"010101","system":{"cn":"c1","cert_type":"system"},
            "internal":{"org_id":"10001","auth_time":123456789012345678901234567890}},
            "entitlements":{"insights":{"is_entitled":true}}}"#;
        let identity = identity_from_json(text).unwrap();
        assert_eq!(identity.to_base64(), STANDARD.encode(text));
        assert_eq!(org_id_and_account(&identity), Some(("10001", "010101")));
        assert_eq!(identity.identity_type(), Some("System"));
        assert_eq!(identity.auth_type(), "cert-auth");
        assert_eq!(identity.system_cn(), Some("c1"));
    }

    #[test]
    fn missing_auth_type_becomes_cert_auth() {
        for auth_type in ["", r#","auth_type":null"#, r#","auth_type":"""#] {
            let text = format!(r#"{{"identity":{{"org_id":"1","x":[1]{auth_type}}},"y":2}}"#);
            let identity = identity_from_json(&text).unwrap();
            assert_eq!(identity.auth_type(), "cert-auth");
            assert_eq!(
                decode_json(&identity),
                json!({"identity": {"org_id": "1", "x": [1], "auth_type": "cert-auth"}, "y": 2})
            );
        }
        let jwt_identity =
            identity_from_json(r#"{"identity":{"org_id":"1","auth_type":"jwt-auth"}}"#).unwrap();
        assert_eq!(jwt_identity.auth_type(), "jwt-auth");
        assert_eq!(
            decode_json(&jwt_identity)["identity"]["auth_type"],
            "jwt-auth"
        );
    }

    #[test]
    fn missing_org_id_is_copied_from_internal_org_id() {
        for org_id in [
            "",
            r#""org_id":null,"#,
            r#""org_id":"","#,
            r#""org_id":" ","#,
        ] {
            let text = format!(
                r#"{{"identity":{{{org_id}"auth_type":"cert-auth","internal":{{"org_id":"7","z":1}}}}}}"#
            );
            let identity = identity_from_json(&text).unwrap();
            assert_eq!(org_id_and_account(&identity), Some(("7", "")));
            assert_eq!(
                decode_json(&identity),
                json!({"identity": {"org_id": "7", "auth_type": "cert-auth",
                    "internal": {"org_id": "7", "z": 1}}})
            );
        }
        let identity_with_two_org_ids =
            identity_from_json(r#"{"identity":{"org_id":"1","internal":{"org_id":"2"}}}"#).unwrap();
        assert_eq!(
            org_id_and_account(&identity_with_two_org_ids),
            Some(("1", ""))
        );
        assert_eq!(
            decode_json(&identity_with_two_org_ids)["identity"]["internal"]["org_id"],
            "2"
        );
    }

    #[test]
    fn subject_is_the_id_of_the_user_system_or_service_account() {
        let subject = |fields: &str| {
            let json = format!(r#"{{"identity":{{"org_id":"1","type":"User"{fields}}}}}"#);
            let identity = identity_from_json(&json).unwrap();
            identity.subject().map(str::to_owned)
        };
        assert_eq!(subject(r#","user":{"user_id":"7"}"#).unwrap(), "7");
        assert_eq!(subject(r#","system":{"cn":"c"}"#).unwrap(), "c");
        let service_account = r#","service_account":{"client_id":"s"}"#;
        assert_eq!(subject(service_account).unwrap(), "s");
        assert_eq!(subject(r#","user":{"user_id":7}"#), None);
        assert_eq!(subject(""), None);
    }

    #[test]
    fn missing_or_blank_organization_means_no_tenant() {
        for text in [
            r#"{"identity":{}}"#,
            r#"{"identity":{"org_id":""}}"#,
            r#"{"identity":{"org_id":null,"internal":null,"account_number":"1"}}"#,
            r#"{"identity":{"org_id":" ","internal":{"org_id":""}}}"#,
        ] {
            let identity = identity_from_json(text).unwrap();
            assert_eq!(identity.tenant(), None, "{text}");
            assert!(decode_json(&identity)["identity"].is_object(), "{text}");
        }
    }

    #[test]
    fn invalid_identities_are_rejected() {
        for text in ["", "%", "YQ", "YQ=", "e30=\u{e9}", "_-8=", "Y Q=="] {
            assert!(Identity::from_base64(text).is_err(), "{text:?}");
        }
        let deeply_nested = format!(r#"{{"identity":{}"#, r#"{"a":"#.repeat(100_000));
        let long_org_id = format!(r#"{{"identity":{{"org_id":"{}"}}}}"#, "1".repeat(256));
        for text in [
            "",
            "{",
            "null",
            "[]",
            "{}",
            r#""identity""#,
            r#"{"identity":null}"#,
            r#"{"identity":[]}"#,
            r#"{"identity":{"org_id":1}}"#,
            r#"{"identity":{"org_id":["1"]}}"#,
            r#"{"identity":{"org_id":"1\u0000"}}"#,
            r#"{"identity":{"internal":"1"}}"#,
            r#"{"identity":{"internal":{"org_id":1.5}}}"#,
            r#"{"identity":{"org_id":"1","account_number":5}}"#,
            r#"{"identity":{"org_id":"1","account_number":"\u0000"}}"#,
            r#"{"identity":{"org_id":"1","auth_type":{}}}"#,
            r#"{"identity":{"org_id":"1","type":true}}"#,
            r#"{"identity":{"org_id":"1","system":[]}}"#,
            r#"{"identity":{"org_id":"1","system":{"cn":7}}}"#,
            r#"{"identity":{"org_id":"1\ud800"}}"#,
            &deeply_nested,
            &long_org_id,
        ] {
            assert!(identity_from_json(text).is_err(), "{text:.60}");
        }
        let invalid_utf8 = STANDARD.encode(b"{\"identity\":{\"org_id\":\"\xff\"}}");
        assert!(Identity::from_base64(&invalid_utf8).is_err());
    }

    #[test]
    fn identity_created_for_a_tenant_can_be_decoded() {
        let tenant = Tenant {
            org_id: OrgId::new("10001").unwrap(),
            account: "010101".into(),
        };
        let identity = Identity::for_tenant(&tenant);
        assert_eq!(
            decode_json(&identity),
            json!({"identity": {"type": "User", "auth_type": "cert-auth", "org_id": "10001",
                "account_number": "010101", "internal": {"org_id": "10001"}}})
        );
        assert_eq!(Identity::from_base64(identity.to_base64()), Ok(identity));
    }

    #[test]
    fn debug_output_contains_no_personal_data() {
        let identity =
            identity_from_json(r#"{"identity":{"org_id":"1","user":{"email":"a@b.example"}}}"#);
        let debug = format!("{identity:?}");
        assert!(debug.contains("OrgId"), "{debug}");
        assert!(
            !debug.contains("example") && !debug.contains("base64"),
            "{debug}"
        );
    }
}
