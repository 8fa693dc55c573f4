//! The first generation: accounts, and management.

use serde_json::{Value, json};

use super::{ApiFixture, OK, THEM, US, answered, error, text_of};
use crate::each_deployment;
use crate::support::Deployment;

each_deployment!(
    a_message_is_sent_and_refused_in_the_order_body_account_directive_connection,
    the_status_of_a_connection_is_answered_as_callers_know_it,
    an_unknown_account_is_answered_as_each_endpoint_does,
    management_lists_everybody_by_account,
    management_lists_the_clients_of_an_account,
    a_ping_is_sent_and_answered_with_the_status,
    a_reconnect_reaches_the_client_with_its_delay_and_message,
    a_disconnect_reaches_the_client_with_its_message,
    a_command_for_nobody_names_whom_it_did_not_find,
);

const BAD_JSON: &str = "Unable to process json input";

async fn a_message_is_sent_and_refused_in_the_order_body_account_directive_connection(
    subject: Deployment,
) {
    let mut world = ApiFixture::start(subject, &[]).await;
    let body = |account: &str, recipient: &str, directive: &str| {
        json!({"account": account, "recipient": recipient, "directive": directive,
            "metadata": {"a": "b"}, "payload": [1]})
    };
    let us = US.1;
    for (sent, expected) in [
        // The body comes first, whatever else is wrong.
        (body(THEM.1, "", ""), (400, BAD_JSON)),
        (json!({"account": us, "recipient": "x"}), (400, BAD_JSON)),
        (
            json!({"account": us, "recipient": "x", "directive": 1}),
            (400, BAD_JSON),
        ),
        (Value::Null, (400, BAD_JSON)),
        (body(THEM.1, "x", " "), (403, "Account mismatch")),
        (body(us, "x", " "), (400, "Directive field is empty")),
        (body(us, "x", "d"), (404, "No connection to the rhc client")),
        (
            body(us, &world.theirs, "d"),
            (404, "No connection to the rhc client"),
        ),
    ] {
        let (status, title) = error(world.v1(us, "/message", &sent)).await;
        assert_eq!((status, title.as_str()), expected, "{sent}");
    }
    let sent = answered(world.v1(us, "/message", &body(us, &world.ours, "d"))).await;
    assert_eq!(sent.0, 201);
    let (topic, message) = world.client.message().await;
    assert_eq!(topic, format!("redhat/insights/{}/data/in", world.ours));
    assert_eq!(sent.1, json!({"id": message["message_id"]}));
    assert_eq!(message["directive"], "d");
    assert_eq!(message["metadata"], json!({"a": "b"}));
    assert_eq!(message["content"], json!([1]));
}

async fn the_status_of_a_connection_is_answered_as_callers_know_it(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let connected = concat!(
        r#"{"status":"connected","dispatchers":{"echo":{}},"#,
        r#""canonical_facts":{"fqdn":"raw.example"},"tags":{"make":"raw"}}"#
    );
    let disconnected = r#"{"status":"disconnected"}"#;
    let node = |account: &str, name: &str| json!({"account": account, "node_id": name});
    for (name, expected) in [
        (world.ours.as_str(), connected),
        (&world.theirs, disconnected),
        (&world.nobodys, disconnected),
        ("nobody", disconnected),
        ("no\u{7}name", disconnected),
    ] {
        let body = node(US.1, name);
        let found = text_of(world.v1(US.1, "/connection_status", &body)).await;
        assert_eq!(found, (OK, expected.to_owned()), "{name}");
        let found = text_of(world.managed("POST", "/connection/status").json(&body)).await;
        assert_eq!(found, (OK, expected.to_owned()), "{name}");
    }
    let mismatch = world.v1(US.1, "/connection_status", &node(THEM.1, &world.theirs));
    assert_eq!(error(mismatch).await, (403, "Account mismatch".to_owned()));
    // Management checks no account.
    let body = node(THEM.1, &world.theirs);
    let found = answered(world.managed("POST", "/connection/status").json(&body)).await;
    assert_eq!(found.1["status"], "connected");
    for bad in [
        json!({}),
        json!({"account": US.1}),
        json!({"account": "", "node_id": "x"}),
    ] {
        let refused = error(world.v1(US.1, "/connection_status", &bad)).await;
        assert_eq!(refused, (400, BAD_JSON.to_owned()), "{bad}");
    }
}

async fn an_unknown_account_is_answered_as_each_endpoint_does(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let unknown = "999999";
    let node = json!({"account": unknown, "node_id": world.ours, "delay": 1});
    let untranslated = (400, "Unable to translate account to org_id".to_owned());
    let status = world.v1(unknown, "/connection_status", &node);
    assert_eq!(error(status).await, untranslated);
    let managed = |path: &str| world.managed("POST", path).json(&node);
    assert_eq!(error(managed("/connection/status")).await, untranslated);
    let message = json!({"account": unknown, "recipient": world.ours, "directive": "d"});
    let sent = error(world.v1(unknown, "/message", &message)).await;
    assert_eq!(sent, (404, "No connection to the rhc client".to_owned()));
    let list = world.managed("GET", "/connection/999999");
    let title = "Unable to process input parameters".to_owned();
    assert_eq!(error(list).await, (400, title));
    let pinged = text_of(managed("/connection/ping")).await;
    let expected = r#"{"status":"disconnected","payload":null}"#;
    assert_eq!(pinged, (OK, expected.to_owned()));
    for path in ["/connection/reconnect", "/connection/disconnect"] {
        let title = format!("No connection found for node (999999:{})", world.ours);
        assert_eq!(error(managed(path)).await, (400, title));
    }
}

