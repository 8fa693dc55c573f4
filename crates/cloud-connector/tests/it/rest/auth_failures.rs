//! Attacks on authentication: guessed keys, forged addresses, and duplicated headers.

use std::time::Instant;

use futures::StreamExt as _;
use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{
    ApiFixture, CALLER_SECRET, OK, OPERATIONS_SECRET, OWN_ORG, plain_text_response, with_api_key,
};
use test_support::{Connector, Deployment, DeploymentMode, each_deployment};

each_deployment!(
    right_key_is_accepted_after_many_wrong_keys,
    right_key_without_scope_is_never_throttled,
    many_caller_names_do_not_affect_right_keys,
    forged_forwarded_address_has_no_effect_without_a_trusted_proxy,
    duplicated_credential_headers_are_rejected,
    duplicated_identity_headers_are_rejected_if_the_header_is_trusted,
    failed_authentications_are_logged_and_counted_without_secrets,
    failed_authentications_are_logged_at_most_once_per_second_and_reason,
);

const PATH: &str = "/v2/connections";
const FAILURES: &str = "cloud_connector_http_auth_failures_total";
const WRONG_SECRET: &str = "wrong-secret-wrong-secret";

/// Settings with which the third failure is throttled, and the throttling does not end during the
/// test.
const LOW_LIMIT: [(&str, &str); 2] = [
    ("api.auth_failure_limit.burst", "2"),
    ("api.auth_failure_limit.per_second", "0.001"),
];

fn request_with_key(deployment: &Deployment, key_name: &str, secret: &str) -> RequestBuilder {
    let request = deployment.unauthenticated_request("GET", PATH);
    with_api_key(request, key_name, secret).header("x-rh-cloud-connector-org-id", OWN_ORG)
}

async fn status(request: RequestBuilder) -> u16 {
    request.send().await.unwrap().status().as_u16()
}

async fn right_key_is_accepted_after_many_wrong_keys(mode: DeploymentMode) {
    const WRONG_KEYS: usize = 1000;
    // The throttling does not end during the test.
    let slow_refill = ("api.auth_failure_limit.per_second", "0.001");
    let fixture = ApiFixture::start(mode, &[slow_refill]).await;
    let request = |secret| request_with_key(&fixture.deployment, "caller", secret);
    let responses: Vec<Response> = futures::stream::iter(0..WRONG_KEYS)
        .map(|_| async { request(WRONG_SECRET).send().await.unwrap() })
        .buffer_unordered(20)
        .collect()
        .await;
    let count = |status: u16| {
        let has_status = |response: &&Response| response.status() == status;
        responses.iter().filter(has_status).count()
    };
    assert_eq!((count(401), count(429)), (100, WRONG_KEYS - 100));
    for response in responses.into_iter().filter(|it| it.status() == 429) {
        let retry_after = response.headers()["retry-after"].to_str().unwrap();
        assert!(retry_after.parse::<u16>().unwrap() >= 1, "{retry_after}");
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["title"], "Too many requests", "{body}");
    }
    assert_eq!(status(request(CALLER_SECRET)).await, OK);
    assert_eq!(
        status(fixture.management_request("GET", "/connection")).await,
        OK
    );
    // The right key has not ended the throttling.
    assert_eq!(status(request(WRONG_SECRET)).await, 429);
    let failures = fixture
        .deployment
        .read_metric(FAILURES, "wrong_secret")
        .await;
    assert!(failures > 1000.5, "{failures}");
}

async fn right_key_without_scope_is_never_throttled(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &LOW_LIMIT).await;
    for _ in 0..5 {
        let request = request_with_key(&fixture.deployment, "operations", OPERATIONS_SECRET);
        assert_eq!(status(request).await, 401);
    }
}

async fn many_caller_names_do_not_affect_right_keys(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &LOW_LIMIT).await;
    let long_name = "n".repeat(10_000);
    let throttled = futures::stream::iter(0..500)
        .map(|n| {
            let name = format!("{long_name}{n}");
            status(request_with_key(&fixture.deployment, &name, WRONG_SECRET))
        })
        .buffer_unordered(20)
        .filter(|status| std::future::ready(*status == 429))
        .count()
        .await;
    assert_eq!(
        throttled, 498,
        "the address is throttled after two failures"
    );
    let request = request_with_key(&fixture.deployment, "caller", CALLER_SECRET);
    assert_eq!(status(request).await, OK);
}

