//! Who a client is in the eyes of the platform: what the certificate gateway says of it, and other
//! services want to be told.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{InvalidId, OrgId, Tenant};

/// What a client that came with a certificate was authenticated by.
pub const CERT_AUTH: &str = "cert-auth";

/// Longest account number in bytes, on the way in; as long as an organisation.
const ACCOUNT_MAX_BYTES: usize = 255;

/// Why an identity cannot be read. Never holds what was in it: it ends up in logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Not standard base64.
    #[error("the identity is not base64")]
    NotBase64,
    /// Not JSON, or nested too deeply.
    #[error("the identity is not JSON at line {line} column {column}")]
    NotJson {
        /// Where.
        line: usize,
        /// Where in it.
        column: usize,
    },
    /// A part that is read is of another type.
    #[error("{0} has the wrong type")]
    WrongType(&'static str),
    /// An organisation that cannot be one.
    #[error("the organisation cannot be used: {0}")]
    Organisation(InvalidId),
    /// An account number that no store would keep.
    #[error("the account number cannot be used: {0}")]
    Account(InvalidId),
}

/// An identity as it came, with all that we know nothing of, and the few parts that we read.
///
/// It is kept encoded: those who want it want it so, and what is not decoded again cannot be lost.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    encoded: Arc<str>,
    tenant: Option<Tenant>,
    account: Arc<str>,
    kind: Option<Arc<str>>,
    associate: Option<Arc<str>>,
    auth_type: Arc<str>,
    system_cn: Option<Arc<str>>,
}

impl Identity {
    /// Reads the gateway's base64, with two mends, because inventory refuses an identity that lacks
    /// them: a missing `auth_type` becomes `cert-auth`, and an organisation that stands only in
    /// `internal.org_id` is also written to the top level.
    ///
    /// # Errors
    /// When it is not base64 of JSON of the expected shape. That no organisation is named is no
    /// error, but an answer: see [`Identity::tenant`].
    pub fn from_base64(text: &str) -> Result<Self, IdentityError> {
        let text = text.trim();
        let bytes = STANDARD
            .decode(text)
            .map_err(|_| IdentityError::NotBase64)?;
        let mut whole: Value = serde_json::from_slice(&bytes).map_err(|e| not_json(&e))?;
        let fields = whole
            .get_mut("identity")
            .and_then(Value::as_object_mut)
            .ok_or(IdentityError::WrongType("identity"))?;
        let tenant = tenant(fields)?;
        let kind = word(fields, "type")?.map(Into::into);
        let system = object(fields, "system")?;
        let system_cn = system.map_or(Ok(None), |system| word(system, "cn"))?;
        let system_cn = system_cn.map(Into::into);
        let associate = object(fields, "associate")?;
        let associate = associate.map_or(Ok(None), |associate| word(associate, "email"))?;
        let associate = associate.map(Into::into);
        let account = word(fields, "account_number")?.unwrap_or_default().into();
        let is_mended = mend(fields, tenant.as_ref())?;
        Ok(Self {
            auth_type: word(fields, "auth_type")?.unwrap_or(CERT_AUTH).into(),
            encoded: if is_mended {
                encode(&whole)
            } else {
                text.into()
            },
            tenant,
            account,
            kind,
            associate,
            system_cn,
        })
    }

    /// The identity of a client whose tenant no gateway named.
    #[must_use]
    pub fn made_for(tenant: &Tenant) -> Self {
        let org_id = tenant.org_id.as_str();
        let whole = json!({"identity": {
            "type": "User",
            "auth_type": CERT_AUTH,
            "account_number": tenant.account,
            "org_id": org_id,
            "internal": {"org_id": org_id},
        }});
        Self {
            encoded: encode(&whole),
            tenant: Some(tenant.clone()),
            account: tenant.account.as_str().into(),
            kind: Some("User".into()),
            associate: None,
            auth_type: CERT_AUTH.into(),
            system_cn: None,
        }
    }

    /// As other services take it: standard base64 of `{"identity": {…}}`.
    #[must_use]
    pub fn to_base64(&self) -> &str {
        &self.encoded
    }

    /// The organisation and account that it names. None: a definite "to nobody".
    #[must_use]
    pub fn tenant(&self) -> Option<&Tenant> {
        self.tenant.as_ref()
    }

