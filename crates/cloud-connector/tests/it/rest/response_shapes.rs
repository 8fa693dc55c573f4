//! Tests of exact response bodies: page links, counts, errors, and omitted fields. Also tests of
//! message bodies, metric labels and the forwarded request id.

use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{
    ApiFixture, OK, OTHER_ACCOUNT, OTHER_ORG, OWN_ACCOUNT, OWN_ORG, error_response, json_response,
    json_text_response, without_times,
};
use test_support::each_deployment;
use test_support::mqtt::{control_out_topic, online_message};
use test_support::{DeploymentMode, eventually};

each_deployment!(
    page_links_repeat_the_query_with_offset_and_limit,
    count_is_the_total_even_past_the_last_page_and_with_limit_0,
    invalid_offset_or_limit_returns_400,
    responses_omit_empty_strings_and_nulls_but_contain_empty_objects,
    each_kind_of_invalid_json_body_has_its_own_error_detail,
    errors_400_403_404_405_413_use_the_error_envelope,
    message_without_metadata_and_payload_is_sent_with_null_values,
    metadata_other_than_a_string_map_is_rejected,
    directives_and_client_ids_are_not_metric_labels,
    request_id_is_forwarded_to_the_account_translator,
);

/// Sends the request. Returns the status and the exact body. In the body, `[own_org_client_id]`
/// replaces the random client id, and `[time]` replaces times.
async fn exact_response(fixture: &ApiFixture, request: RequestBuilder) -> String {
    let (status, text) = json_text_response(request).await;
    let text = without_times(&text).replace(&fixture.own_org_client_id, "[own_org_client_id]");
    format!("{status} {text}")
}

async fn page_links_repeat_the_query_with_offset_and_limit(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let page_links =
        async |request: RequestBuilder| json_response(request).await.1["links"].to_string();
    let list_request =
        |query: &str| fixture.v2_request(OTHER_ORG, "GET", &format!("/connections{query}"));
    assert_eq!(
        page_links(list_request("?limit=1")).await,
        r#"{"first":"/api/cloud-connector/v2/connections?limit=1&offset=0","last":"/api/cloud-connector/v2/connections?limit=1&offset=1","next":"/api/cloud-connector/v2/connections?limit=1&offset=1"}"#
    );
    assert_eq!(
        page_links(list_request("?limit=1&offset=1")).await,
        r#"{"first":"/api/cloud-connector/v2/connections?limit=1&offset=0","last":"/api/cloud-connector/v2/connections?limit=1&offset=1","prev":"/api/cloud-connector/v2/connections?limit=1&offset=0"}"#
    );
    assert_eq!(
        page_links(list_request("?limit=5&offset=3&x=%26")).await,
        r#"{"first":"/api/cloud-connector/v2/connections?limit=5&offset=0&x=%26","last":"/api/cloud-connector/v2/connections?limit=5&offset=0&x=%26","prev":"/api/cloud-connector/v2/connections?limit=5&offset=0&x=%26"}"#
    );
    assert_eq!(
        page_links(list_request("?limit=&offset=")).await,
        r#"{"first":"/api/cloud-connector/v2/connections?limit=1000&offset=0","last":"/api/cloud-connector/v2/connections?limit=1000&offset=0"}"#
    );
    assert_eq!(
        page_links(list_request("?limit=10001")).await,
        r#"{"first":"/api/cloud-connector/v2/connections?limit=10000&offset=0","last":"/api/cloud-connector/v2/connections?limit=10000&offset=0"}"#
    );
    let management_list_request = |path: &str| fixture.management_request("GET", path);
    assert_eq!(
        page_links(management_list_request("/connection?limit=2&offset=1")).await,
        r#"{"first":"/api/cloud-connector/v1/connection?limit=2&offset=0","last":"/api/cloud-connector/v1/connection?limit=2&offset=2","prev":"/api/cloud-connector/v1/connection?limit=2&offset=0"}"#
    );
    assert_eq!(
        page_links(management_list_request("/connection/020202?limit=1")).await,
        r#"{"first":"/api/cloud-connector/v1/connection/020202?limit=1&offset=0","last":"/api/cloud-connector/v1/connection/020202?limit=1&offset=1","next":"/api/cloud-connector/v1/connection/020202?limit=1&offset=1"}"#
    );
}

