//! The certificate gateway: names the identity that a client's certificate stands for.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::TenantLookupOutcome;
use crate::config::Pem;
use crate::domain::{ClientId, Identity};
use crate::http_client;

/// Largest answer that is read. Real ones have about a kilobyte.
const ANSWER_MAX_BYTES: usize = 256 * 1024;

/// Why the gateway cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address is malformed.
    #[error(
        "tenant.gateway_url: {url:?} is not an address: {problem}; write it as in \"https://gateway.example/v1\""
    )]
    Url {
        /// The address.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// The authorities' file cannot be used.
    #[error("tenant.gateway_ca: {} cannot be used: {problem}; name a PEM file", path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// The gateway, over HTTP.
pub struct Gateway {
    url: reqwest::Url,
    http: reqwest::Client,
}

impl Gateway {
    /// A gateway at this address, which has so long to answer.
    ///
    /// # Errors
    /// When the settings cannot work.
    pub fn new(url: &str, ca: Option<&Pem>, timeout: Duration) -> Result<Self, GatewayError> {
        let bad_url = |problem: String| GatewayError::Url {
            url: url.to_owned(),
            problem,
        };
        let parsed = http_client::address(url).map_err(bad_url)?;
        let mut builder = http_client::client(timeout);
        if let Some(ca) = ca {
            builder = builder.tls_certs_merge(authorities(ca)?);
        }
        let http = builder.build().map_err(|why| bad_url(why.to_string()))?;
        Ok(Self { url: parsed, http })
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Asks for one client.
    pub async fn ask(&self, client: &ClientId) -> TenantLookupOutcome {
        let request_id = Uuid::new_v4().simple().to_string();
        let request = self
            .http
            .get(self.url.clone())
            .header("x-rh-certauth-cn", format!("/CN={client}"))
            .header("x-rh-insights-request-id", request_id);
        match http_client::ask(request, ANSWER_MAX_BYTES).await {
            Ok((status, body)) => judge(status, &body),
            Err(error) => {
                tracing::debug!(client_id = %client, %error, "the gateway does not answer");
                TenantLookupOutcome::Unavailable
            }
        }
    }
}

fn authorities(ca: &Pem) -> Result<Vec<reqwest::Certificate>, GatewayError> {
    let path = match ca {
        Pem::File(path) => path.clone(),
        Pem::Text(_) => PathBuf::from("(given as text)"),
    };
    let unusable = |problem: String| GatewayError::Ca {
        path: path.clone(),
        problem,
    };
    let text = ca.read().map_err(|error| unusable(error.to_string()))?;
    let found = reqwest::Certificate::from_pem_bundle(text.as_bytes())
        .map_err(|error| unusable(error.to_string()))?;
    if found.is_empty() {
        return Err(unusable("it holds no certificate".to_owned()));
    }
    Ok(found)
}

#[derive(Deserialize)]
struct Named {
    #[serde(rename = "x-rh-identity")]
    identity: String,
}

/// What an answer means. Only what is certainly the gateway's own word is definite: a proxy's page or
/// a wrong address must cost nobody its tenant.
fn judge(status: u16, body: &[u8]) -> TenantLookupOutcome {
    match status {
        200 => {
            let named: Result<Named, _> = serde_json::from_slice(body);
            let identity = named
                .ok()
                .map(|named| Identity::from_base64(&named.identity));
            match identity {
                Some(Ok(identity)) => TenantLookupOutcome::of(identity),
                Some(Err(_)) | None => TenantLookupOutcome::Unavailable,
            }
        }
        408 | 425 | 429 => TenantLookupOutcome::Unavailable,
        400..=499 if is_refusal(body) => TenantLookupOutcome::NotFound,
        _ => TenantLookupOutcome::Unavailable,
    }
}

/// `{"errors": [{…}, …]}`.
fn is_refusal(body: &[u8]) -> bool {
    let body: Result<Value, _> = serde_json::from_slice(body);
    let errors = body
        .ok()
        .and_then(|mut body| body.get_mut("errors").map(Value::take));
    match errors {
        Some(Value::Array(errors)) => !errors.is_empty() && errors.iter().all(Value::is_object),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use serde_json::json;

    fn named(identity: &Value) -> Vec<u8> {
        let text = BASE64_STANDARD.encode(json!({ "identity": identity }).to_string());
        json!({"x-rh-identity": text}).to_string().into_bytes()
    }

    #[test]
    fn an_organisation_in_either_place_is_found() {
        for identity in [
            json!({"type": "System", "org_id": "1", "account_number": "42"}),
            json!({"type": "System", "account_number": "42", "internal": {"org_id": "1"}}),
        ] {
            match judge(200, &named(&identity)) {
                TenantLookupOutcome::Found(found) => {
                    assert_eq!(found.tenant.org_id.as_str(), "1");
                    assert_eq!(found.tenant.account, "42");
                }
                other => panic!("{identity}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_definite_answer_is_the_gateways_own_word() {
        let refusal = json!({"errors": [{"meta": {"response_by": "gateway"}, "status": 401,
            "detail": "no such certificate"}]});
        let refusal = refusal.to_string().into_bytes();
        for status in [400, 401, 403, 404, 410, 422] {
            assert_eq!(
                judge(status, &refusal),
                TenantLookupOutcome::NotFound,
                "{status}"
            );
        }
        for identity in [
            json!({"type": "System"}),
            json!({"type": "System", "org_id": ""}),
        ] {
            assert_eq!(
                judge(200, &named(&identity)),
                TenantLookupOutcome::NotFound,
                "{identity}"
            );
        }
        for status in [408, 425, 429, 500, 502, 503, 504, 301, 204] {
            assert_eq!(
                judge(status, &refusal),
                TenantLookupOutcome::Unavailable,
                "{status}"
            );
        }
    }

    #[test]
    fn a_body_that_cannot_be_read_is_no_answer() {
        let page = b"<html><body>Sign in to the network</body></html>".to_vec();
        for body in [
            page,
            b"{}".to_vec(),
            b"".to_vec(),
            b"[]".to_vec(),
            br#"{"errors": []}"#.to_vec(),
            br#"{"errors": "x"}"#.to_vec(),
            br#"{"errors": ["x"]}"#.to_vec(),
            br#"{"x-rh-identity": 7}"#.to_vec(),
            br#"{"x-rh-identity": "not base64!"}"#.to_vec(),
            br#"{"x-rh-identity": "e30="}"#.to_vec(),
        ] {
            for status in [200, 401, 404] {
                let text = String::from_utf8_lossy(&body).into_owned();
                assert_eq!(
                    judge(status, &body),
                    TenantLookupOutcome::Unavailable,
                    "{status} {text}"
                );
            }
        }
    }

    #[test]
    fn a_wrong_address_is_named_with_its_cure() {
        for bad in ["gateway", "ftp://gateway", "http://"] {
            let text = Gateway::new(bad, None, Duration::from_secs(1))
                .err()
                .unwrap();
            assert!(text.to_string().contains("tenant.gateway_url"), "{text}");
        }
    }
}