async fn forged_forwarded_address_has_no_effect_without_a_trusted_proxy(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &LOW_LIMIT).await;
    let mut statuses = Vec::new();
    for n in 0..4 {
        // Another name and another forged address for each request.
        let request = request_with_key(&fixture.deployment, &format!("name-{n}"), WRONG_SECRET);
        let request = request.header("x-forwarded-for", format!("203.0.113.{n}"));
        statuses.push(status(request).await);
    }
    assert_eq!(statuses, [401, 401, 429, 429]);
}

#[tokio::test]
async fn behind_a_trusted_proxy_failures_are_counted_by_the_forwarded_address() {
    let mut settings = LOW_LIMIT.to_vec();
    settings.push(("http.trusted_proxies", r#"["127.0.0.0/8", "10.0.0.1"]"#));
    let deployment = Deployment::embedded(&settings).await;
    let mut request_number = 0;
    let mut status_from = async |forwarded_for: &str| {
        request_number += 1;
        let name = format!("name-{request_number}");
        let request = request_with_key(&deployment, &name, WRONG_SECRET);
        status(request.header("x-forwarded-for", forwarded_for)).await
    };
    assert_eq!(status_from("203.0.113.1").await, 401);
    assert_eq!(status_from("203.0.113.1, 10.0.0.1").await, 401);
    assert_eq!(status_from("203.0.113.1").await, 429);
    // The caller cannot choose its address: the proxy appends the right one.
    assert_eq!(status_from("198.51.100.9, 203.0.113.1").await, 429);
    assert_eq!(status_from("203.0.113.2").await, 401, "another caller");
    let line = deployment
        .wait_for_log_line("the access log line", |line| {
            line["target"] == "cloud_connector::access" && line["forwarded_for"] == "203.0.113.2"
        })
        .await;
    assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
}

/// Headers with which the request of [`request_with_headers`] succeeds.
fn valid_headers() -> Vec<(&'static str, String)> {
    vec![
        ("x-rh-cloud-connector-client-id", "caller".to_owned()),
        ("x-rh-cloud-connector-psk", CALLER_SECRET.to_owned()),
        ("x-rh-cloud-connector-org-id", OWN_ORG.to_owned()),
        ("x-rh-cloud-connector-account", "010101".to_owned()),
    ]
}

fn request_with_headers(
    deployment: &Deployment,
    headers: &[(&'static str, String)],
) -> RequestBuilder {
    let request = deployment.unauthenticated_request("GET", PATH);
    let add_header = |request: RequestBuilder, (name, value): &(_, String)| {
        // `header` appends, so a name can occur more than once.
        request.header(*name, value)
    };
    headers.iter().fold(request, add_header)
}

async fn duplicated_credential_headers_are_rejected(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let headers = valid_headers();
    let request = request_with_headers(&fixture.deployment, &headers);
    assert_eq!(status(request).await, OK);
    for (duplicated, value) in valid_headers() {
        for duplicate in [value.clone(), "other-value-other-value".to_owned()] {
            for is_first in [true, false] {
                let mut headers = headers.clone();
                let index = if is_first { 0 } else { headers.len() };
                headers.insert(index, (duplicated, duplicate.clone()));
                let request = request_with_headers(&fixture.deployment, &headers);
                assert_eq!(
                    plain_text_response(request).await,
                    (401, "Authentication failed".to_owned()),
                    "{duplicated}: {duplicate}"
                );
            }
        }
    }
    // The identity header is not trusted, so it is ignored even if it is duplicated.
    let mut headers = headers;
    headers.extend(["a", "b"].map(|value| ("x-rh-identity", value.to_owned())));
    let request = request_with_headers(&fixture.deployment, &headers);
    assert_eq!(status(request).await, OK);
}

async fn duplicated_identity_headers_are_rejected_if_the_header_is_trusted(mode: DeploymentMode) {
    use base64::Engine as _;
    let fixture = ApiFixture::start(mode, &[("api.trust_identity_header", "true")]).await;
    let identity = json!({"identity": {"type": "User", "org_id": OWN_ORG}});
    let identity = base64::engine::general_purpose::STANDARD.encode(identity.to_string());
    let mut headers = vec![("x-rh-identity", identity)];
    let request = request_with_headers(&fixture.deployment, &headers);
    assert_eq!(status(request).await, OK);
    for other in [headers[0].1.clone(), String::new(), "x".to_owned()] {
        let mut headers = headers.clone();
        headers.push(("x-rh-identity", other.clone()));
        let request = request_with_headers(&fixture.deployment, &headers);
        let (status, text) = plain_text_response(request).await;
        assert_eq!(status, 400, "{other}: {text}");
        assert!(text.starts_with("Bad Request: "), "{text}");
    }
    // The key headers are not used, but two of them are still suspicious.
    headers.extend(valid_headers());
    headers.extend(valid_headers());
    let request = request_with_headers(&fixture.deployment, &headers);
    assert_eq!(plain_text_response(request).await.0, 401);
}

async fn failed_authentications_are_logged_and_counted_without_secrets(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let deployment = &fixture.deployment;
    let secret = "guessed-secret-guessed-secret";
    let name = format!("{}\tname", "x".repeat(100));
    assert_eq!(
        status(request_with_key(deployment, &name, secret)).await,
        401
    );
    assert_eq!(
        status(request_with_key(deployment, "caller", secret)).await,
        401
    );
    let without_secret = deployment
        .unauthenticated_request("GET", PATH)
        .header("x-rh-cloud-connector-client-id", "caller");
    assert_eq!(status(without_secret).await, 401);
    let line_with_reason = async |reason: &str| {
        let is_line =
            |line: &Value| line["message"] == "authentication failed" && line["reason"] == reason;
        deployment.wait_for_log_line(reason, is_line).await
    };
    let line = line_with_reason("unknown_caller").await;
    assert_eq!(line["level"], "INFO");
    assert_eq!(line["client_address"], "127.0.0.1");
    let logged_name = format!("{}…(105 bytes)", "x".repeat(64));
    assert_eq!(line["caller"], logged_name.as_str());
    let line = line_with_reason("wrong_secret").await;
    assert_eq!(line["caller"], "caller");
    line_with_reason("missing_header").await;
    let log = deployment.log_lines().join("\n");
    for secret in [secret, CALLER_SECRET, OPERATIONS_SECRET] {
        assert!(!log.contains(secret), "the log contains {secret}");
    }
    for reason in ["unknown_caller", "wrong_secret", "missing_header"] {
        let label = format!("\"{reason}\"");
        let failures = deployment.read_metric(FAILURES, &label).await;
        assert!((0.5..1.5).contains(&failures), "{reason}: {failures}");
    }
}

async fn failed_authentications_are_logged_at_most_once_per_second_and_reason(
    mode: DeploymentMode,
) {
    const FAILED_REQUESTS: usize = 300;
    let deployment = mode.start(&[("api.keys.caller", CALLER_SECRET)]).await;
    let started_at = Instant::now();
    for _ in 0..FAILED_REQUESTS {
        status(request_with_key(&deployment, "caller", WRONG_SECRET)).await;
    }
    // A line starts in each second of wall-clock time.
    let seconds = usize::try_from(started_at.elapsed().as_secs()).unwrap() + 2;
    // Another reason has a line of its own. It also shows that all lines before it are written.
    status(request_with_key(&deployment, "unknown", WRONG_SECRET)).await;
    let is_failure = |line: &Value| line["message"] == "authentication failed";
    deployment
        .wait_for_log_line("the line of the other reason", |line| {
            is_failure(line) && line["reason"] == "unknown_caller"
        })
        .await;
    let lines = deployment.log_lines();
    let lines = lines
        .iter()
        .filter_map(|line| serde_json::from_str(line).ok());
    let wrong_secret = |line: &Value| is_failure(line) && line["reason"] == "wrong_secret";
    let count = lines.filter(wrong_secret).count();
    assert!(
        (1..=seconds).contains(&count),
        "{count} lines in {seconds} seconds"
    );
}

/// A name that contains line breaks cannot be sent as a header. An attacker can try to send raw
/// bytes.
#[tokio::test]
async fn raw_bytes_in_the_caller_name_are_escaped_in_the_log() {
    let connector = Connector::start().await;
    let address = connector.http_url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(
            b"GET /api/cloud-connector/v2/connections HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
              x-rh-cloud-connector-client-id: a\xe2\x80\xaeb\xff\r\n\
              x-rh-cloud-connector-psk: x\r\n\r\n",
        )
        .await
        .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 401 "), "{response}");
    let deployment = Deployment::Embedded(Box::new(connector));
    let line = deployment
        .wait_for_log_line("the failed authentication", |line| {
            line["message"] == "authentication failed"
        })
        .await;
    assert_eq!(line["caller"], "a\\u{202e}b\u{fffd}");
    assert_eq!(
        line["reason"], "missing_header",
        "the name is not printable"
    );
}