    /// The account number that it names, whether it names an organisation or not; `""` for none.
    #[must_use]
    pub fn account(&self) -> &str {
        &self.account
    }

    /// The address of a member of staff, for lines that must say who it was.
    #[must_use]
    pub fn associate(&self) -> Option<&str> {
        self.associate.as_deref()
    }

    /// Its `type`: `User`, `System`, …
    #[must_use]
    pub fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    /// Its `auth_type`.
    #[must_use]
    pub fn auth_type(&self) -> &str {
        &self.auth_type
    }

    /// The common name of the certificate that a `System` came with.
    #[must_use]
    pub fn system_cn(&self) -> Option<&str> {
        self.system_cn.as_deref()
    }
}

/// Without the encoded whole: it holds people's names.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("tenant", &self.tenant)
            .field("kind", &self.kind)
            .field("auth_type", &self.auth_type)
            .finish_non_exhaustive()
    }
}

fn tenant(fields: &Map<String, Value>) -> Result<Option<Tenant>, IdentityError> {
    let internal = object(fields, "internal")?;
    let inside = internal.map_or(Ok(None), |internal| word(internal, "org_id"))?;
    let account = word(fields, "account_number")?.unwrap_or_default();
    if account.contains('\0') {
        return Err(IdentityError::Account(InvalidId::Character('\0')));
    }
    if account.len() > ACCOUNT_MAX_BYTES {
        let too_long = InvalidId::TooLong(ACCOUNT_MAX_BYTES);
        return Err(IdentityError::Account(too_long));
    }
    let Some(org_id) = word(fields, "org_id")?.or(inside) else {
        return Ok(None);
    };
    Ok(Some(Tenant {
        org_id: OrgId::new(org_id).map_err(IdentityError::Organisation)?,
        account: account.to_owned(),
    }))
}

/// Whether there was anything to mend.
fn mend(fields: &mut Map<String, Value>, tenant: Option<&Tenant>) -> Result<bool, IdentityError> {
    let lacks_auth_type = word(fields, "auth_type")?.is_none();
    if lacks_auth_type {
        fields.insert("auth_type".into(), CERT_AUTH.into());
    }
    let missing = match tenant {
        Some(tenant) if word(fields, "org_id")?.is_none() => Some(tenant.org_id.as_str()),
        _ => None,
    };
    if let Some(org_id) = missing {
        fields.insert("org_id".into(), org_id.into());
    }
    Ok(lacks_auth_type || missing.is_some())
}

/// A text; absent, null and blank are none.
fn word<'a>(
    fields: &'a Map<String, Value>,
    key: &'static str,
) -> Result<Option<&'a str>, IdentityError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.trim().is_empty())),
        Some(_) => Err(IdentityError::WrongType(key)),
    }
}

/// An object; absent and null are none.
fn object<'a>(
    fields: &'a Map<String, Value>,
    key: &'static str,
) -> Result<Option<&'a Map<String, Value>>, IdentityError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(inside)) => Ok(Some(inside)),
        Some(_) => Err(IdentityError::WrongType(key)),
    }
}

fn encode(whole: &Value) -> Arc<str> {
    STANDARD.encode(whole.to_string()).into()
}

