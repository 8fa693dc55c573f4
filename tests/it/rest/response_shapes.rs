//! Shapes that all endpoints share, to the letter: pages, errors, what is left out and what is kept.

use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{ApiFixture, OK, THEM, US, answered, error, text_of};
use crate::each_deployment;
use crate::support::mqtt::{control_out, online};
use crate::support::{Deployment, eventually};

each_deployment!(
    links_are_the_requests_path_and_query_with_offset_and_limit_set,
    the_count_is_right_past_the_end_and_with_a_limit_of_nothing,
    a_page_that_cannot_be_read_is_400_with_the_generations_title,
    empty_strings_and_nulls_are_left_out_and_empty_objects_kept,
    bodies_that_cannot_be_used_are_told_apart,
    what_is_not_there_and_what_is_too_large_is_an_error_in_the_one_shape,
    metadata_and_payload_may_be_absent_or_null_and_are_sent_on_as_null,
    metadata_that_a_client_would_drop_is_refused,
    a_directive_never_becomes_a_metrics_label,
    the_request_id_is_passed_on_to_whom_we_ask,
);

/// The exact answer, with what differs from run to run replaced.
async fn exactly(world: &ApiFixture, request: RequestBuilder) -> String {
    let (status, text) = text_of(request).await;
    let text = text.replace(&world.ours, "[ours]");
    format!("{status} {text}")
}

async fn links_are_the_requests_path_and_query_with_offset_and_limit_set(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let links = async |request: RequestBuilder| answered(request).await.1["links"].to_string();
    let v2 = |query: &str| world.v2(THEM.0, "GET", &format!("/connections{query}"));
    assert_eq!(
        links(v2("?limit=1")).await,
        r#"{"first":"/api/cloud-connector/v2/connections?limit=1&offset=0","last":"/api/cloud-connector/v2/connections?limit=1&offset=1","next":"/api/cloud-connector/v2/connections?limit=1&offset=1"}"#
    );
    assert_eq!(
        links(v2("?limit=1&offset=1")).await,
        r#"{"first":"/api/cloud-connector/v2/connections?limit=1&offset=0","last":"/api/cloud-connector/v2/connections?limit=1&offset=1","prev":"/api/cloud-connector/v2/connections?limit=1&offset=0"}"#
    );
    assert_eq!(
        links(v2("?limit=5&offset=3&x=%26")).await,
        r#"{"first":"/api/cloud-connector/v2/connections?limit=5&offset=0&x=%26","last":"/api/cloud-connector/v2/connections?limit=5&offset=0&x=%26","prev":"/api/cloud-connector/v2/connections?limit=5&offset=0&x=%26"}"#
    );
    assert_eq!(
        links(v2("?limit=&offset=")).await,
        r#"{"first":"/api/cloud-connector/v2/connections?limit=1000&offset=0","last":"/api/cloud-connector/v2/connections?limit=1000&offset=0"}"#
    );
    assert_eq!(
        links(v2("?limit=10001")).await,
        r#"{"first":"/api/cloud-connector/v2/connections?limit=10000&offset=0","last":"/api/cloud-connector/v2/connections?limit=10000&offset=0"}"#
    );
    let managed = |path: &str| world.managed("GET", path);
    assert_eq!(
        links(managed("/connection?limit=2&offset=1")).await,
        r#"{"first":"/api/cloud-connector/v1/connection?limit=2&offset=0","last":"/api/cloud-connector/v1/connection?limit=2&offset=2","prev":"/api/cloud-connector/v1/connection?limit=2&offset=0"}"#
    );
    assert_eq!(
        links(managed("/connection/020202?limit=1")).await,
        r#"{"first":"/api/cloud-connector/v1/connection/020202?limit=1&offset=0","last":"/api/cloud-connector/v1/connection/020202?limit=1&offset=1","next":"/api/cloud-connector/v1/connection/020202?limit=1&offset=1"}"#
    );
}

async fn the_count_is_right_past_the_end_and_with_a_limit_of_nothing(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    for query in [
        "?offset=99",
        "?limit=0",
        "?limit=0&offset=1",
        "?offset=18446744073709551615",
    ] {
        for (count, request) in [
            (2, world.v2(THEM.0, "GET", &format!("/connections{query}"))),
            (3, world.managed("GET", &format!("/connection{query}"))),
            (
                2,
                world.managed("GET", &format!("/connection/{}{query}", THEM.1)),
            ),
        ] {
            let (status, page) = answered(request).await;
            assert_eq!(
                (status, &page["meta"]),
                (OK, &json!({"count": count})),
                "{query}"
            );
            assert_eq!(page["data"], json!([]), "{query}");
            if query.starts_with("?limit=0") {
                let links = page["links"].as_object().unwrap();
                assert!(
                    !links.contains_key("next") && !links.contains_key("prev"),
                    "{page}"
                );
            }
        }
    }
    let empty = world.v2("10003", "GET", "/connections");
    assert_eq!(
        exactly(&world, empty).await,
        r#"200 {"meta":{"count":0},"links":{},"data":[]}"#
    );
}

