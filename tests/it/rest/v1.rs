//! v1 endpoints: messages and status by account number, and management.

use serde_json::{Value, json};

use super::{
    ApiFixture, OK, OTHER_ACCOUNT, OWN_ACCOUNT, error_response, json_response, text_response,
};
use crate::each_deployment;
use crate::support::Deployment;

each_deployment!(
    message_checks_body_then_account_then_directive_then_connection,
    connection_status_responses_match_exactly,
    unknown_account_returns_the_error_of_each_endpoint,
    management_lists_all_connections_grouped_by_account,
    management_lists_the_connections_of_an_account,
    ping_sends_a_command_and_returns_the_recorded_status,
    reconnect_command_contains_delay_and_message,
    disconnect_command_contains_the_message,
    command_to_an_unknown_client_returns_400_with_its_id,
);

const INVALID_JSON_TITLE: &str = "Unable to process json input";

async fn message_checks_body_then_account_then_directive_then_connection(deployment: Deployment) {
    let mut fixture = ApiFixture::start(deployment, &[]).await;
    let body = |account: &str, recipient: &str, directive: &str| {
        json!({"account": account, "recipient": recipient, "directive": directive,
            "metadata": {"a": "b"}, "payload": [1]})
    };
    for (request_body, expected) in [
        // An invalid body is reported before an account mismatch.
        (body(OTHER_ACCOUNT, "", ""), (400, INVALID_JSON_TITLE)),
        (
            json!({"account": OWN_ACCOUNT, "recipient": "x"}),
            (400, INVALID_JSON_TITLE),
        ),
        (
            json!({"account": OWN_ACCOUNT, "recipient": "x", "directive": 1}),
            (400, INVALID_JSON_TITLE),
        ),
        (Value::Null, (400, INVALID_JSON_TITLE)),
        (body(OTHER_ACCOUNT, "x", " "), (403, "Account mismatch")),
        (
            body(OWN_ACCOUNT, "x", " "),
            (400, "Directive field is empty"),
        ),
        (
            body(OWN_ACCOUNT, "x", "d"),
            (404, "No connection to the rhc client"),
        ),
        (
            body(OWN_ACCOUNT, &fixture.other_id, "d"),
            (404, "No connection to the rhc client"),
        ),
    ] {
        let (status, title) =
            error_response(fixture.v1(OWN_ACCOUNT, "/message", &request_body)).await;
        assert_eq!((status, title.as_str()), expected, "{request_body}");
    }
    let sent = json_response(fixture.v1(
        OWN_ACCOUNT,
        "/message",
        &body(OWN_ACCOUNT, &fixture.own_id, "d"),
    ))
    .await;
    assert_eq!(sent.0, 201);
    let (topic, message) = fixture.own_client.next_message().await;
    assert_eq!(topic, format!("redhat/insights/{}/data/in", fixture.own_id));
    assert_eq!(sent.1, json!({"id": message["message_id"]}));
    assert_eq!(message["directive"], "d");
    assert_eq!(message["metadata"], json!({"a": "b"}));
    assert_eq!(message["content"], json!([1]));
}

