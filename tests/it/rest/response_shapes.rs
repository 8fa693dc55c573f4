//! Exact response bodies that all endpoints share: page links, counts, errors, and omitted fields;
//! also message bodies, metric labels and the forwarded request id.

use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    ApiFixture, OK, OTHER_ACCOUNT, OTHER_ORG, OWN_ACCOUNT, OWN_ORG, error_response, json_response,
    text_response,
};
use crate::each_deployment;
use crate::support::mqtt::{control_out, online};
use crate::support::{Deployment, eventually};

each_deployment!(
    page_links_repeat_the_query_with_offset_and_limit,
    count_is_complete_past_the_last_page_and_with_limit_zero,
    invalid_offset_or_limit_returns_400,
    empty_strings_and_nulls_are_omitted_and_empty_objects_kept,
    invalid_json_bodies_have_distinct_error_details,
    errors_400_403_404_405_413_use_the_error_envelope,
    absent_metadata_and_payload_are_sent_as_null,
    metadata_other_than_a_string_map_is_rejected,
    directives_and_client_ids_are_not_metric_labels,
    request_id_is_forwarded_to_the_account_translator,
);

/// Sends the request. Returns the status and the exact body, with the random client id replaced by
/// `[own_id]`.
async fn exact_response(fixture: &ApiFixture, request: RequestBuilder) -> String {
    let (status, text) = text_response(request).await;
    let text = text.replace(&fixture.own_id, "[own_id]");
    format!("{status} {text}")
}

async fn page_links_repeat_the_query_with_offset_and_limit(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    let links = async |request: RequestBuilder| json_response(request).await.1["links"].to_string();
    let v2 = |query: &str| fixture.v2(OTHER_ORG, "GET", &format!("/connections{query}"));
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
    let management = |path: &str| fixture.management("GET", path);
    assert_eq!(
        links(management("/connection?limit=2&offset=1")).await,
        r#"{"first":"/api/cloud-connector/v1/connection?limit=2&offset=0","last":"/api/cloud-connector/v1/connection?limit=2&offset=2","prev":"/api/cloud-connector/v1/connection?limit=2&offset=0"}"#
    );
    assert_eq!(
        links(management("/connection/020202?limit=1")).await,
        r#"{"first":"/api/cloud-connector/v1/connection/020202?limit=1&offset=0","last":"/api/cloud-connector/v1/connection/020202?limit=1&offset=1","next":"/api/cloud-connector/v1/connection/020202?limit=1&offset=1"}"#
    );
}