async fn a_page_that_cannot_be_read_is_400_with_the_generations_title(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    for query in [
        "?offset=-1",
        "?limit=-1",
        "?limit=x",
        "?offset=1.5",
        "?limit=1%20",
    ] {
        let v2 = error(world.v2(US.0, "GET", &format!("/connections{query}"))).await;
        assert_eq!(v2, (400, "InvalidValue request".to_owned()), "{query}");
        for path in ["/connection", "/connection/010101"] {
            let v1 = error(world.managed("GET", &format!("{path}{query}"))).await;
            let title = "Unable to process input parameters".to_owned();
            assert_eq!(v1, (400, title), "{query}");
        }
    }
    let exact = exactly(&world, world.v2(US.0, "GET", "/connections?limit=x")).await;
    assert_eq!(
        exact,
        r#"400 {"title":"InvalidValue request","status":400,"detail":"limit must be a number that is not negative"}"#
    );
}

async fn empty_strings_and_nulls_are_left_out_and_empty_objects_kept(subject: Deployment) {
    let mut world = ApiFixture::start(subject, &[]).await;
    let mut said = online();
    said["content"]["canonical_facts"] = Value::Null;
    said["content"]["dispatchers"] = Value::Null;
    said["content"]["tags"] = json!({});
    let topic = control_out(&world.ours);
    world.client.must_publish(&topic, &said).await;
    let path = format!("/connections/{}/status", world.ours);
    let found = eventually("the new words", || async {
        let exact = exactly(&world, world.v2(US.0, "GET", &path)).await;
        (!exact.contains("raw.example")).then_some(exact)
    });
    assert_eq!(
        found.await,
        r#"200 {"status":"connected","account":"010101","org_id":"10001","client_id":"[ours]","canonical_facts":{},"tags":{}}"#
    );
    let node = json!({"account": US.1, "node_id": world.ours});
    let status = world.v1(US.1, "/connection_status", &node);
    assert_eq!(
        exactly(&world, status).await,
        r#"200 {"status":"connected","canonical_facts":{},"tags":{}}"#
    );
    let gone = world.v2(US.0, "GET", "/connections/nobody/status");
    assert_eq!(
        exactly(&world, gone).await,
        r#"200 {"status":"disconnected"}"#
    );
}

