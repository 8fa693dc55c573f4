//! The REST interface of the slice: who may call, what is answered, what is refused.

use serde_json::{Value, json};

use crate::support::mqtt::{Connect, control_out, data_in, online};
use crate::support::{Connector, RawClient, eventually, unique};

#[tokio::test]
async fn without_the_right_key_everything_is_401_and_says_no_more() {
    let connector = Connector::start().await;
    let key = connector.key.clone();
    let (id, psk, org) = (
        "x-rh-cloud-connector-client-id",
        "x-rh-cloud-connector-psk",
        "x-rh-cloud-connector-org-id",
    );
    let attempts: &[&[(&str, &str)]] = &[
        &[],
        &[(id, "local")],
        &[(id, "local"), (psk, &key)],
        &[(id, "local"), (psk, &key), (org, "")],
        &[(id, "local"), (psk, "wrong"), (org, "10000")],
        &[(id, "other"), (psk, &key), (org, "10000")],
        &[(psk, &key), (org, "10000")],
    ];
    for headers in attempts {
        for (method, path) in [
            ("GET", "/api/cloud-connector/v2/connections"),
            ("GET", "/api/cloud-connector/v2/connections/x/status"),
            ("POST", "/api/cloud-connector/v2/connections/x/message"),
        ] {
            let request = headers
                .iter()
                .fold(connector.bare(method, path), |r, (k, v)| r.header(*k, *v));
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), 401, "{method} {path} {headers:?}");
            let kind = answer.headers()["content-type"]
                .to_str()
                .unwrap()
                .to_owned();
            assert!(kind.starts_with("text/plain"), "{kind}");
            assert_eq!(answer.text().await.unwrap(), "Authentication failed");
        }
    }
}

#[tokio::test]
async fn configured_keys_work_beside_the_local_one_and_during_rotation() {
    let connector = Connector::setup()
        .set(
            "api.keys.sources",
            r#"{ secrets = ["new-secret-new-secret", "old-secret-old-secret"] }"#,
        )
        .start()
        .await;
    for secret in ["new-secret-new-secret", "old-secret-old-secret"] {
        let answer = connector
            .bare("GET", "/api/cloud-connector/v2/connections")
            .header("x-rh-cloud-connector-client-id", "sources")
            .header("x-rh-cloud-connector-psk", secret)
            .header("x-rh-cloud-connector-org-id", "1")
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 200);
    }
}

#[tokio::test]
async fn unknown_paths_and_methods_and_bad_bodies_are_errors_in_one_shape() {
    let connector = Connector::start().await;
    let too_large = format!("{{\"directive\":\"{}\"}}", "x".repeat(1_100_000));
    let message = "/v2/connections/x/message";
    for (method, path, body, status, title) in [
        ("GET", "/v2/nothing", "", 404, "Not found"),
        ("PUT", "/v2/connections", "", 405, "Method not allowed"),
        (
            "GET",
            "/v2/connections?limit=x",
            "",
            400,
            "InvalidValue request",
        ),
        (
            "GET",
            "/v2/connections?offset=-1",
            "",
            400,
            "InvalidValue request",
        ),
        ("POST", message, "{", 400, "Unable to process json input"),
        ("POST", message, "", 400, "Unable to process json input"),
        ("POST", message, "null", 400, "Unable to process json input"),
        ("POST", message, "{}", 400, "Unable to process json input"),
        (
            "POST",
            message,
            "{\"directive\":\"a\"}{}",
            400,
            "Unable to process json input",
        ),
        (
            "POST",
            message,
            "{\"directive\":\"a\",\"metadata\":{\"a\":1}}",
            400,
            "Unable to process json input",
        ),
        (
            "POST",
            message,
            "{\"directive\":\"  \"}",
            400,
            "Directive field is empty",
        ),
        (
            "POST",
            message,
            "{\"directive\":\"a\"}",
            404,
            "No connection to the rhc client",
        ),
        ("POST", message, &too_large, 413, "Request body too large"),
    ] {
        let request = connector.request(method, path).body(body.to_owned());
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), status, "{method} {path} {body:.60}");
        let kind = answer.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned();
        assert_eq!(kind, "application/json; charset=UTF-8");
        assert!(answer.headers().contains_key("x-rh-insights-request-id"));
        let body: Value = answer.json().await.unwrap();
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
async fn pages_lead_through_all_connections_in_order() {
    let connector = Connector::start().await;
    let mut clients = Vec::new();
    for n in 0..5 {
        let name = format!("page-{n}");
        let mut client = RawClient::connect(&connector.mqtt, &Connect::new(&name)).await;
        client.must_publish(&control_out(&name), &online()).await;
        clients.push(client);
    }
    let mut next = Some("/api/cloud-connector/v2/connections?limit=2".to_owned());
    let mut seen = Vec::new();
    while let Some(path) = next {
        let path = path.trim_start_matches("/api/cloud-connector").to_owned();
        let page = connector.request("GET", &path).send().await.unwrap();
        let page: Value = page.json().await.unwrap();
        assert_eq!(page["meta"]["count"], 5);
        for row in page["data"].as_array().unwrap() {
            seen.push(row["client_id"].as_str().unwrap().to_owned());
        }
        next = page["links"]["next"].as_str().map(str::to_owned);
    }
    assert_eq!(seen, ["page-0", "page-1", "page-2", "page-3", "page-4"]);
    let past = connector
        .request("GET", "/v2/connections?offset=99&limit=0")
        .send()
        .await
        .unwrap();
    let past: Value = past.json().await.unwrap();
    assert_eq!(past["meta"]["count"], 5);
    assert_eq!(past["data"], json!([]));
}

