//! Tests of the v1 endpoints: messages and status by account number, and management.

use serde_json::{Value, json};

use super::{
    ApiFixture, OK, OTHER_ACCOUNT, OWN_ACCOUNT, error_response, json_response, json_text_response,
};
use test_support::DeploymentMode;
use test_support::each_deployment;

each_deployment!(
    v1_message_checks_body_then_account_then_directive_then_connection,
    v1_status_endpoints_return_the_expected_bodies,
    each_v1_endpoint_has_its_own_response_to_an_unknown_account,
    management_list_groups_all_connections_by_account,
    management_list_of_an_account_contains_only_its_connections,
    v1_ping_sends_a_command_and_returns_the_recorded_status,
    v1_reconnect_sends_a_command_with_delay_and_message,
    v1_disconnect_sends_a_command_with_the_message,
    v1_command_to_an_unknown_client_returns_400_with_the_client_id,
);

const INVALID_JSON_TITLE: &str = "Unable to process json input";

async fn v1_message_checks_body_then_account_then_directive_then_connection(mode: DeploymentMode) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    let message_body = |account: &str, recipient: &str, directive: &str| {
        json!({"account": account, "recipient": recipient, "directive": directive,
            "metadata": {"a": "b"}, "payload": [1]})
    };
    for (request_body, expected) in [
        // An invalid body is reported before an account mismatch.
        (
            message_body(OTHER_ACCOUNT, "", ""),
            (400, INVALID_JSON_TITLE),
        ),
        (
            json!({"account": OWN_ACCOUNT, "recipient": "x"}),
            (400, INVALID_JSON_TITLE),
        ),
        (
            json!({"account": OWN_ACCOUNT, "recipient": "x", "directive": 1}),
            (400, INVALID_JSON_TITLE),
        ),
        (Value::Null, (400, INVALID_JSON_TITLE)),
        (
            message_body(OTHER_ACCOUNT, "x", " "),
            (403, "Account mismatch"),
        ),
        (
            message_body(OWN_ACCOUNT, "x", " "),
            (400, "Directive field is empty"),
        ),
        (
            message_body(OWN_ACCOUNT, "x", "d"),
            (404, "No connection to the rhc client"),
        ),
        (
            message_body(OWN_ACCOUNT, &fixture.other_org_client_id, "d"),
            (404, "No connection to the rhc client"),
        ),
    ] {
        let (status, title) =
            error_response(fixture.v1_post_request(OWN_ACCOUNT, "/message", &request_body)).await;
        assert_eq!((status, title.as_str()), expected, "{request_body}");
    }
    let message_response = json_response(fixture.v1_post_request(
        OWN_ACCOUNT,
        "/message",
        &message_body(OWN_ACCOUNT, &fixture.own_org_client_id, "d"),
    ))
    .await;
    assert_eq!(message_response.0, 201);
    let (topic, message) = fixture.own_client.next_message().await;
    assert_eq!(
        topic,
        format!("redhat/insights/{}/data/in", fixture.own_org_client_id)
    );
    assert_eq!(message_response.1, json!({"id": message["message_id"]}));
    assert_eq!(message["directive"], "d");
    assert_eq!(message["metadata"], json!({"a": "b"}));
    assert_eq!(message["content"], json!([1]));
}