async fn bodies_that_cannot_be_used_are_told_apart(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let path = format!("/connections/{}/message", world.ours);
    let v2 = |body: &'static str| world.v2(US.0, "POST", &path).body(body);
    let malformed = "Request body includes malformed json";
    let missing = "Request body is missing required fields";
    for (body, detail) in [
        ("{", malformed),
        ("", malformed),
        ("[]", malformed),
        ("5", malformed),
        (r#"{"directive": 5}"#, malformed),
        ("null", missing),
        ("{}", missing),
        (r#"{"directive": ""}"#, missing),
        (r#"{"directive": null}"#, missing),
        (
            r#"{"directive": "d"}{}"#,
            "Request body must only contain one json object",
        ),
        (
            r#"{"directive": "d"} x"#,
            "Request body must only contain one json object",
        ),
    ] {
        let (status, said) = answered(v2(body)).await;
        let expected =
            json!({"title": "Unable to process json input", "status": 400, "detail": detail});
        assert_eq!((status, said), (400, expected), "{body}");
        let v1 = world.v1(US.1, "/message", &Value::Null).body(body);
        assert_eq!(answered(v1).await.0, 400, "{body}");
        for managed in ["status", "ping", "reconnect", "disconnect"] {
            let request = world.managed("POST", &format!("/connection/{managed}"));
            assert_eq!(
                answered(request.body(body)).await.0,
                400,
                "{managed} {body}"
            );
        }
    }
    let blank = exactly(&world, v2(r#"{"directive": " \t"}"#)).await;
    assert_eq!(
        blank,
        r#"400 {"title":"Directive field is empty","status":400,"detail":"The directive names what the receiving application should do"}"#
    );
}

async fn what_is_not_there_and_what_is_too_large_is_an_error_in_the_one_shape(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let message = |client: &str| world.v2(US.0, "POST", &format!("/connections/{client}/message"));
    let nobody = message("nobody").json(&json!({"directive": "d"}));
    assert_eq!(
        exactly(&world, nobody).await,
        r#"404 {"title":"No connection to the rhc client","status":404,"detail":"The organisation has no connection to that client"}"#
    );
    let path = world.v2(US.0, "GET", "/elsewhere");
    assert_eq!(
        exactly(&world, path).await,
        r#"404 {"title":"Not found","status":404,"detail":"There is no such path"}"#
    );
    let account = world.managed("GET", "/connection/12x");
    assert_eq!(
        exactly(&world, account).await,
        r#"404 {"title":"Not found","status":404,"detail":"There is no such path"}"#
    );
    let method = world.v2(US.0, "DELETE", "/connections");
    assert_eq!(
        exactly(&world, method).await,
        r#"405 {"title":"Method not allowed","status":405,"detail":"The path does not take this method"}"#
    );
    let payload = "x".repeat(1024 * 1024);
    let large = message(&world.ours).json(&json!({"directive": "d", "payload": payload}));
    assert_eq!(
        exactly(&world, large).await,
        r#"413 {"title":"Request body too large","status":413,"detail":"The request body is larger than this service takes"}"#
    );
    let mismatch = json!({"account": THEM.1, "recipient": "x", "directive": "d"});
    let mismatch = world.v1(US.1, "/message", &mismatch);
    assert_eq!(
        exactly(&world, mismatch).await,
        r#"403 {"title":"Account mismatch","status":403,"detail":"The account in the request is not the caller's"}"#
    );
    let node = json!({"account": US.1, "node_id": "nobody", "delay": -1});
    let delay = world.managed("POST", "/connection/reconnect").json(&node);
    assert_eq!(
        exactly(&world, delay).await,
        r#"400 {"title":"Delay field cannot be negative","status":400,"detail":"The delay is how many seconds the client stays away"}"#
    );
}

async fn metadata_and_payload_may_be_absent_or_null_and_are_sent_on_as_null(subject: Deployment) {
    let mut world = ApiFixture::start(subject, &[]).await;
    let path = format!("/connections/{}/message", world.ours);
    for body in [
        json!({"directive": "d"}),
        json!({"directive": "d", "metadata": null, "payload": null}),
    ] {
        let (status, sent) = answered(world.v2(US.0, "POST", &path).json(&body)).await;
        assert_eq!(status, 201);
        let (_, message) = world.client.message().await;
        assert_eq!(sent, json!({"id": message["message_id"]}));
        assert_eq!(
            (&message["metadata"], &message["content"]),
            (&Value::Null, &Value::Null)
        );
        let v1 = json!({"account": US.1, "recipient": world.ours, "directive": "d"});
        assert_eq!(answered(world.v1(US.1, "/message", &v1)).await.0, 201);
        assert_eq!(world.client.message().await.1["content"], Value::Null);
    }
}

async fn metadata_that_a_client_would_drop_is_refused(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let path = format!("/connections/{}/message", world.ours);
    for metadata in [
        json!("a"),
        json!(["a"]),
        json!({"a": 1}),
        json!({"a": null}),
        json!(1),
    ] {
        let body = json!({"directive": "d", "metadata": metadata});
        let refused = exactly(&world, world.v2(US.0, "POST", &path).json(&body)).await;
        assert_eq!(
            refused,
            r#"400 {"title":"Unable to process json input","status":400,"detail":"metadata must be null or a map of string to string"}"#
        );
        let v1 = json!({"account": US.1, "recipient": world.ours, "directive": "d", "metadata": metadata});
        assert_eq!(error(world.v1(US.1, "/message", &v1)).await.0, 400);
    }
}

async fn a_directive_never_becomes_a_metrics_label(subject: Deployment) {
    let mut world = ApiFixture::start(subject, &[]).await;
    let path = format!("/connections/{}/message", world.ours);
    let body = json!({"directive": "a-directive-of-my-own"});
    assert_eq!(
        answered(world.v2(US.0, "POST", &path).json(&body)).await.0,
        201
    );
    world.client.message().await;
    let base = world.subject.bare("GET", "").build().unwrap();
    let metrics = base.url().join("/metrics").unwrap();
    let metrics = reqwest::get(metrics).await.unwrap().text().await.unwrap();
    assert!(metrics.contains("cloud_connector_"), "{metrics}");
    assert!(!metrics.contains("a-directive-of-my-own"));
    assert!(!metrics.contains(&world.ours));
}

/// A tenant translator that knows us, and notes which requests it was asked for.
async fn translator() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let noted = Arc::new(Mutex::new(Vec::new()));
    let taken_down = noted.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 4096];
            let read = stream.read(&mut head).await.unwrap_or(0);
            let head = String::from_utf8_lossy(&head[..read]).to_lowercase();
            let id = head
                .lines()
                .find_map(|line| line.strip_prefix("x-rh-insights-request-id: "));
            taken_down.lock().push(id.unwrap_or_default().to_owned());
            let body = json!({US.1: US.0}).to_string();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (url, noted)
}

async fn the_request_id_is_passed_on_to_whom_we_ask(subject: Deployment) {
    let (url, noted) = translator().await;
    let world = ApiFixture::start(subject, &[("tenant.translator_url", &url)]).await;
    let node = json!({"account": US.1, "node_id": world.ours});
    let request = world
        .v1(US.1, "/connection_status", &node)
        .header("x-rh-insights-request-id", "followed-9");
    assert_eq!(answered(request).await.0, OK);
    assert_eq!(noted.lock().as_slice(), ["followed-9"]);
}
