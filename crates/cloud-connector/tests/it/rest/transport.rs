//! Tests of behavior that all endpoints share: rate limits, access and audit log, request ids,
//! CORS, body timeout, TLS, and shutdown.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use test_support::certs::Certs;
use test_support::connector::DEFAULT_ORG_ID;
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{Connector, eventually};

const CLIENT_STATUS_PATH: &str = "/v2/connections/x/status";

#[tokio::test]
async fn rate_limits_apply_per_key_and_per_organization() {
    let connector = Connector::builder()
        .set("api.rate_limit.per_org", "0.01")
        .set("api.rate_limit.per_org_burst", 2)
        .set("api.rate_limit.per_key", "0.01")
        .set("api.rate_limit.per_key_burst", 5)
        .start()
        .await;
    let send_request = async |org: &str| {
        let request = connector.request_for(org, "GET", CLIENT_STATUS_PATH);
        let response = request.send().await.unwrap();
        let retry_after = response.headers().get("retry-after").cloned();
        let status = response.status().as_u16();
        let body: Value = response.json().await.unwrap();
        (
            status,
            retry_after.map(|retry_after| retry_after.to_str().unwrap().to_owned()),
            body,
        )
    };
    for _ in 0..2 {
        assert_eq!(send_request("1").await.0, 200);
    }
    let (status, retry_after, body) = send_request("1").await;
    assert_eq!(status, 429);
    let retry_after: u64 = retry_after.unwrap().parse().unwrap();
    assert!((1..=100).contains(&retry_after), "{retry_after}");
    assert_eq!(
        (&body["title"], &body["status"]),
        (&json!("Too many requests"), &json!(429))
    );
    // The limit of organization 1 does not affect other organizations. The rejected request did not
    // count against the limit of the key, so the key may send three more requests.
    for org in ["2", "2", "3"] {
        assert_eq!(send_request(org).await.0, 200, "{org}");
    }
    assert_eq!(send_request("4").await.0, 429);
    // An unauthenticated request returns 401 although the limit of the key is exceeded.
    let unauthenticated_request = connector
        .unauthenticated_request("GET", &format!("/api/cloud-connector{CLIENT_STATUS_PATH}"));
    assert_eq!(unauthenticated_request.send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn access_log_contains_the_caller_but_no_secrets() {
    let connector = Connector::start().await;
    let request = connector
        .request("GET", &format!("{CLIENT_STATUS_PATH}?token=in-the-query"))
        .header("x-rh-insights-request-id", "request-7")
        .header("x-rh-identity", "in-the-identity");
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["x-rh-insights-request-id"], "request-7");
    let request_with_wrong_secret = connector
        .request("GET", CLIENT_STATUS_PATH)
        .header("x-rh-cloud-connector-psk", "a-wrong-secret");
    request_with_wrong_secret.send().await.unwrap();
    connector.readiness().await;
    let line = eventually("the access log line", || async {
        let lines = connector.log_lines.lock();
        lines
            .iter()
            .find(|line| line.contains("request-7"))
            .cloned()
    })
    .await;
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["target"], "cloud_connector::access");
    assert_eq!(line["path"], "/api/cloud-connector/v2/connections/x/status");
    assert_eq!(
        (&line["method"], &line["status"]),
        (&json!("GET"), &json!(200))
    );
    assert_eq!(
        (&line["caller"], &line["tenant"], &line["request_id"]),
        (&json!("local"), &json!(DEFAULT_ORG_ID), &json!("request-7"))
    );
    assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(line["duration_ms"].as_f64().is_some());
    let log = connector.log_lines.lock().join("\n");
    for secret in [
        "in-the-query",
        "in-the-identity",
        "a-wrong-secret",
        &connector.api_key,
    ] {
        assert!(!log.contains(secret), "{secret}");
    }
    assert!(!log.contains("/readiness"));
}

#[tokio::test]
async fn invalid_request_id_is_replaced_with_a_generated_one() {
    let connector = Connector::start().await;
    for invalid_id in [String::new(), "x".repeat(129), "\u{e9}".to_owned()] {
        let request = connector
            .request("GET", CLIENT_STATUS_PATH)
            .header("x-rh-insights-request-id", invalid_id.as_bytes());
        let response = request.send().await.unwrap();
        let request_id = response.headers()["x-rh-insights-request-id"]
            .to_str()
            .unwrap();
        assert_eq!(request_id.len(), 32, "{invalid_id}");
    }
}

#[tokio::test]
async fn responses_have_no_cors_headers() {
    let connector = Connector::start().await;
    let preflight = connector
        .request("OPTIONS", CLIENT_STATUS_PATH)
        .header("origin", "https://other-origin.example")
        .header("access-control-request-method", "GET");
    let response = preflight.send().await.unwrap();
    assert_eq!(response.status(), 405);
    let request = connector
        .request("GET", CLIENT_STATUS_PATH)
        .header("origin", "https://other-origin.example");
    for response in [response, request.send().await.unwrap()] {
        let headers = response.headers().keys();
        let cors_headers = headers.filter(|name| name.as_str().starts_with("access-control"));
        assert_eq!(cors_headers.count(), 0);
    }
}