#[tokio::test]
async fn a_message_to_a_client_that_does_not_listen_is_not_called_sent() {
    let connector = Connector::start().await;
    let me = unique("deaf");
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(&me)).await;
    client.must_publish(&control_out(&me), &online()).await;
    let (status, body) = connector.send(&me, json!({"directive": "x"})).await;
    assert_eq!(status, 503);
    assert_eq!(body["title"], "Error passing message to rhc client");
    assert!(body["id"].is_string(), "{body}");
    assert_eq!(client.subscribe(&data_in(&me)).await, 1);
    let (status, _) = connector.send(&me, json!({"directive": "x"})).await;
    assert_eq!(status, 201);
}

#[tokio::test]
async fn a_request_id_is_taken_over_or_made() {
    let connector = Connector::start().await;
    let name = "x-rh-insights-request-id";
    let given = connector
        .request("GET", "/v2/connections")
        .header(name, "mine")
        .send();
    assert_eq!(given.await.unwrap().headers()[name], "mine");
    let made = connector
        .request("GET", "/v2/connections")
        .send()
        .await
        .unwrap();
    assert!(made.headers()[name].len() >= 32);
}

#[tokio::test]
async fn probes_and_metrics_need_no_key() {
    let connector = Connector::start().await;
    let alive = connector.bare("GET", "/liveness").send().await.unwrap();
    assert_eq!(alive.status(), 200);
    let (status, ready) = connector.readiness().await;
    assert_eq!(status, 200);
    assert_eq!(
        ready,
        json!({"ready": true, "parts": {"broker": "ok", "record": "ok", "store": "ok", "tenant_lookup": "ok"}})
    );
    let page = connector.bare("GET", "/metrics").send().await.unwrap();
    let page = page.text().await.unwrap();
    assert!(
        page.contains("# HELP cloud_connector_http_requests_total"),
        "{page}"
    );
}

#[tokio::test]
async fn management_leaves_a_line_that_says_who_did_what_to_whom_at_any_level() {
    let connector = Connector::setup().set("log.level", "error").start().await;
    let body = json!({"account": "111000", "node_id": "me", "delay": 1});
    let request = connector.request("POST", "/v1/connection/reconnect");
    assert_eq!(request.json(&body).send().await.unwrap().status(), 400);
    let line = eventually("the line", || async {
        let said = connector.said.lock();
        said.iter().find(|line| line.contains("audit")).cloned()
    })
    .await;
    let line: Value = serde_json::from_str(&line).unwrap();
    for (field, expected) in [
        ("target", json!("cloud_connector::audit")),
        ("who", json!("local")),
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
async fn a_request_with_an_endless_head_is_cut_off() {
    let connector = Connector::start().await;
    let request = connector.request("GET", "/v2/connections");
    let answer = request.header("x-much", "x".repeat(1_000_000)).send().await;
    // Whether the answer arrives depends on how much was written before the end.
    assert!(answer.is_err() || answer.unwrap().status() == 431);
    let request = connector.request("GET", "/v2/connections");
    let answer = request.header("x-much", "x".repeat(20_000)).send().await;
    assert_eq!(answer.unwrap().status(), 200);
}
