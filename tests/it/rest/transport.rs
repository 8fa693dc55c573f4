//! What is true of every request, whatever it asks for: limits, logs, slow callers, TLS, an orderly
//! end.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::certs::Certs;
use crate::support::connector::ORG;
use crate::support::mqtt::{Connect, RawClient, control_out, online};
use crate::support::{Connector, eventually};

const STATUS: &str = "/v2/connections/x/status";

#[tokio::test]
async fn a_key_and_an_organisation_have_their_limits_each() {
    let connector = Connector::setup()
        .set("api.rate_limit.per_org", "0.01")
        .set("api.rate_limit.per_org_burst", 2)
        .set("api.rate_limit.per_key", "0.01")
        .set("api.rate_limit.per_key_burst", 5)
        .start()
        .await;
    let ask = async |org: &str| {
        let request = connector.request_for(org, "GET", STATUS);
        let answer = request.send().await.unwrap();
        let wait = answer.headers().get("retry-after").cloned();
        let status = answer.status().as_u16();
        let body: Value = answer.json().await.unwrap();
        (
            status,
            wait.map(|wait| wait.to_str().unwrap().to_owned()),
            body,
        )
    };
    for _ in 0..2 {
        assert_eq!(ask("1").await.0, 200);
    }
    let (status, wait, body) = ask("1").await;
    assert_eq!(status, 429);
    let wait: u64 = wait.unwrap().parse().unwrap();
    assert!((1..=100).contains(&wait), "{wait}");
    assert_eq!(
        (&body["title"], &body["status"]),
        (&json!("Too many requests"), &json!(429))
    );
    // Others are not held up, nor was the key charged for what was refused, until it is used up.
    for org in ["2", "2", "3"] {
        assert_eq!(ask(org).await.0, 200, "{org}");
    }
    assert_eq!(ask("4").await.0, 429);
    // Who has not proved who it is uses nothing up, and learns nothing.
    let refused = connector.bare("GET", &format!("/api/cloud-connector{STATUS}"));
    assert_eq!(refused.send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn the_access_log_names_who_what_and_how_and_never_a_secret() {
    let connector = Connector::start().await;
    let request = connector
        .request("GET", &format!("{STATUS}?token=in-the-query"))
        .header("x-rh-insights-request-id", "followed-7")
        .header("x-rh-identity", "in-the-identity");
    let answer = request.send().await.unwrap();
    assert_eq!(answer.headers()["x-rh-insights-request-id"], "followed-7");
    let wrong = connector
        .request("GET", STATUS)
        .header("x-rh-cloud-connector-psk", "a-wrong-secret");
    wrong.send().await.unwrap();
    connector.readiness().await;
    let line = eventually("its line", || async {
        let said = connector.said.lock();
        said.iter()
            .find(|line| line.contains("followed-7"))
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
        (&json!("local"), &json!(ORG), &json!("followed-7"))
    );
    assert!(line["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert!(line["took_ms"].as_f64().is_some());
    let said = connector.said.lock().join("\n");
    for secret in [
        "in-the-query",
        "in-the-identity",
        "a-wrong-secret",
        &connector.key,
    ] {
        assert!(!said.contains(secret), "{secret}");
    }
    assert!(!said.contains("/readiness"));
}

#[tokio::test]
async fn a_request_id_that_cannot_stand_in_a_log_is_replaced() {
    let connector = Connector::start().await;
    for odd in [String::new(), "x".repeat(129), "\u{e9}".to_owned()] {
        let request = connector
            .request("GET", STATUS)
            .header("x-rh-insights-request-id", odd.as_bytes());
        let answer = request.send().await.unwrap();
        let id = answer.headers()["x-rh-insights-request-id"]
            .to_str()
            .unwrap();
        assert_eq!(id.len(), 32, "{odd}");
    }
}

#[tokio::test]
async fn pages_of_other_origins_are_not_let_in() {
    let connector = Connector::start().await;
    let preflight = connector
        .request("OPTIONS", STATUS)
        .header("origin", "https://elsewhere.example")
        .header("access-control-request-method", "GET");
    let answer = preflight.send().await.unwrap();
    assert_eq!(answer.status(), 405);
    let request = connector
        .request("GET", STATUS)
        .header("origin", "https://elsewhere.example");
    for answer in [answer, request.send().await.unwrap()] {
        let headers = answer.headers().keys();
        let allowed = headers.filter(|name| name.as_str().starts_with("access-control"));
        assert_eq!(allowed.count(), 0);
    }
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let connector = Connector::start().await;
    let address = connector.http.strip_prefix("http://").unwrap();
    let mut slow = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /api/cloud-connector/v2/connections/x/message HTTP/1.1\r\nhost: x\r\n\
         x-rh-cloud-connector-client-id: local\r\nx-rh-cloud-connector-psk: {}\r\n\
         x-rh-cloud-connector-org-id: 1\r\ncontent-length: 100\r\n\r\n{{\"directive\":",
        connector.key
    );
    slow.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let started = Instant::now();
    let read = slow.read_to_end(&mut answer);
    tokio::time::timeout(Duration::from_mins(1), read)
        .await
        .expect("it is still waited for")
        .unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(
        answer.contains(r#""title":"Request timeout","status":408"#),
        "{answer}"
    );
    assert!(started.elapsed() >= Duration::from_secs(9));
}

#[tokio::test]
async fn with_a_certificate_it_speaks_https_and_takes_a_new_one_up() {
    let setup = Connector::setup();
    let certs = Certs::init(setup.folder()).await;
    let file = |name: &str| certs.file(name).display().to_string();
    let connector = setup
        .set("http.tls.certificate", file("server.pem"))
        .set("http.tls.key", file("server.key"))
        .start()
        .await;
    assert!(connector.http.starts_with("https://"), "{}", connector.http);
    let url = format!(
        "{}/liveness",
        connector.http.replace("127.0.0.1", "localhost")
    );
    let trusting = |ca: &std::path::Path| {
        let ca = reqwest::Certificate::from_pem(&std::fs::read(ca).unwrap()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only([ca]);
        client.build().unwrap()
    };
    let ours = trusting(&certs.file("ca.pem"));
    assert_eq!(ours.get(&url).send().await.unwrap().status(), 200);
    let plain = url.replace("https", "http");
    assert!(ours.get(&plain).send().await.is_err());
    // Another authority takes over; a set that does not fit together is not taken.
    let folder = tempfile::tempdir().unwrap();
    let others = Certs::init(folder.path()).await;
    let theirs = trusting(&others.file("ca.pem"));
    std::fs::copy(others.file("server.pem"), certs.file("server.pem")).unwrap();
    connector.signal("HUP");
    eventually("the complaint", || async {
        let said = connector.said.lock();
        let told = said
            .iter()
            .any(|line| line.contains("keeping the old certificates"));
        told.then_some(())
    })
    .await;
    assert!(theirs.get(&url).send().await.is_err());
    std::fs::copy(others.file("server.key"), certs.file("server.key")).unwrap();
    connector.signal("HUP");
    eventually("the new certificate", || async {
        theirs.get(&url).send().await.ok().map(drop)
    })
    .await;
    let of_before = trusting(&certs.file("ca.pem"));
    assert!(of_before.get(&url).send().await.is_err());
}

#[tokio::test]
async fn what_is_under_way_is_answered_before_the_end() {
    let mut connector = Connector::start().await;
    let name = "drained";
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(name)).await;
    client
        .subscribe(&format!("redhat/insights/{name}/control/in"))
        .await;
    client.must_publish(&control_out(name), &online()).await;
    let ping = connector.request("POST", &format!("/v2/connections/{name}/ping"));
    let ping = tokio::spawn(ping.send());
    let (_, message) = client.message().await;
    connector.signal("TERM");
    eventually("it takes no new callers", || async {
        let refused = connector.request("GET", STATUS).send().await;
        refused.err().map(drop)
    })
    .await;
    let answer = json!({"type": "event", "message_id": "p", "response_to": message["message_id"],
        "version": 1, "sent": "2026-01-02T15:04:05Z", "content": "pong"});
    client.must_publish(&control_out(name), &answer).await;
    let answer = ping.await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    assert!(connector.ended().await.success());
}

#[tokio::test]
async fn what_a_caller_does_not_wait_for_leaves_its_line_in_the_audit() {
    let connector = Connector::start().await;
    let name = "forsaken";
    let mut client = RawClient::connect(&connector.mqtt, &Connect::new(name)).await;
    client
        .subscribe(&format!("redhat/insights/{name}/control/in"))
        .await;
    client.must_publish(&control_out(name), &online()).await;
    let ping = connector
        .request("POST", &format!("/v2/connections/{name}/ping?timeout=25"))
        .header("x-rh-insights-request-id", "forsaken-1");
    let ping = tokio::spawn(ping.send());
    client.message().await;
    ping.abort();
    let line = eventually("its line", || async {
        let said = connector.said.lock();
        let given_up = said.iter().find(|line| line.contains("given up"));
        given_up.cloned()
    })
    .await;
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["target"], "cloud_connector::audit");
    assert_eq!(
        (&line["action"], &line["client_id"], &line["request_id"]),
        (&json!("ping"), &json!(name), &json!("forsaken-1"))
    );
}
