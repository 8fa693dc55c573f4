//! Tests of the REST API of an embedded connector: authentication, error envelope, pages, probes
//! and audit log.

use serde_json::{Value, json};

use test_support::mqtt::{Connect, control_out_topic, data_in_topic, online_message};
use test_support::{Connector, RawClient, eventually, unique_id};

#[tokio::test]
async fn missing_or_wrong_credentials_return_401_without_details() {
    let connector = Connector::start().await;
    let key = connector.api_key.clone();
    let (id, psk, org) = (
        "x-rh-cloud-connector-client-id",
        "x-rh-cloud-connector-psk",
        "x-rh-cloud-connector-org-id",
    );
    let header_sets: &[&[(&str, &str)]] = &[
        &[],
        &[(id, "local")],
        &[(id, "local"), (psk, &key)],
        &[(id, "local"), (psk, &key), (org, "")],
        &[(id, "local"), (psk, "wrong"), (org, "10000")],
        &[(id, "other"), (psk, &key), (org, "10000")],
        &[(psk, &key), (org, "10000")],
    ];
    for headers in header_sets {
        for (method, path) in [
            ("GET", "/api/cloud-connector/v2/connections"),
            ("GET", "/api/cloud-connector/v2/connections/x/status"),
            ("POST", "/api/cloud-connector/v2/connections/x/message"),
        ] {
            let request = headers.iter().fold(
                connector.unauthenticated_request(method, path),
                |r, (k, v)| r.header(*k, *v),
            );
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), 401, "{method} {path} {headers:?}");
            let content_type = response.headers()["content-type"]
                .to_str()
                .unwrap()
                .to_owned();
            assert!(content_type.starts_with("text/plain"), "{content_type}");
            assert_eq!(response.text().await.unwrap(), "Authentication failed");
        }
    }
}

#[tokio::test]
async fn api_key_with_two_secrets_accepts_both() {
    let connector = Connector::builder()
        .set(
            "api.keys.sources",
            r#"{ secrets = ["new-secret-new-secret", "old-secret-old-secret"] }"#,
        )
        .start()
        .await;
    for secret in ["new-secret-new-secret", "old-secret-old-secret"] {
        let response = connector
            .unauthenticated_request("GET", "/api/cloud-connector/v2/connections")
            .header("x-rh-cloud-connector-client-id", "sources")
            .header("x-rh-cloud-connector-psk", secret)
            .header("x-rh-cloud-connector-org-id", "1")
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
    }
}

#[tokio::test]
async fn invalid_requests_return_the_error_envelope() {
    let connector = Connector::start().await;
    let too_large_body = format!("{{\"directive\":\"{}\"}}", "x".repeat(1_100_000));
    let message_path = "/v2/connections/x/message";
    for (method, path, body, status, title) in [
        ("GET", "/v2/nothing", "", 404, "Not found"),
        ("PUT", "/v2/connections", "", 405, "Method not allowed"),
        ("GET", "/v2/connections?limit=x", "", 400, "Invalid request"),
        (
            "GET",
            "/v2/connections?offset=-1",
            "",
            400,
            "Invalid request",
        ),
        (
            "POST",
            message_path,
            "{",
            400,
            "Unable to process json input",
        ),
        (
            "POST",
            message_path,
            "",
            400,
            "Unable to process json input",
        ),
        (
            "POST",
            message_path,
            "null",
            400,
            "Unable to process json input",
        ),
        (
            "POST",
            message_path,
            "{}",
            400,
            "Unable to process json input",
        ),
        (
            "POST",
            message_path,
            "{\"directive\":\"a\"}{}",
            400,
            "Unable to process json input",
        ),
        (
            "POST",
            message_path,
            "{\"directive\":\"a\",\"metadata\":{\"a\":1}}",
            400,
            "Unable to process json input",
        ),
        (
            "POST",
            message_path,
            "{\"directive\":\"  \"}",
            400,
            "Directive field is empty",
        ),
        (
            "POST",
            message_path,
            "{\"directive\":\"a\"}",
            404,
            "No connection to the rhc client",
        ),
        (
            "POST",
            message_path,
            &too_large_body,
            413,
            "Request body too large",
        ),
    ] {
        let request = connector.request(method, path).body(body.to_owned());
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), status, "{method} {path} {body:.60}");
        let content_type = response.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        assert_eq!(content_type, "application/json; charset=UTF-8");
        assert!(response.headers().contains_key("x-rh-insights-request-id"));
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["status"], status);
        assert_eq!(body["title"], title);
        assert!(
            body["detail"]
                .as_str()
                .is_some_and(|detail| !detail.is_empty())
        );
    }
}