#[tokio::test]
async fn request_with_incomplete_body_returns_408() {
    let connector = Connector::start().await;
    let address = connector.http_url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /api/cloud-connector/v2/connections/x/message HTTP/1.1\r\nhost: x\r\n\
         x-rh-cloud-connector-client-id: local\r\nx-rh-cloud-connector-psk: {}\r\n\
         x-rh-cloud-connector-org-id: 1\r\ncontent-length: 100\r\n\r\n{{\"directive\":",
        connector.api_key
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    let started_at = Instant::now();
    let read_response = stream.read_to_end(&mut response);
    tokio::time::timeout(Duration::from_mins(1), read_response)
        .await
        .expect("the server still waits for the body")
        .unwrap();
    let response = String::from_utf8_lossy(&response);
    assert!(response.starts_with("HTTP/1.1 408 "), "{response}");
    assert!(
        response.contains(r#""title":"Request timeout","status":408"#),
        "{response}"
    );
    assert!(started_at.elapsed() >= Duration::from_secs(9));
}

#[tokio::test]
async fn https_certificate_is_reloaded_on_sighup() {
    let builder = Connector::builder();
    let certs = Certs::init(builder.temp_dir()).await;
    let cert_file_path = |file_name: &str| certs.file_path(file_name).display().to_string();
    let connector = builder
        .set("http.tls.certificate", cert_file_path("server.pem"))
        .set("http.tls.key", cert_file_path("server.key"))
        .start()
        .await;
    assert!(
        connector.http_url.starts_with("https://"),
        "{}",
        connector.http_url
    );
    let url = format!(
        "{}/liveness",
        connector.http_url.replace("127.0.0.1", "localhost")
    );
    let client_that_trusts = |ca: &std::path::Path| {
        let ca = reqwest::Certificate::from_pem(&std::fs::read(ca).unwrap()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only([ca]);
        client.build().unwrap()
    };
    let old_client = client_that_trusts(&certs.file_path("ca.pem"));
    assert_eq!(old_client.get(&url).send().await.unwrap().status(), 200);
    let http_url = url.replace("https", "http");
    assert!(old_client.get(&http_url).send().await.is_err());
    // The new certificate does not match the old key, so the connector continues to use the old
    // certificate.
    let folder = tempfile::tempdir().unwrap();
    let new_certs = Certs::init(folder.path()).await;
    let new_client = client_that_trusts(&new_certs.file_path("ca.pem"));
    std::fs::copy(
        new_certs.file_path("server.pem"),
        certs.file_path("server.pem"),
    )
    .unwrap();
    connector.send_signal("HUP");
    eventually("the log message about the failed reload", || async {
        let lines = connector.log_lines.lock();
        let is_logged = lines
            .iter()
            .any(|line| line.contains("failed to reload TLS certificates"));
        is_logged.then_some(())
    })
    .await;
    assert!(new_client.get(&url).send().await.is_err());
    std::fs::copy(
        new_certs.file_path("server.key"),
        certs.file_path("server.key"),
    )
    .unwrap();
    connector.send_signal("HUP");
    eventually("the new certificate", || async {
        new_client.get(&url).send().await.ok().map(drop)
    })
    .await;
    // Create `old_client` again, because the existing client may reuse an open connection.
    let old_client = client_that_trusts(&certs.file_path("ca.pem"));
    assert!(old_client.get(&url).send().await.is_err());
}

#[tokio::test]
async fn in_flight_requests_complete_during_shutdown() {
    let mut connector = Connector::start().await;
    let client_id = "pinged";
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(client_id)).await;
    client
        .subscribe(&format!("redhat/insights/{client_id}/control/in"))
        .await;
    client
        .must_publish(&control_out_topic(client_id), &online_message())
        .await;
    let ping = connector.request("POST", &format!("/v2/connections/{client_id}/ping"));
    let ping = tokio::spawn(ping.send());
    let (_, message) = client.next_message().await;
    connector.send_signal("TERM");
    eventually("new connections to be refused", || async {
        let result = connector.request("GET", CLIENT_STATUS_PATH).send().await;
        result.err().map(drop)
    })
    .await;
    let pong = json!({"type": "event", "message_id": "p", "response_to": message["message_id"],
        "version": 1, "sent": "2026-01-02T15:04:05Z", "content": "pong"});
    client
        .must_publish(&control_out_topic(client_id), &pong)
        .await;
    let response = ping.await.unwrap().unwrap();
    assert_eq!(response.status(), 200);
    assert!(connector.wait_for_exit().await.success());
}

#[tokio::test]
async fn aborted_request_is_written_to_the_audit_log() {
    let connector = Connector::start().await;
    let client_id = "aborted-ping";
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(client_id)).await;
    client
        .subscribe(&format!("redhat/insights/{client_id}/control/in"))
        .await;
    client
        .must_publish(&control_out_topic(client_id), &online_message())
        .await;
    let ping = connector
        .request(
            "POST",
            &format!("/v2/connections/{client_id}/ping?timeout=25"),
        )
        .header("x-rh-insights-request-id", "request-8");
    let ping = tokio::spawn(ping.send());
    client.next_message().await;
    ping.abort();
    let line = eventually("the audit log line", || async {
        let lines = connector.log_lines.lock();
        let audit_line = lines.iter().find(|line| line.contains("request aborted"));
        audit_line.cloned()
    })
    .await;
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["target"], "cloud_connector::audit");
    assert_eq!(
        (&line["action"], &line["client_id"], &line["request_id"]),
        (&json!("ping"), &json!(client_id), &json!("request-8"))
    );
}