async fn count_is_complete_past_the_last_page_and_with_limit_zero(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    for query in [
        "?offset=99",
        "?limit=0",
        "?limit=0&offset=1",
        "?offset=18446744073709551615",
    ] {
        for (count, request) in [
            (
                2,
                fixture.v2(OTHER_ORG, "GET", &format!("/connections{query}")),
            ),
            (3, fixture.management("GET", &format!("/connection{query}"))),
            (
                2,
                fixture.management("GET", &format!("/connection/{}{query}", OTHER_ACCOUNT)),
            ),
        ] {
            let (status, page) = json_response(request).await;
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
    let empty = fixture.v2("10003", "GET", "/connections");
    assert_eq!(
        exact_response(&fixture, empty).await,
        r#"200 {"meta":{"count":0},"links":{},"data":[]}"#
    );
}

async fn invalid_offset_or_limit_returns_400(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    for query in [
        "?offset=-1",
        "?limit=-1",
        "?limit=x",
        "?offset=1.5",
        "?limit=1%20",
    ] {
        let v2 = error_response(fixture.v2(OWN_ORG, "GET", &format!("/connections{query}"))).await;
        assert_eq!(v2, (400, "Invalid request".to_owned()), "{query}");
        for path in ["/connection", "/connection/010101"] {
            let v1 = error_response(fixture.management("GET", &format!("{path}{query}"))).await;
            let title = "Unable to process input parameters".to_owned();
            assert_eq!(v1, (400, title), "{query}");
        }
    }
    let exact = exact_response(&fixture, fixture.v2(OWN_ORG, "GET", "/connections?limit=x")).await;
    assert_eq!(
        exact,
        r#"400 {"title":"Invalid request","status":400,"detail":"limit must be a non-negative integer"}"#
    );
}

async fn empty_strings_and_nulls_are_omitted_and_empty_objects_kept(deployment: Deployment) {
    let mut fixture = ApiFixture::start(deployment, &[]).await;
    let mut message = online();
    message["content"]["canonical_facts"] = Value::Null;
    message["content"]["dispatchers"] = Value::Null;
    message["content"]["tags"] = json!({});
    let topic = control_out(&fixture.own_id);
    fixture.own_client.must_publish(&topic, &message).await;
    let path = format!("/connections/{}/status", fixture.own_id);
    let updated = eventually("the new client info", || async {
        let exact = exact_response(&fixture, fixture.v2(OWN_ORG, "GET", &path)).await;
        (!exact.contains("raw.example")).then_some(exact)
    });
    assert_eq!(
        updated.await,
        r#"200 {"status":"connected","account":"010101","org_id":"10001","client_id":"[own_id]","canonical_facts":{},"tags":{}}"#
    );
    let node = json!({"account": OWN_ACCOUNT, "node_id": fixture.own_id});
    let status = fixture.v1(OWN_ACCOUNT, "/connection_status", &node);
    assert_eq!(
        exact_response(&fixture, status).await,
        r#"200 {"status":"connected","canonical_facts":{},"tags":{}}"#
    );
    let unknown_client = fixture.v2(OWN_ORG, "GET", "/connections/unknown/status");
    assert_eq!(
        exact_response(&fixture, unknown_client).await,
        r#"200 {"status":"disconnected"}"#
    );
}

async fn invalid_json_bodies_have_distinct_error_details(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    let path = format!("/connections/{}/message", fixture.own_id);
    let v2 = |body: &'static str| fixture.v2(OWN_ORG, "POST", &path).body(body);
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
        let (status, response) = json_response(v2(body)).await;
        let expected =
            json!({"title": "Unable to process json input", "status": 400, "detail": detail});
        assert_eq!((status, response), (400, expected), "{body}");
        let v1 = fixture.v1(OWN_ACCOUNT, "/message", &Value::Null).body(body);
        assert_eq!(json_response(v1).await.0, 400, "{body}");
        for endpoint in ["status", "ping", "reconnect", "disconnect"] {
            let request = fixture.management("POST", &format!("/connection/{endpoint}"));
            assert_eq!(
                json_response(request.body(body)).await.0,
                400,
                "{endpoint} {body}"
            );
        }
    }
    let blank = exact_response(&fixture, v2(r#"{"directive": " \t"}"#)).await;
    assert_eq!(
        blank,
        r#"400 {"title":"Directive field is empty","status":400,"detail":"directive must contain more than white space"}"#
    );
}

async fn errors_400_403_404_405_413_use_the_error_envelope(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    let message =
        |client: &str| fixture.v2(OWN_ORG, "POST", &format!("/connections/{client}/message"));
    let unknown_client = message("unknown").json(&json!({"directive": "d"}));
    assert_eq!(
        exact_response(&fixture, unknown_client).await,
        r#"404 {"title":"No connection to the rhc client","status":404,"detail":"The organization has no connected client with this id"}"#
    );
    let unknown_path = fixture.v2(OWN_ORG, "GET", "/unknown");
    assert_eq!(
        exact_response(&fixture, unknown_path).await,
        r#"404 {"title":"Not found","status":404,"detail":"Unknown path; openapi.json lists all endpoints"}"#
    );
    let invalid_account = fixture.management("GET", "/connection/12x");
    assert_eq!(
        exact_response(&fixture, invalid_account).await,
        r#"404 {"title":"Not found","status":404,"detail":"Unknown path; openapi.json lists all endpoints"}"#
    );
    let unsupported_method = fixture.v2(OWN_ORG, "DELETE", "/connections");
    assert_eq!(
        exact_response(&fixture, unsupported_method).await,
        r#"405 {"title":"Method not allowed","status":405,"detail":"The endpoint does not support this method; openapi.json lists the supported methods"}"#
    );
    let payload = "x".repeat(1024 * 1024);
    let too_large = message(&fixture.own_id).json(&json!({"directive": "d", "payload": payload}));
    assert_eq!(
        exact_response(&fixture, too_large).await,
        r#"413 {"title":"Request body too large","status":413,"detail":"The request body exceeds the size limit of this service"}"#
    );
    let body = json!({"account": OTHER_ACCOUNT, "recipient": "x", "directive": "d"});
    let account_mismatch = fixture.v1(OWN_ACCOUNT, "/message", &body);
    assert_eq!(
        exact_response(&fixture, account_mismatch).await,
        r#"403 {"title":"Account mismatch","status":403,"detail":"The account in the request body is not the account of the caller's credentials"}"#
    );
    let node = json!({"account": OWN_ACCOUNT, "node_id": "unknown", "delay": -1});
    let negative_delay = fixture
        .management("POST", "/connection/reconnect")
        .json(&node);
    assert_eq!(
        exact_response(&fixture, negative_delay).await,
        r#"400 {"title":"Delay field cannot be negative","status":400,"detail":"delay must be 0 or more: the number of seconds before the client reconnects"}"#
    );
}

async fn absent_metadata_and_payload_are_sent_as_null(deployment: Deployment) {
    let mut fixture = ApiFixture::start(deployment, &[]).await;
    let path = format!("/connections/{}/message", fixture.own_id);
    for body in [
        json!({"directive": "d"}),
        json!({"directive": "d", "metadata": null, "payload": null}),
    ] {
        let (status, sent) = json_response(fixture.v2(OWN_ORG, "POST", &path).json(&body)).await;
        assert_eq!(status, 201);
        let (_, message) = fixture.own_client.next_message().await;
        assert_eq!(sent, json!({"id": message["message_id"]}));
        assert_eq!(
            (&message["metadata"], &message["content"]),
            (&Value::Null, &Value::Null)
        );
        let v1 = json!({"account": OWN_ACCOUNT, "recipient": fixture.own_id, "directive": "d"});
        assert_eq!(
            json_response(fixture.v1(OWN_ACCOUNT, "/message", &v1))
                .await
                .0,
            201
        );
        assert_eq!(
            fixture.own_client.next_message().await.1["content"],
            Value::Null
        );
    }
}

async fn metadata_other_than_a_string_map_is_rejected(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    let path = format!("/connections/{}/message", fixture.own_id);
    for metadata in [
        json!("a"),
        json!(["a"]),
        json!({"a": 1}),
        json!({"a": null}),
        json!(1),
    ] {
        let body = json!({"directive": "d", "metadata": metadata});
        let rejection =
            exact_response(&fixture, fixture.v2(OWN_ORG, "POST", &path).json(&body)).await;
        assert_eq!(
            rejection,
            r#"400 {"title":"Unable to process json input","status":400,"detail":"metadata must be null or a map of string to string"}"#
        );
        let v1 = json!({"account": OWN_ACCOUNT, "recipient": fixture.own_id, "directive": "d", "metadata": metadata});
        assert_eq!(
            error_response(fixture.v1(OWN_ACCOUNT, "/message", &v1))
                .await
                .0,
            400
        );
    }
}

async fn directives_and_client_ids_are_not_metric_labels(deployment: Deployment) {
    let mut fixture = ApiFixture::start(deployment, &[]).await;
    let path = format!("/connections/{}/message", fixture.own_id);
    let body = json!({"directive": "directive-not-in-metrics"});
    assert_eq!(
        json_response(fixture.v2(OWN_ORG, "POST", &path).json(&body))
            .await
            .0,
        201
    );
    fixture.own_client.next_message().await;
    let base = fixture
        .deployment
        .unauthenticated_request("GET", "")
        .build()
        .unwrap();
    let url = base.url().join("/metrics").unwrap();
    let metrics = reqwest::get(url).await.unwrap().text().await.unwrap();
    assert!(metrics.contains("cloud_connector_"), "{metrics}");
    assert!(!metrics.contains("directive-not-in-metrics"));
    assert!(!metrics.contains(&fixture.own_id));
}

/// Starts a fake account translator that translates `OWN_ACCOUNT`. Returns its URL and the request
/// ids that it received.
async fn start_translator() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let request_ids = Arc::new(Mutex::new(Vec::new()));
    let received_ids = request_ids.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 4096];
            let length = stream.read(&mut head).await.unwrap_or(0);
            let head = String::from_utf8_lossy(&head[..length]).to_lowercase();
            let id = head
                .lines()
                .find_map(|line| line.strip_prefix("x-rh-insights-request-id: "));
            received_ids.lock().push(id.unwrap_or_default().to_owned());
            let body = json!({OWN_ACCOUNT: OWN_ORG}).to_string();
            let response = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(response.as_bytes()).await;
        }
    });
    (url, request_ids)
}

async fn request_id_is_forwarded_to_the_account_translator(deployment: Deployment) {
    let (url, request_ids) = start_translator().await;
    let fixture = ApiFixture::start(deployment, &[("tenant.translator_url", &url)]).await;
    let node = json!({"account": OWN_ACCOUNT, "node_id": fixture.own_id});
    let request = fixture
        .v1(OWN_ACCOUNT, "/connection_status", &node)
        .header("x-rh-insights-request-id", "request-9");
    assert_eq!(json_response(request).await.0, OK);
    assert_eq!(request_ids.lock().as_slice(), ["request-9"]);
}