async fn count_is_the_total_even_past_the_last_page_and_with_limit_0(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    for query in [
        "?offset=99",
        "?limit=0",
        "?limit=0&offset=1",
        "?offset=18446744073709551615",
    ] {
        for (count, request) in [
            (
                2,
                fixture.v2_request(OTHER_ORG, "GET", &format!("/connections{query}")),
            ),
            (
                3,
                fixture.management_request("GET", &format!("/connection{query}")),
            ),
            (
                2,
                fixture.management_request("GET", &format!("/connection/{OTHER_ACCOUNT}{query}")),
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
    let empty_list = fixture.v2_request("10003", "GET", "/connections");
    assert_eq!(
        exact_response(&fixture, empty_list).await,
        r#"200 {"meta":{"count":0},"links":{},"data":[]}"#
    );
}

async fn invalid_offset_or_limit_returns_400(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    for query in [
        "?offset=-1",
        "?limit=-1",
        "?limit=x",
        "?offset=1.5",
        "?limit=1%20",
    ] {
        let v2_error =
            error_response(fixture.v2_request(OWN_ORG, "GET", &format!("/connections{query}")))
                .await;
        assert_eq!(v2_error, (400, "Invalid request".to_owned()), "{query}");
        for path in ["/connection", "/connection/010101"] {
            let v1_error =
                error_response(fixture.management_request("GET", &format!("{path}{query}"))).await;
            let title = "Unable to process input parameters".to_owned();
            assert_eq!(v1_error, (400, title), "{query}");
        }
    }
    let invalid_limit_response = exact_response(
        &fixture,
        fixture.v2_request(OWN_ORG, "GET", "/connections?limit=x"),
    )
    .await;
    assert_eq!(
        invalid_limit_response,
        r#"400 {"title":"Invalid request","status":400,"detail":"limit must be a non-negative integer"}"#
    );
}

async fn responses_omit_empty_strings_and_nulls_but_contain_empty_objects(mode: DeploymentMode) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    let mut message = online_message();
    message["content"]["canonical_facts"] = Value::Null;
    message["content"]["dispatchers"] = Value::Null;
    message["content"]["tags"] = json!({});
    let topic = control_out_topic(&fixture.own_org_client_id);
    fixture.own_client.must_publish(&topic, &message).await;
    let path = format!("/connections/{}/status", fixture.own_org_client_id);
    let wait_for_update = eventually("the new client info", || async {
        let status_response =
            exact_response(&fixture, fixture.v2_request(OWN_ORG, "GET", &path)).await;
        (!status_response.contains("raw.example")).then_some(status_response)
    });
    assert_eq!(
        wait_for_update.await,
        r#"200 {"status":"connected","account":"010101","org_id":"10001","client_id":"[own_org_client_id]","canonical_facts":{},"tags":{},"connected_since":"[time]","last_seen":"[time]"}"#
    );
    let node = json!({"account": OWN_ACCOUNT, "node_id": fixture.own_org_client_id});
    let status = fixture.v1_post_request(OWN_ACCOUNT, "/connection_status", &node);
    assert_eq!(
        exact_response(&fixture, status).await,
        r#"200 {"status":"connected","canonical_facts":{},"tags":{}}"#
    );
    let unknown_client_request = fixture.v2_request(OWN_ORG, "GET", "/connections/unknown/status");
    assert_eq!(
        exact_response(&fixture, unknown_client_request).await,
        r#"200 {"status":"disconnected"}"#
    );
}

async fn each_kind_of_invalid_json_body_has_its_own_error_detail(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let path = format!("/connections/{}/message", fixture.own_org_client_id);
    let message_request =
        |body: &'static str| fixture.v2_request(OWN_ORG, "POST", &path).body(body);
    let malformed_detail = "Request body includes malformed json";
    let missing_detail = "Request body is missing required fields";
    for (body, detail) in [
        ("{", malformed_detail),
        ("", malformed_detail),
        ("[]", malformed_detail),
        ("5", malformed_detail),
        (r#"{"directive": 5}"#, malformed_detail),
        ("null", missing_detail),
        ("{}", missing_detail),
        (r#"{"directive": ""}"#, missing_detail),
        (r#"{"directive": null}"#, missing_detail),
        (
            r#"{"directive": "d"}{}"#,
            "Request body must only contain one json object",
        ),
        (
            r#"{"directive": "d"} x"#,
            "Request body must only contain one json object",
        ),
    ] {
        let (status, response) = json_response(message_request(body)).await;
        let expected =
            json!({"title": "Unable to process json input", "status": 400, "detail": detail});
        assert_eq!((status, response), (400, expected), "{body}");
        let v1_request = fixture
            .v1_post_request(OWN_ACCOUNT, "/message", &Value::Null)
            .body(body);
        assert_eq!(json_response(v1_request).await.0, 400, "{body}");
        for endpoint in ["status", "ping", "reconnect", "disconnect"] {
            let request = fixture.management_request("POST", &format!("/connection/{endpoint}"));
            assert_eq!(
                json_response(request.body(body)).await.0,
                400,
                "{endpoint} {body}"
            );
        }
    }
    let blank_directive_response =
        exact_response(&fixture, message_request(r#"{"directive": " \t"}"#)).await;
    assert_eq!(
        blank_directive_response,
        r#"400 {"title":"Directive field is empty","status":400,"detail":"directive must contain more than white space"}"#
    );
}

async fn errors_400_403_404_405_413_use_the_error_envelope(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let message_request = |client: &str| {
        fixture.v2_request(OWN_ORG, "POST", &format!("/connections/{client}/message"))
    };
    let unknown_client_request = message_request("unknown").json(&json!({"directive": "d"}));
    assert_eq!(
        exact_response(&fixture, unknown_client_request).await,
        r#"404 {"title":"No connection to the rhc client","status":404,"detail":"The organization has no connected client with this id"}"#
    );
    let unknown_path_request = fixture.v2_request(OWN_ORG, "GET", "/unknown");
    assert_eq!(
        exact_response(&fixture, unknown_path_request).await,
        r#"404 {"title":"Not found","status":404,"detail":"Unknown path; openapi.json lists all endpoints"}"#
    );
    let invalid_account_request = fixture.management_request("GET", "/connection/12x");
    assert_eq!(
        exact_response(&fixture, invalid_account_request).await,
        r#"404 {"title":"Not found","status":404,"detail":"Unknown path; openapi.json lists all endpoints"}"#
    );
    let unsupported_method_request = fixture.v2_request(OWN_ORG, "DELETE", "/connections");
    assert_eq!(
        exact_response(&fixture, unsupported_method_request).await,
        r#"405 {"title":"Method not allowed","status":405,"detail":"The endpoint does not support this method; openapi.json lists the supported methods"}"#
    );
    let payload = "x".repeat(1024 * 1024);
    let too_large_request = message_request(&fixture.own_org_client_id)
        .json(&json!({"directive": "d", "payload": payload}));
    assert_eq!(
        exact_response(&fixture, too_large_request).await,
        r#"413 {"title":"Request body too large","status":413,"detail":"The request body exceeds the size limit of this service"}"#
    );
    let body = json!({"account": OTHER_ACCOUNT, "recipient": "x", "directive": "d"});
    let account_mismatch_request = fixture.v1_post_request(OWN_ACCOUNT, "/message", &body);
    assert_eq!(
        exact_response(&fixture, account_mismatch_request).await,
        r#"403 {"title":"Account mismatch","status":403,"detail":"The account in the request body is not the account of the caller's credentials"}"#
    );
    let node = json!({"account": OWN_ACCOUNT, "node_id": "unknown", "delay": -1});
    let negative_delay_request = fixture
        .management_request("POST", "/connection/reconnect")
        .json(&node);
    assert_eq!(
        exact_response(&fixture, negative_delay_request).await,
        r#"400 {"title":"Delay field cannot be negative","status":400,"detail":"delay must be 0 or more: the number of seconds before the client reconnects"}"#
    );
}

async fn message_without_metadata_and_payload_is_sent_with_null_values(mode: DeploymentMode) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    let path = format!("/connections/{}/message", fixture.own_org_client_id);
    for body in [
        json!({"directive": "d"}),
        json!({"directive": "d", "metadata": null, "payload": null}),
    ] {
        let (status, sent) =
            json_response(fixture.v2_request(OWN_ORG, "POST", &path).json(&body)).await;
        assert_eq!(status, 201);
        let (_, message) = fixture.own_client.next_message().await;
        assert_eq!(sent, json!({"id": message["message_id"]}));
        assert_eq!(
            (&message["metadata"], &message["content"]),
            (&Value::Null, &Value::Null)
        );
        let v1_body = json!({"account": OWN_ACCOUNT, "recipient": fixture.own_org_client_id, "directive": "d"});
        assert_eq!(
            json_response(fixture.v1_post_request(OWN_ACCOUNT, "/message", &v1_body))
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

async fn metadata_other_than_a_string_map_is_rejected(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let path = format!("/connections/{}/message", fixture.own_org_client_id);
    for metadata in [
        json!("a"),
        json!(["a"]),
        json!({"a": 1}),
        json!({"a": null}),
        json!(1),
    ] {
        let body = json!({"directive": "d", "metadata": metadata});
        let rejection = exact_response(
            &fixture,
            fixture.v2_request(OWN_ORG, "POST", &path).json(&body),
        )
        .await;
        assert_eq!(
            rejection,
            r#"400 {"title":"Unable to process json input","status":400,"detail":"metadata must be null or a map of string to string"}"#
        );
        let v1_body = json!({"account": OWN_ACCOUNT, "recipient": fixture.own_org_client_id, "directive": "d",
            "metadata": metadata});
        assert_eq!(
            error_response(fixture.v1_post_request(OWN_ACCOUNT, "/message", &v1_body))
                .await
                .0,
            400
        );
    }
}

async fn directives_and_client_ids_are_not_metric_labels(mode: DeploymentMode) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    let path = format!("/connections/{}/message", fixture.own_org_client_id);
    let body = json!({"directive": "directive-not-in-metrics"});
    assert_eq!(
        json_response(fixture.v2_request(OWN_ORG, "POST", &path).json(&body))
            .await
            .0,
        201
    );
    fixture.own_client.next_message().await;
    let base_request = fixture
        .deployment
        .unauthenticated_request("GET", "")
        .build()
        .unwrap();
    let url = base_request.url().join("/metrics").unwrap();
    let metrics = reqwest::get(url).await.unwrap().text().await.unwrap();
    assert!(metrics.contains("cloud_connector_"), "{metrics}");
    assert!(!metrics.contains("directive-not-in-metrics"));
    assert!(!metrics.contains(&fixture.own_org_client_id));
}

/// Starts a fake account translator that translates `OWN_ACCOUNT`. Returns the translator's URL,
/// and a list to which the translator appends the request id of each request.
async fn start_fake_translator() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let request_ids = Arc::new(Mutex::new(Vec::new()));
    let received_ids = request_ids.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 4096];
            let length = stream.read(&mut head).await.unwrap_or(0);
            let head = String::from_utf8_lossy(&head[..length]).to_lowercase();
            let request_id = head
                .lines()
                .find_map(|line| line.strip_prefix("x-rh-insights-request-id: "));
            received_ids
                .lock()
                .push(request_id.unwrap_or_default().to_owned());
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

async fn request_id_is_forwarded_to_the_account_translator(mode: DeploymentMode) {
    let (url, request_ids) = start_fake_translator().await;
    let fixture = ApiFixture::start(mode, &[("tenant.translator_url", &url)]).await;
    let node = json!({"account": OWN_ACCOUNT, "node_id": fixture.own_org_client_id});
    let request = fixture
        .v1_post_request(OWN_ACCOUNT, "/connection_status", &node)
        .header("x-rh-insights-request-id", "request-9");
    assert_eq!(json_response(request).await.0, OK);
    assert_eq!(request_ids.lock().as_slice(), ["request-9"]);
}
