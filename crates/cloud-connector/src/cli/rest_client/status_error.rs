//! Explains error responses of the connector.

use reqwest::StatusCode;
use serde_json::Value;

use super::RequestScope;
use super::discovery::Target;
use super::error::RestError;
use crate::cli::escape_for_terminal;

/// Maximum length of a text of the connector in an error message.
const MAX_DETAIL_CHARS: usize = 300;

/// Part of the response of a connector that does not have the endpoint.
const UNKNOWN_PATH: &str = "Unknown path";

/// Returns the error for a response whose status is not 2xx. `path` contains the segments after the
/// base path, and `retry_after` the seconds in the header `Retry-After`.
pub(super) fn status_error(
    target: &Target,
    scope: RequestScope<'_>,
    path: &[&str],
    status: StatusCode,
    retry_after: Option<u32>,
    body: &[u8],
) -> RestError {
    let detail = error_detail(body);
    let url = &target.url;
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => RestError::Rejected(format!(
            "{url} rejected the API key `{}` from {}; check the name and the content of the \
             key, and that the key has the scope `{}`{}",
            target.key_name,
            target.key_origin,
            scope.name(),
            match scope {
                RequestScope::Tenant { org_id } =>
                    format!(" and may access the organization {org_id}"),
                RequestScope::Management => String::new(),
            }
        )),
        // The detail contains the fix.
        StatusCode::NOT_FOUND if is_from_endpoint(body) => {
            RestError::NotFound(format!("{url} responded with status 404{detail}"))
        }
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => RestError::Failed(format!(
            "{url} (from {}) has no {}{detail}; check that the URL contains the base path of \
             the API, and that the connector is not older than this command",
            target.url_origin,
            path.join("/"),
        )),
        StatusCode::TOO_MANY_REQUESTS => RestError::Temporary(format!(
            "{url} rejected the request, because there were too many requests{detail}; try \
             again in {} s",
            retry_after.unwrap_or(1)
        )),
        status if status.is_server_error() => RestError::Temporary(format!(
            "{url} responded with status {}{detail}; try again, and see {}/readiness and the \
             log of the connector",
            status.as_u16(),
            origin_of(url)
        )),
        status if status.is_redirection() => RestError::Failed(format!(
            "{url} (from {}) redirects to another address; give that address with --url",
            target.url_origin
        )),
        status => RestError::Failed(format!(
            "{url} responded with status {}{detail}; check the options of the command",
            status.as_u16()
        )),
    }
}

/// Returns whether the body of a 404 response comes from an endpoint of a connector, and not from a
/// proxy or from a connector that does not have the endpoint.
fn is_from_endpoint(body: &[u8]) -> bool {
    let json = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let detail = json["detail"].as_str();
    detail.is_some_and(|detail| !detail.contains(UNKNOWN_PATH))
}

/// Returns `: ` and the cause in the body of an error response, with the id of the message that the
/// request tried to send. Returns an empty text if the body contains no cause.
fn error_detail(body: &[u8]) -> String {
    let text = match serde_json::from_slice::<Value>(body) {
        Ok(json) => {
            let detail = json["detail"].as_str().unwrap_or_default().to_owned();
            match json["id"].as_str() {
                Some(id) if !detail.is_empty() => format!("{detail} (message {id})"),
                _ => detail,
            }
        }
        // A proxy can respond with an HTML page, which explains nothing in one line.
        Err(_) if body.starts_with(b"<") => String::new(),
        Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
    };
    if text.is_empty() {
        return text;
    }
    let text: String = text.chars().take(MAX_DETAIL_CHARS).collect();
    format!(": {}", escape_for_terminal(&text))
}

/// Returns the scheme, host and port of a URL.
fn origin_of(url: &str) -> String {
    let parsed = network::http_client::parse_url(url);
    parsed.map_or_else(|_| url.to_owned(), |url| url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    use super::*;
    use service::settings::SecretString;

    fn error_of(status: u16, body: &str) -> RestError {
        let target = Target {
            url: "http://a/base".to_owned(),
            url_origin: "--url".to_owned(),
            key_name: "support".to_owned(),
            key: SecretString::from("secret-text"),
            key_origin: "/keys/support".to_owned(),
            org_id: None,
            ca_file: None,
            is_local: false,
        };
        let status = StatusCode::from_u16(status).unwrap();
        let path = ["v2", "events"];
        let scope = RequestScope::Tenant { org_id: "7" };
        status_error(&target, scope, &path, status, Some(9), body.as_bytes())
    }

    #[test]
    fn the_error_for_a_status_names_the_cause_and_the_fix() {
        let unknown_path = r#"{"detail":"Unknown path; openapi.json lists all endpoints"}"#;
        let disabled = r#"{"detail":"This service records no events"}"#;
        for (status, body, is_temporary, expected) in [
            (
                401,
                "Authentication failed",
                false,
                "`support` from /keys/support; check",
            ),
            (
                403,
                "",
                false,
                "scope `tenant` and may access the organization 7",
            ),
            (404, unknown_path, false, "base path"),
            (404, "404 page not found", false, "base path"),
            (404, disabled, false, "404: This service records no events"),
            (429, "", true, "try again in 9 s"),
            (
                503,
                r#"{"detail":"no database"}"#,
                true,
                "no database; try again, and see http://a/readiness",
            ),
            (301, "", false, "--url"),
            (
                400,
                r#"{"detail":"unknown event type"}"#,
                false,
                "unknown event type",
            ),
        ] {
            let error = error_of(status, body);
            assert_eq!(error.is_temporary(), is_temporary, "{error}");
            let text = error.to_string();
            assert!(text.contains(expected), "{text}");
            assert!(text.contains("http://a/base"), "{text}");
            assert!(!text.contains("secret-text"), "{text}");
        }
    }

    #[test]
    fn error_detail_is_the_cause_in_the_body_without_control_characters() {
        let body = br#"{"title":"Bad","status":400,"detail":"type: unknown \u001b[2J"}"#;
        assert_eq!(error_detail(body), ": type: unknown \\u{1b}[2J");
        let body = br#"{"detail":"No response","id":"7"}"#;
        assert_eq!(error_detail(body), ": No response (message 7)");
        assert_eq!(error_detail(b"Bad Gateway\n"), ": Bad Gateway");
        assert_eq!(error_detail(b"<html>502</html>"), "");
        assert_eq!(error_detail(b"{}"), "");
        assert_eq!(error_detail(b""), "");
    }

    #[test]
    fn origin_of_a_url_has_no_path() {
        let origin = origin_of("https://a.example:8443/api/cloud-connector");
        assert_eq!(origin, "https://a.example:8443");
    }
}