#[tokio::test]
async fn next_links_return_all_connections_in_order_of_client_id() {
    let connector = Connector::start().await;
    let mut clients = Vec::new();
    for n in 0..5 {
        let client_id = format!("page-{n}");
        let mut client =
            RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
        client
            .must_publish(&control_out_topic(&client_id), &online_message())
            .await;
        clients.push(client);
    }
    let mut next_page_path = Some("/api/cloud-connector/v2/connections?limit=2".to_owned());
    let mut listed_ids = Vec::new();
    while let Some(path) = next_page_path {
        let path = path.trim_start_matches("/api/cloud-connector").to_owned();
        let page = connector.request("GET", &path).send().await.unwrap();
        let page: Value = page.json().await.unwrap();
        assert_eq!(page["meta"]["count"], 5);
        for row in page["data"].as_array().unwrap() {
            listed_ids.push(row["client_id"].as_str().unwrap().to_owned());
        }
        next_page_path = page["links"]["next"].as_str().map(str::to_owned);
    }
    assert_eq!(
        listed_ids,
        ["page-0", "page-1", "page-2", "page-3", "page-4"]
    );
    let page = connector
        .request("GET", "/v2/connections?offset=99&limit=0")
        .send()
        .await
        .unwrap();
    let page: Value = page.json().await.unwrap();
    assert_eq!(page["meta"]["count"], 5);
    assert_eq!(page["data"], json!([]));
}

#[tokio::test]
async fn message_to_a_client_without_subscription_returns_404() {
    let connector = Connector::start().await;
    let client_id = unique_id("unsubscribed");
    let mut client = RawClient::connect(&connector.mqtt_address, &Connect::new(&client_id)).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    let (status, body) = connector
        .send_message(&client_id, json!({"directive": "x"}))
        .await;
    assert_eq!(status, 404);
    assert_eq!(body["title"], "No connection to the rhc client");
    assert_eq!(client.subscribe(&data_in_topic(&client_id)).await, 1);
    let (status, _) = connector
        .send_message(&client_id, json!({"directive": "x"}))
        .await;
    assert_eq!(status, 201);
}

#[tokio::test]
async fn response_contains_the_given_or_a_generated_request_id() {
    let connector = Connector::start().await;
    let header = "x-rh-insights-request-id";
    let request = connector
        .request("GET", "/v2/connections")
        .header(header, "caller-request")
        .send();
    assert_eq!(request.await.unwrap().headers()[header], "caller-request");
    let response = connector
        .request("GET", "/v2/connections")
        .send()
        .await
        .unwrap();
    assert!(response.headers()[header].len() >= 32);
}

#[tokio::test]
async fn probes_and_metrics_need_no_credentials() {
    let connector = Connector::start().await;
    let liveness = connector
        .unauthenticated_request("GET", "/liveness")
        .send()
        .await
        .unwrap();
    assert_eq!(liveness.status(), 200);
    let (status, readiness) = connector.readiness().await;
    assert_eq!(status, 200);
    assert_eq!(
        readiness,
        json!({"ready": true, "components": {"embedded_broker": "ok", "recorder": "ok",
            "store": "ok", "tenant_lookup": "ok"}})
    );
    let page = connector
        .unauthenticated_request("GET", "/metrics")
        .send()
        .await
        .unwrap();
    let page = page.text().await.unwrap();
    assert!(
        page.contains("# HELP cloud_connector_http_requests_total"),
        "{page}"
    );
}

#[tokio::test]
async fn management_actions_are_written_to_the_audit_log_at_every_log_level() {
    let connector = Connector::builder().set("log.level", "error").start().await;
    let body = json!({"account": "111000", "node_id": "me", "delay": 1});
    let request = connector.request("POST", "/v1/connection/reconnect");
    assert_eq!(request.json(&body).send().await.unwrap().status(), 400);
    let line = eventually("the audit log line", || async {
        let lines = connector.log_lines.lock();
        lines.iter().find(|line| line.contains("audit")).cloned()
    })
    .await;
    let line: Value = serde_json::from_str(&line).unwrap();
    for (field, expected) in [
        ("target", json!("cloud_connector::audit")),
        ("caller", json!("local")),
        ("action", json!("reconnect")),
        ("tenant", json!("111000")),
        ("client_id", json!("me")),
        ("status", json!(400)),
        ("result", json!("No connection found for node (111000:me)")),
    ] {
        assert_eq!(line[field], expected, "{line}");
    }
}

#[tokio::test]
async fn too_large_request_headers_are_rejected() {
    let connector = Connector::start().await;
    let request = connector.request("GET", "/v2/connections");
    let response = request
        .header("x-large", "x".repeat(1_000_000))
        .send()
        .await;
    // The server may close the connection before the client has sent the header. In that case, the
    // client gets an error instead of the response.
    assert!(response.is_err() || response.unwrap().status() == 431);
    let request = connector.request("GET", "/v2/connections");
    let response = request.header("x-large", "x".repeat(20_000)).send().await;
    assert_eq!(response.unwrap().status(), 200);
}