fn not_json(error: &serde_json::Error) -> IdentityError {
    IdentityError::NotJson {
        line: error.line(),
        column: error.column(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Identity, IdentityError> {
        Identity::from_base64(&STANDARD.encode(text))
    }

    fn decoded(identity: &Identity) -> Value {
        serde_json::from_slice(&STANDARD.decode(identity.to_base64()).unwrap()).unwrap()
    }

    fn named(identity: &Identity) -> Option<(&str, &str)> {
        let tenant = identity.tenant()?;
        Some((tenant.org_id.as_str(), tenant.account.as_str()))
    }

    #[test]
    fn a_whole_identity_is_kept_to_the_byte() {
        // Two spaces, an order of its own, an integer beyond 64 bits: none survives a parser.
        let text = r#"{"identity":  {"type":"System","org_id":"10001","auth_type":"cert-auth",
            "account_number":"010101","system":{"cn":"c1","cert_type":"system"},
            "internal":{"org_id":"10001","auth_time":123456789012345678901234567890}},
            "entitlements":{"insights":{"is_entitled":true}}}"#;
        let identity = read(text).unwrap();
        assert_eq!(identity.to_base64(), STANDARD.encode(text));
        assert_eq!(named(&identity), Some(("10001", "010101")));
        assert_eq!(identity.kind(), Some("System"));
        assert_eq!(identity.auth_type(), "cert-auth");
        assert_eq!(identity.system_cn(), Some("c1"));
    }

    #[test]
    fn a_missing_auth_type_becomes_cert_auth() {
        for auth_type in ["", r#","auth_type":null"#, r#","auth_type":"""#] {
            let text = format!(r#"{{"identity":{{"org_id":"1","x":[1]{auth_type}}},"y":2}}"#);
            let identity = read(&text).unwrap();
            assert_eq!(identity.auth_type(), "cert-auth");
            assert_eq!(
                decoded(&identity),
                json!({"identity": {"org_id": "1", "x": [1], "auth_type": "cert-auth"}, "y": 2})
            );
        }
        let other = read(r#"{"identity":{"org_id":"1","auth_type":"jwt-auth"}}"#).unwrap();
        assert_eq!(other.auth_type(), "jwt-auth");
        assert_eq!(decoded(&other)["identity"]["auth_type"], "jwt-auth");
    }

    #[test]
    fn an_inner_organisation_is_also_written_to_the_top_level() {
        for top in [
            "",
            r#""org_id":null,"#,
            r#""org_id":"","#,
            r#""org_id":" ","#,
        ] {
            let text = format!(
                r#"{{"identity":{{{top}"auth_type":"cert-auth","internal":{{"org_id":"7","z":1}}}}}}"#
            );
            let identity = read(&text).unwrap();
            assert_eq!(named(&identity), Some(("7", "")));
            assert_eq!(
                decoded(&identity),
                json!({"identity": {"org_id": "7", "auth_type": "cert-auth",
                    "internal": {"org_id": "7", "z": 1}}})
            );
        }
        let both = read(r#"{"identity":{"org_id":"1","internal":{"org_id":"2"}}}"#).unwrap();
        assert_eq!(named(&both), Some(("1", "")));
        assert_eq!(decoded(&both)["identity"]["internal"]["org_id"], "2");
    }

    #[test]
    fn a_missing_or_empty_organisation_is_an_answer_and_not_an_error() {
        for text in [
            r#"{"identity":{}}"#,
            r#"{"identity":{"org_id":""}}"#,
            r#"{"identity":{"org_id":null,"internal":null,"account_number":"1"}}"#,
            r#"{"identity":{"org_id":" ","internal":{"org_id":""}}}"#,
        ] {
            let identity = read(text).unwrap();
            assert_eq!(identity.tenant(), None, "{text}");
            assert!(decoded(&identity)["identity"].is_object(), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error() {
        for text in ["", "%", "YQ", "YQ=", "e30=\u{e9}", "_-8=", "Y Q=="] {
            assert!(Identity::from_base64(text).is_err(), "{text:?} was taken");
        }
        let deep = format!(r#"{{"identity":{}"#, r#"{"a":"#.repeat(100_000));
        let long = format!(r#"{{"identity":{{"org_id":"{}"}}}}"#, "1".repeat(256));
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
            &deep,
            &long,
        ] {
            assert!(read(text).is_err(), "{text:.60} was taken");
        }
        let invalid = STANDARD.encode(b"{\"identity\":{\"org_id\":\"\xff\"}}");
        assert!(Identity::from_base64(&invalid).is_err());
    }

    #[test]
    fn an_identity_made_for_a_tenant_reads_back() {
        let tenant = Tenant {
            org_id: OrgId::new("10001").unwrap(),
            account: "010101".into(),
        };
        let made = Identity::made_for(&tenant);
        assert_eq!(
            decoded(&made),
            json!({"identity": {"type": "User", "auth_type": "cert-auth", "org_id": "10001",
                "account_number": "010101", "internal": {"org_id": "10001"}}})
        );
        assert_eq!(Identity::from_base64(made.to_base64()), Ok(made));
    }

    #[test]
    fn what_is_logged_names_nobody() {
        let identity = read(r#"{"identity":{"org_id":"1","user":{"email":"a@b.example"}}}"#);
        let shown = format!("{identity:?}");
        assert!(shown.contains("OrgId"), "{shown}");
        assert!(
            !shown.contains("example") && !shown.contains("encoded"),
            "{shown}"
        );
    }
}