async fn v1_status_endpoints_return_the_expected_bodies(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let connected_body = concat!(
        r#"{"status":"connected","dispatchers":{"echo":{}},"#,
        r#""canonical_facts":{"fqdn":"raw.example"},"tags":{"make":"raw"}}"#
    );
    let disconnected_body = r#"{"status":"disconnected"}"#;
    let node = |account: &str, client_id: &str| json!({"account": account, "node_id": client_id});
    for (client_id, expected) in [
        (fixture.own_org_client_id.as_str(), connected_body),
        (&fixture.other_org_client_id, disconnected_body),
        (&fixture.tenantless_client_id, disconnected_body),
        ("unknown", disconnected_body),
        ("no\u{7}name", disconnected_body),
    ] {
        let body = node(OWN_ACCOUNT, client_id);
        let status_response =
            json_text_response(fixture.v1_post_request(OWN_ACCOUNT, "/connection_status", &body))
                .await;
        assert_eq!(status_response, (OK, expected.to_owned()), "{client_id}");
        let status_response = json_text_response(
            fixture
                .management_request("POST", "/connection/status")
                .json(&body),
        )
        .await;
        assert_eq!(status_response, (OK, expected.to_owned()), "{client_id}");
    }
    let mismatch_request = fixture.v1_post_request(
        OWN_ACCOUNT,
        "/connection_status",
        &node(OTHER_ACCOUNT, &fixture.other_org_client_id),
    );
    assert_eq!(
        error_response(mismatch_request).await,
        (403, "Account mismatch".to_owned())
    );
    // Management endpoints accept every account.
    let body = node(OTHER_ACCOUNT, &fixture.other_org_client_id);
    let status_response = json_response(
        fixture
            .management_request("POST", "/connection/status")
            .json(&body),
    )
    .await;
    assert_eq!(status_response.1["status"], "connected");
    for invalid in [
        json!({}),
        json!({"account": OWN_ACCOUNT}),
        json!({"account": "", "node_id": "x"}),
    ] {
        let rejection =
            error_response(fixture.v1_post_request(OWN_ACCOUNT, "/connection_status", &invalid))
                .await;
        assert_eq!(rejection, (400, INVALID_JSON_TITLE.to_owned()), "{invalid}");
    }
}

async fn each_v1_endpoint_has_its_own_response_to_an_unknown_account(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let unknown_account = "999999";
    let node =
        json!({"account": unknown_account, "node_id": fixture.own_org_client_id, "delay": 1});
    let translation_error = (400, "Unable to translate account to org_id".to_owned());
    let status_request = fixture.v1_post_request(unknown_account, "/connection_status", &node);
    assert_eq!(error_response(status_request).await, translation_error);
    let management_post = |path: &str| fixture.management_request("POST", path).json(&node);
    assert_eq!(
        error_response(management_post("/connection/status")).await,
        translation_error
    );
    let message = json!({"account": unknown_account, "recipient": fixture.own_org_client_id, "directive": "d"});
    let message_error =
        error_response(fixture.v1_post_request(unknown_account, "/message", &message)).await;
    assert_eq!(
        message_error,
        (404, "No connection to the rhc client".to_owned())
    );
    let list_request = fixture.management_request("GET", "/connection/999999");
    let title = "Unable to process input parameters".to_owned();
    assert_eq!(error_response(list_request).await, (400, title));
    let ping_response = json_text_response(management_post("/connection/ping")).await;
    let expected = r#"{"status":"disconnected","payload":null}"#;
    assert_eq!(ping_response, (OK, expected.to_owned()));
    for path in ["/connection/reconnect", "/connection/disconnect"] {
        let title = format!(
            "No connection found for node (999999:{})",
            fixture.own_org_client_id
        );
        assert_eq!(error_response(management_post(path)).await, (400, title));
    }
}

async fn management_list_groups_all_connections_by_account(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let mut other_client_ids = [
        fixture.other_org_client_id.clone(),
        fixture.satellite_id.clone(),
    ];
    other_client_ids.sort();
    let (status, page) = json_response(fixture.management_request("GET", "/connection")).await;
    assert_eq!(status, OK);
    let path = "/api/cloud-connector/v1/connection";
    assert_eq!(
        page,
        json!({
            "meta": {"count": 3},
            "links": {"first": format!("{path}?limit=1000&offset=0"),
                "last": format!("{path}?limit=1000&offset=0")},
            "data": [{"account": OWN_ACCOUNT, "connections": [fixture.own_org_client_id]},
                {"account": OTHER_ACCOUNT, "connections": other_client_ids}],
        })
    );
    // Offset, limit and count refer to connections, not to accounts.
    let page = json_response(fixture.management_request("GET", "/connection?offset=1&limit=1"))
        .await
        .1;
    assert_eq!(
        page["data"],
        json!([{"account": OTHER_ACCOUNT, "connections": [other_client_ids[0]]}])
    );
    assert_eq!(page["meta"]["count"], 3);
    assert_eq!(page["links"]["next"], format!("{path}?limit=1&offset=2"));
    assert_eq!(page["links"]["prev"], format!("{path}?limit=1&offset=0"));
    for invalid in ["offset=-1", "limit=x"] {
        let rejection =
            error_response(fixture.management_request("GET", &format!("/connection?{invalid}")))
                .await;
        assert_eq!(
            rejection,
            (400, "Unable to process input parameters".to_owned())
        );
    }
}