async fn management_lists_everybody_by_account(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let mut theirs = [world.theirs.clone(), world.satellite.clone()];
    theirs.sort();
    let (status, page) = answered(world.managed("GET", "/connection")).await;
    assert_eq!(status, OK);
    let path = "/api/cloud-connector/v1/connection";
    assert_eq!(
        page,
        json!({
            "meta": {"count": 3},
            "links": {"first": format!("{path}?limit=1000&offset=0"),
                "last": format!("{path}?limit=1000&offset=0")},
            "data": [{"account": US.1, "connections": [world.ours]},
                {"account": THEM.1, "connections": theirs}],
        })
    );
    // Offset, limit and count are of connections.
    let page = answered(world.managed("GET", "/connection?offset=1&limit=1"))
        .await
        .1;
    assert_eq!(
        page["data"],
        json!([{"account": THEM.1, "connections": [theirs[0]]}])
    );
    assert_eq!(page["meta"]["count"], 3);
    assert_eq!(page["links"]["next"], format!("{path}?limit=1&offset=2"));
    assert_eq!(page["links"]["prev"], format!("{path}?limit=1&offset=0"));
    for bad in ["offset=-1", "limit=x"] {
        let refused = error(world.managed("GET", &format!("/connection?{bad}"))).await;
        assert_eq!(
            refused,
            (400, "Unable to process input parameters".to_owned())
        );
    }
}

async fn management_lists_the_clients_of_an_account(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    let page = answered(world.managed("GET", "/connection/010101")).await;
    assert_eq!((page.0, &page.1["data"]), (OK, &json!([world.ours])));
    let page = answered(world.managed("GET", "/connection/020202?limit=0"))
        .await
        .1;
    assert_eq!(
        (&page["meta"], &page["data"]),
        (&json!({"count": 2}), &json!([]))
    );
    let path = world.managed("GET", "/connection/12a");
    assert_eq!(error(path).await.0, 404);
}

async fn a_ping_is_sent_and_answered_with_the_status(subject: Deployment) {
    let mut world = ApiFixture::start(subject, &[]).await;
    let node = |name: &str| json!({"account": US.1, "node_id": name});
    let ping = |body| world.managed("POST", "/connection/ping").json(&body);
    let pinged = text_of(ping(node(&world.ours))).await;
    assert_eq!(
        pinged,
        (OK, r#"{"status":"connected","payload":null}"#.to_owned())
    );
    let gone = text_of(ping(node("nobody"))).await;
    assert_eq!(
        gone,
        (OK, r#"{"status":"disconnected","payload":null}"#.to_owned())
    );
    let (topic, message) = world.client.message().await;
    assert_eq!(topic, format!("redhat/insights/{}/control/in", world.ours));
    assert_eq!(message["type"], "command");
    assert_eq!(message["content"]["command"], "ping");
}

async fn a_reconnect_reaches_the_client_with_its_delay_and_message(subject: Deployment) {
    let mut world = ApiFixture::start(subject, &[]).await;
    let mut body = json!({"account": US.1, "node_id": world.ours, "message": "please"});
    for (delay, title) in [
        (Value::Null, BAD_JSON),
        (json!("5"), BAD_JSON),
        (json!(1.5), BAD_JSON),
        (json!(-1), "Delay field cannot be negative"),
    ] {
        body["delay"] = delay;
        let refused = error(world.managed("POST", "/connection/reconnect").json(&body)).await;
        assert_eq!(refused, (400, title.to_owned()), "{body}");
    }
    for delay in [0, 5] {
        body["delay"] = json!(delay);
        let request = world.managed("POST", "/connection/reconnect").json(&body);
        assert_eq!(text_of(request).await, (OK, String::new()));
        let (topic, message) = world.client.message().await;
        assert_eq!(topic, format!("redhat/insights/{}/control/in", world.ours));
        assert_eq!(
            message["content"],
            json!({"command": "reconnect", "arguments": {"delay": delay.to_string()},
                "message": "please"})
        );
    }
}

async fn a_disconnect_reaches_the_client_with_its_message(subject: Deployment) {
    let mut world = ApiFixture::start(subject, &[]).await;
    let body = json!({"account": US.1, "node_id": world.ours, "message": "go"});
    let request = world.managed("POST", "/connection/disconnect").json(&body);
    assert_eq!(text_of(request).await, (OK, "{}".to_owned()));
    let (_, message) = world.client.message().await;
    assert_eq!(message["content"]["command"], "disconnect");
    assert_eq!(message["content"]["message"], "go");
}

async fn a_command_for_nobody_names_whom_it_did_not_find(subject: Deployment) {
    let world = ApiFixture::start(subject, &[]).await;
    for name in ["nobody", &world.theirs, &world.nobodys] {
        for path in ["/connection/reconnect", "/connection/disconnect"] {
            let body = json!({"account": US.1, "node_id": name, "delay": 0});
            let title = format!("No connection found for node (010101:{name})");
            let refused = error(world.managed("POST", path).json(&body)).await;
            assert_eq!(refused, (400, title));
        }
    }
}