async fn connection_status_responses_match_exactly(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    let connected = concat!(
        r#"{"status":"connected","dispatchers":{"echo":{}},"#,
        r#""canonical_facts":{"fqdn":"raw.example"},"tags":{"make":"raw"}}"#
    );
    let disconnected = r#"{"status":"disconnected"}"#;
    let node = |account: &str, client_id: &str| json!({"account": account, "node_id": client_id});
    for (client_id, expected) in [
        (fixture.own_id.as_str(), connected),
        (&fixture.other_id, disconnected),
        (&fixture.tenantless_id, disconnected),
        ("unknown", disconnected),
        ("no\u{7}name", disconnected),
    ] {
        let body = node(OWN_ACCOUNT, client_id);
        let found = text_response(fixture.v1(OWN_ACCOUNT, "/connection_status", &body)).await;
        assert_eq!(found, (OK, expected.to_owned()), "{client_id}");
        let found =
            text_response(fixture.management("POST", "/connection/status").json(&body)).await;
        assert_eq!(found, (OK, expected.to_owned()), "{client_id}");
    }
    let mismatch = fixture.v1(
        OWN_ACCOUNT,
        "/connection_status",
        &node(OTHER_ACCOUNT, &fixture.other_id),
    );
    assert_eq!(
        error_response(mismatch).await,
        (403, "Account mismatch".to_owned())
    );
    // Management endpoints accept every account.
    let body = node(OTHER_ACCOUNT, &fixture.other_id);
    let found = json_response(fixture.management("POST", "/connection/status").json(&body)).await;
    assert_eq!(found.1["status"], "connected");
    for invalid in [
        json!({}),
        json!({"account": OWN_ACCOUNT}),
        json!({"account": "", "node_id": "x"}),
    ] {
        let rejection =
            error_response(fixture.v1(OWN_ACCOUNT, "/connection_status", &invalid)).await;
        assert_eq!(rejection, (400, INVALID_JSON_TITLE.to_owned()), "{invalid}");
    }
}

async fn unknown_account_returns_the_error_of_each_endpoint(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    let unknown_account = "999999";
    let node = json!({"account": unknown_account, "node_id": fixture.own_id, "delay": 1});
    let untranslated = (400, "Unable to translate account to org_id".to_owned());
    let status = fixture.v1(unknown_account, "/connection_status", &node);
    assert_eq!(error_response(status).await, untranslated);
    let management = |path: &str| fixture.management("POST", path).json(&node);
    assert_eq!(
        error_response(management("/connection/status")).await,
        untranslated
    );
    let message =
        json!({"account": unknown_account, "recipient": fixture.own_id, "directive": "d"});
    let sent = error_response(fixture.v1(unknown_account, "/message", &message)).await;
    assert_eq!(sent, (404, "No connection to the rhc client".to_owned()));
    let list = fixture.management("GET", "/connection/999999");
    let title = "Unable to process input parameters".to_owned();
    assert_eq!(error_response(list).await, (400, title));
    let pinged = text_response(management("/connection/ping")).await;
    let expected = r#"{"status":"disconnected","payload":null}"#;
    assert_eq!(pinged, (OK, expected.to_owned()));
    for path in ["/connection/reconnect", "/connection/disconnect"] {
        let title = format!("No connection found for node (999999:{})", fixture.own_id);
        assert_eq!(error_response(management(path)).await, (400, title));
    }
}

async fn management_lists_all_connections_grouped_by_account(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    let mut other_ids = [fixture.other_id.clone(), fixture.satellite_id.clone()];
    other_ids.sort();
    let (status, page) = json_response(fixture.management("GET", "/connection")).await;
    assert_eq!(status, OK);
    let path = "/api/cloud-connector/v1/connection";
    assert_eq!(
        page,
        json!({
            "meta": {"count": 3},
            "links": {"first": format!("{path}?limit=1000&offset=0"),
                "last": format!("{path}?limit=1000&offset=0")},
            "data": [{"account": OWN_ACCOUNT, "connections": [fixture.own_id]},
                {"account": OTHER_ACCOUNT, "connections": other_ids}],
        })
    );
    // Offset, limit and count refer to connections, not to accounts.
    let page = json_response(fixture.management("GET", "/connection?offset=1&limit=1"))
        .await
        .1;
    assert_eq!(
        page["data"],
        json!([{"account": OTHER_ACCOUNT, "connections": [other_ids[0]]}])
    );
    assert_eq!(page["meta"]["count"], 3);
    assert_eq!(page["links"]["next"], format!("{path}?limit=1&offset=2"));
    assert_eq!(page["links"]["prev"], format!("{path}?limit=1&offset=0"));
    for invalid in ["offset=-1", "limit=x"] {
        let rejection =
            error_response(fixture.management("GET", &format!("/connection?{invalid}"))).await;
        assert_eq!(
            rejection,
            (400, "Unable to process input parameters".to_owned())
        );
    }
}