async fn management_list_of_an_account_contains_only_its_connections(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    let page = json_response(fixture.management_request("GET", "/connection/010101")).await;
    assert_eq!(
        (page.0, &page.1["data"]),
        (OK, &json!([fixture.own_org_client_id]))
    );
    let page = json_response(fixture.management_request("GET", "/connection/020202?limit=0"))
        .await
        .1;
    assert_eq!(
        (&page["meta"], &page["data"]),
        (&json!({"count": 2}), &json!([]))
    );
    let invalid_account = fixture.management_request("GET", "/connection/12a");
    assert_eq!(error_response(invalid_account).await.0, 404);
}

async fn v1_ping_sends_a_command_and_returns_the_recorded_status(mode: DeploymentMode) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    let node = |client_id: &str| json!({"account": OWN_ACCOUNT, "node_id": client_id});
    let ping_request = |body| {
        fixture
            .management_request("POST", "/connection/ping")
            .json(&body)
    };
    let ping_response = json_text_response(ping_request(node(&fixture.own_org_client_id))).await;
    assert_eq!(
        ping_response,
        (OK, r#"{"status":"connected","payload":null}"#.to_owned())
    );
    let ping_response = json_text_response(ping_request(node("unknown"))).await;
    assert_eq!(
        ping_response,
        (OK, r#"{"status":"disconnected","payload":null}"#.to_owned())
    );
    let (topic, message) = fixture.own_client.next_message().await;
    assert_eq!(
        topic,
        format!("redhat/insights/{}/control/in", fixture.own_org_client_id)
    );
    assert_eq!(message["type"], "command");
    assert_eq!(message["content"]["command"], "ping");
}

async fn v1_reconnect_sends_a_command_with_delay_and_message(mode: DeploymentMode) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    let mut body =
        json!({"account": OWN_ACCOUNT, "node_id": fixture.own_org_client_id, "message": "please"});
    for (delay, title) in [
        (Value::Null, INVALID_JSON_TITLE),
        (json!("5"), INVALID_JSON_TITLE),
        (json!(1.5), INVALID_JSON_TITLE),
        (json!(-1), "Delay field cannot be negative"),
    ] {
        body["delay"] = delay;
        let rejection = error_response(
            fixture
                .management_request("POST", "/connection/reconnect")
                .json(&body),
        )
        .await;
        assert_eq!(rejection, (400, title.to_owned()), "{body}");
    }
    for delay in [0, 5] {
        body["delay"] = json!(delay);
        let request = fixture
            .management_request("POST", "/connection/reconnect")
            .json(&body);
        assert_eq!(json_text_response(request).await, (OK, String::new()));
        let (topic, message) = fixture.own_client.next_message().await;
        assert_eq!(
            topic,
            format!("redhat/insights/{}/control/in", fixture.own_org_client_id)
        );
        assert_eq!(
            message["content"],
            json!({"command": "reconnect", "arguments": {"delay": delay.to_string()},
                "message": "please"})
        );
    }
}

async fn v1_disconnect_sends_a_command_with_the_message(mode: DeploymentMode) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    let body =
        json!({"account": OWN_ACCOUNT, "node_id": fixture.own_org_client_id, "message": "go"});
    let request = fixture
        .management_request("POST", "/connection/disconnect")
        .json(&body);
    assert_eq!(json_text_response(request).await, (OK, "{}".to_owned()));
    let (_, message) = fixture.own_client.next_message().await;
    assert_eq!(message["content"]["command"], "disconnect");
    assert_eq!(message["content"]["message"], "go");
}

async fn v1_command_to_an_unknown_client_returns_400_with_the_client_id(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[]).await;
    for client_id in [
        "unknown",
        &fixture.other_org_client_id,
        &fixture.tenantless_client_id,
    ] {
        for path in ["/connection/reconnect", "/connection/disconnect"] {
            let body = json!({"account": OWN_ACCOUNT, "node_id": client_id, "delay": 0});
            let title = format!("No connection found for node (010101:{client_id})");
            let rejection =
                error_response(fixture.management_request("POST", path).json(&body)).await;
            assert_eq!(rejection, (400, title));
        }
    }
}
