//! HTTP client of the certificate gateway. The gateway returns the identity document of a client.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::TenantLookupOutcome;
use domain::{ClientId, Identity};
use network::http_client;
use service::settings::PemSource;

/// Maximum number of bytes that are read from a response body. Real bodies have about 1 KiB.
const MAX_RESPONSE_BYTES: usize = 256 * 1024;

/// Invalid gateway settings.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The URL is malformed.
    #[error(
        "tenant.gateway_url: {url:?} is not a valid URL: {problem}; \
         example: \"https://gateway.example/v1\""
    )]
    Url {
        /// The configured URL.
        url: String,
        /// Why the URL is invalid.
        problem: String,
    },
    /// The CA certificates cannot be loaded.
    #[error(
        "tenant.gateway_ca: cannot load {}: {problem}; set it to a PEM file with CA certificates",
        path.display()
    )]
    Ca {
        /// Path of the configured file.
        path: PathBuf,
        /// Why the file cannot be loaded.
        problem: String,
    },
}

/// HTTP client of the certificate gateway, without cache and limits.
pub struct GatewayClient {
    url: reqwest::Url,
    http: reqwest::Client,
}

impl GatewayClient {
    /// Creates a client. `timeout` applies to each request.
    ///
    /// # Errors
    /// If the URL or the CA certificates are invalid.
    pub fn new(url: &str, ca: Option<&PemSource>, timeout: Duration) -> Result<Self, GatewayError> {
        let url_error = |problem: String| GatewayError::Url {
            url: url.to_owned(),
            problem,
        };
        let parsed_url = http_client::parse_url(url).map_err(url_error)?;
        let mut builder = http_client::client_builder(timeout);
        if let Some(ca) = ca {
            builder = builder.tls_certs_merge(load_ca_certificates(ca)?);
        }
        let http = builder
            .build()
            .map_err(|error| url_error(error.to_string()))?;
        Ok(Self {
            url: parsed_url,
            http,
        })
    }

    /// Returns the gateway's URL.
    #[must_use]
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Requests the identity document of one client.
    pub async fn lookup(&self, client: &ClientId) -> TenantLookupOutcome {
        let request_id = Uuid::new_v4().simple().to_string();
        let request = self
            .http
            .get(self.url.clone())
            .header("x-rh-certauth-cn", format!("/CN={client}"))
            .header("x-rh-insights-request-id", request_id);
        match http_client::send(request, MAX_RESPONSE_BYTES).await {
            Ok((status, body)) => classify_response(status, &body),
            Err(error) => {
                tracing::debug!(client_id = %client, %error, "gateway request failed");
                TenantLookupOutcome::Unavailable
            }
        }
    }
}

fn load_ca_certificates(ca: &PemSource) -> Result<Vec<reqwest::Certificate>, GatewayError> {
    let path = match ca {
        PemSource::File(path) => path.clone(),
        PemSource::Inline(_) => PathBuf::from("(inline PEM)"),
    };
    let ca_error = |problem: String| GatewayError::Ca {
        path: path.clone(),
        problem,
    };
    let pem_text = ca.read().map_err(|error| ca_error(error.to_string()))?;
    let certificates = reqwest::Certificate::from_pem_bundle(pem_text.as_bytes())
        .map_err(|error| ca_error(error.to_string()))?;
    if certificates.is_empty() {
        return Err(ca_error("it contains no certificate".to_owned()));
    }
    Ok(certificates)
}

#[derive(Deserialize)]
struct IdentityResponse {
    #[serde(rename = "x-rh-identity")]
    identity: String,
}

/// Classifies a response. Returns `NotFound` only if the body has the gateway's own format. An
/// error page of a proxy or of another server is `Unavailable`, because an error page must not
/// clear tenants.
fn classify_response(status: u16, body: &[u8]) -> TenantLookupOutcome {
    match status {
        200 => {
            let response: Result<IdentityResponse, _> = serde_json::from_slice(body);
            let identity = response
                .ok()
                .map(|response| Identity::from_base64(&response.identity));
            match identity {
                Some(Ok(identity)) => TenantLookupOutcome::from_identity(identity),
                Some(Err(_)) | None => TenantLookupOutcome::Unavailable,
            }
        }
        408 | 425 | 429 => TenantLookupOutcome::Unavailable,
        400..=499 if has_error_list(body) => TenantLookupOutcome::NotFound,
        _ => TenantLookupOutcome::Unavailable,
    }
}

/// Returns whether the body has the gateway's error format: `{"errors": [{…}, …]}`.
fn has_error_list(body: &[u8]) -> bool {
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

    fn identity_body(identity: &Value) -> Vec<u8> {
        let base64 = BASE64_STANDARD.encode(json!({ "identity": identity }).to_string());
        json!({"x-rh-identity": base64}).to_string().into_bytes()
    }

    #[test]
    fn org_id_at_top_level_or_in_internal_is_found() {
        for identity in [
            json!({"type": "System", "org_id": "1", "account_number": "42"}),
            json!({"type": "System", "account_number": "42", "internal": {"org_id": "1"}}),
        ] {
            match classify_response(200, &identity_body(&identity)) {
                TenantLookupOutcome::Found(found) => {
                    assert_eq!(found.tenant.org_id.as_str(), "1");
                    assert_eq!(found.tenant.account, "42");
                }
                other => panic!("{identity}: {other:?}"),
            }
        }
    }

    #[test]
    fn only_a_4xx_error_list_or_an_identity_without_organization_is_not_found() {
        let errors = json!({"errors": [{"meta": {"response_by": "gateway"}, "status": 401,
            "detail": "no such certificate"}]});
        let errors = errors.to_string().into_bytes();
        for status in [400, 401, 403, 404, 410, 422] {
            assert_eq!(
                classify_response(status, &errors),
                TenantLookupOutcome::NotFound,
                "{status}"
            );
        }
        for identity in [
            json!({"type": "System"}),
            json!({"type": "System", "org_id": ""}),
        ] {
            assert_eq!(
                classify_response(200, &identity_body(&identity)),
                TenantLookupOutcome::NotFound,
                "{identity}"
            );
        }
        for status in [408, 425, 429, 500, 502, 503, 504, 301, 204] {
            assert_eq!(
                classify_response(status, &errors),
                TenantLookupOutcome::Unavailable,
                "{status}"
            );
        }
    }

    #[test]
    fn body_in_another_format_is_unavailable() {
        let html_page = b"<html><body>Sign in to the network</body></html>".to_vec();
        for body in [
            html_page,
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
                    classify_response(status, &body),
                    TenantLookupOutcome::Unavailable,
                    "{status} {text}"
                );
            }
        }
    }

    #[test]
    fn invalid_url_error_names_the_setting() {
        for invalid_url in ["gateway", "ftp://gateway", "http://"] {
            let error = GatewayClient::new(invalid_url, None, Duration::from_secs(1))
                .err()
                .unwrap();
            assert!(error.to_string().contains("tenant.gateway_url"), "{error}");
        }
    }
}