async fn management_lists_the_connections_of_an_account(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    let page = json_response(fixture.management("GET", "/connection/010101")).await;
    assert_eq!((page.0, &page.1["data"]), (OK, &json!([fixture.own_id])));
    let page = json_response(fixture.management("GET", "/connection/020202?limit=0"))
        .await
        .1;
    assert_eq!(
        (&page["meta"], &page["data"]),
        (&json!({"count": 2}), &json!([]))
    );
    let path = fixture.management("GET", "/connection/12a");
    assert_eq!(error_response(path).await.0, 404);
}

async fn ping_sends_a_command_and_returns_the_recorded_status(deployment: Deployment) {
    let mut fixture = ApiFixture::start(deployment, &[]).await;
    let node = |client_id: &str| json!({"account": OWN_ACCOUNT, "node_id": client_id});
    let ping = |body| fixture.management("POST", "/connection/ping").json(&body);
    let pinged = text_response(ping(node(&fixture.own_id))).await;
    assert_eq!(
        pinged,
        (OK, r#"{"status":"connected","payload":null}"#.to_owned())
    );
    let pinged = text_response(ping(node("unknown"))).await;
    assert_eq!(
        pinged,
        (OK, r#"{"status":"disconnected","payload":null}"#.to_owned())
    );
    let (topic, message) = fixture.own_client.next_message().await;
    assert_eq!(
        topic,
        format!("redhat/insights/{}/control/in", fixture.own_id)
    );
    assert_eq!(message["type"], "command");
    assert_eq!(message["content"]["command"], "ping");
}

async fn reconnect_command_contains_delay_and_message(deployment: Deployment) {
    let mut fixture = ApiFixture::start(deployment, &[]).await;
    let mut body = json!({"account": OWN_ACCOUNT, "node_id": fixture.own_id, "message": "please"});
    for (delay, title) in [
        (Value::Null, INVALID_JSON_TITLE),
        (json!("5"), INVALID_JSON_TITLE),
        (json!(1.5), INVALID_JSON_TITLE),
        (json!(-1), "Delay field cannot be negative"),
    ] {
        body["delay"] = delay;
        let rejection = error_response(
            fixture
                .management("POST", "/connection/reconnect")
                .json(&body),
        )
        .await;
        assert_eq!(rejection, (400, title.to_owned()), "{body}");
    }
    for delay in [0, 5] {
        body["delay"] = json!(delay);
        let request = fixture
            .management("POST", "/connection/reconnect")
            .json(&body);
        assert_eq!(text_response(request).await, (OK, String::new()));
        let (topic, message) = fixture.own_client.next_message().await;
        assert_eq!(
            topic,
            format!("redhat/insights/{}/control/in", fixture.own_id)
        );
        assert_eq!(
            message["content"],
            json!({"command": "reconnect", "arguments": {"delay": delay.to_string()},
                "message": "please"})
        );
    }
}

async fn disconnect_command_contains_the_message(deployment: Deployment) {
    let mut fixture = ApiFixture::start(deployment, &[]).await;
    let body = json!({"account": OWN_ACCOUNT, "node_id": fixture.own_id, "message": "go"});
    let request = fixture
        .management("POST", "/connection/disconnect")
        .json(&body);
    assert_eq!(text_response(request).await, (OK, "{}".to_owned()));
    let (_, message) = fixture.own_client.next_message().await;
    assert_eq!(message["content"]["command"], "disconnect");
    assert_eq!(message["content"]["message"], "go");
}

async fn command_to_an_unknown_client_returns_400_with_its_id(deployment: Deployment) {
    let fixture = ApiFixture::start(deployment, &[]).await;
    for client_id in ["unknown", &fixture.other_id, &fixture.tenantless_id] {
        for path in ["/connection/reconnect", "/connection/disconnect"] {
            let body = json!({"account": OWN_ACCOUNT, "node_id": client_id, "delay": 0});
            let title = format!("No connection found for node (010101:{client_id})");
            let rejection = error_response(fixture.management("POST", path).json(&body)).await;
            assert_eq!(rejection, (400, title));
        }
    }
}
