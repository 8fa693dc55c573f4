//! Tests of the v2 actions on a client: ping, check, reconnect and disconnect.

use serde_json::{Value, json};

use super::{ApiFixture, OK, OWN_ACCOUNT, OWN_ORG, error_response, json_response};
use test_support::each_deployment;
use test_support::mqtt::{Connect, RawClient, control_out_topic, data_out_topic};
use test_support::{Deployment, DeploymentMode, eventually, unique_id};

each_deployment!(
    ping_waits_for_the_pong_to_its_message_id_and_returns_the_round_trip_time,
    ping_returns_504_if_no_pong_arrives_and_404_for_unknown_clients,
    check_reads_the_status_at_level_1_pings_at_level_2_and_sends_a_message_at_level_3,
    check_returns_the_error_that_a_handshake_client_reports,
    reconnect_sends_a_command_and_the_client_is_still_listed,
    disconnect_sends_a_command_and_removes_the_connection,
);

/// Returns the v2 path of an action on a client. `action` may contain a query string.
fn action_path(client_id: &str, action: &str) -> String {
    format!("/connections/{client_id}/{action}")
}

/// Returns the response of a client to the ping with this message id.
fn pong(ping_id: &Value) -> Value {
    json!({"type": "event", "message_id": "p", "response_to": ping_id, "version": 1,
        "sent": "2026-01-02T15:04:05Z", "content": "pong"})
}

async fn ping_waits_for_the_pong_to_its_message_id_and_returns_the_round_trip_time(
    mode: DeploymentMode,
) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    let own_org_client_id = fixture.own_org_client_id.clone();
    // Send two pings at the same time. Each request waits for the pong to its own message id.
    let pings = ["ping?timeout=25", "ping?timeout=20"].map(|action| {
        let request = fixture.v2_request(OWN_ORG, "POST", &action_path(&own_org_client_id, action));
        tokio::spawn(json_response(request))
    });
    let mut ping_ids = Vec::new();
    for _ in 0..2 {
        let (topic, ping) = fixture.own_client.next_message().await;
        assert_eq!(
            topic,
            format!("redhat/insights/{own_org_client_id}/control/in")
        );
        assert_eq!(ping["content"]["command"], "ping");
        ping_ids.push(ping["message_id"].clone());
    }
    fixture
        .own_client
        .must_publish(
            &control_out_topic(&own_org_client_id),
            &pong(&json!("another-id")),
        )
        .await;
    for ping_id in ping_ids.iter().rev() {
        fixture
            .own_client
            .must_publish(&control_out_topic(&own_org_client_id), &pong(ping_id))
            .await;
    }
    for ping in pings {
        let (status, body) = ping.await.unwrap();
        assert_eq!(
            (status, &body["status"]),
            (OK, &json!("connected")),
            "{body}"
        );
        assert!(ping_ids.contains(&body["id"]), "{body}");
        let round_trip_ms = body["round_trip_ms"].as_f64().unwrap();
        assert!(round_trip_ms > 0.0 && round_trip_ms < 25_000.0, "{body}");
    }
    for invalid in ["0", "26", "-1", "x", "1.5"] {
        let rejection = error_response(fixture.v2_request(
            OWN_ORG,
            "POST",
            &action_path(&own_org_client_id, &format!("ping?timeout={invalid}")),
        ));
        assert_eq!(
            rejection.await,
            (400, "Invalid request".to_owned()),
            "{invalid}"
        );
    }
}

async fn ping_returns_504_if_no_pong_arrives_and_404_for_unknown_clients(mode: DeploymentMode) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    let request = fixture.v2_request(
        OWN_ORG,
        "POST",
        &action_path(&fixture.own_org_client_id, "ping?timeout=1"),
    );
    let ping_request = tokio::spawn(json_response(request));
    let (_, ping) = fixture.own_client.next_message().await;
    let (status, body) = ping_request.await.unwrap();
    assert_eq!(
        (status, &body["title"]),
        (504, &json!("Ping failed")),
        "{body}"
    );
    assert_eq!(body["id"], ping["message_id"]);
    for hidden_client_id in [
        "unknown",
        &fixture.other_org_client_id,
        &fixture.satellite_id,
        &fixture.tenantless_client_id,
    ] {
        let rejection = error_response(fixture.v2_request(
            OWN_ORG,
            "POST",
            &action_path(hidden_client_id, "ping"),
        ))
        .await;
        assert_eq!(
            rejection,
            (404, "No connection to the rhc client".to_owned())
        );
    }
}

async fn check_reads_the_status_at_level_1_pings_at_level_2_and_sends_a_message_at_level_3(
    mode: DeploymentMode,
) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    let own_org_client_id = fixture.own_org_client_id.clone();
    let check_request = |client: &str, query: &str| {
        fixture.v2_request(
            OWN_ORG,
            "POST",
            &action_path(client, &format!("check{query}")),
        )
    };
    // A check at level 1 reads the recorded status.
    for query in ["", "?level=", "?level=1"] {
        let connected = json!({"level": 1, "status": "connected"});
        assert_eq!(
            json_response(check_request(&own_org_client_id, query)).await,
            (OK, connected)
        );
    }
    for client in [
        "unknown",
        &fixture.other_org_client_id,
        &fixture.tenantless_client_id,
    ] {
        for (level, query) in [
            (1, "?level=1"),
            (2, "?level=2"),
            (3, "?level=3&directive=x"),
        ] {
            let disconnected = json!({"level": level, "status": "disconnected"});
            assert_eq!(
                json_response(check_request(client, query)).await,
                (OK, disconnected)
            );
        }
    }
    // The client does not respond to this ping.
    let check_result = json_response(check_request(&own_org_client_id, "?level=2&timeout=1"))
        .await
        .1;
    assert_eq!(
        (&check_result["status"], &check_result["answered"]),
        (&json!("connected"), &json!(false))
    );
    let level_2 = check_request(&own_org_client_id, "?level=2&timeout=20");
    let level_3 = check_request(&own_org_client_id, "?level=3&directive=rhc:ping&timeout=20");
    // Skip the ping of the previous check, to which the client did not respond.
    fixture.own_client.next_message().await;
    // A check at level 2 sends a ping.
    let level_2 = tokio::spawn(json_response(level_2));
    let (_, ping) = fixture.own_client.next_message().await;
    fixture
        .own_client
        .must_publish(
            &control_out_topic(&own_org_client_id),
            &pong(&ping["message_id"]),
        )
        .await;
    let level_2 = level_2.await.unwrap().1;
    assert_eq!(
        (&level_2["answered"], &level_2["id"]),
        (&json!(true), &ping["message_id"])
    );
    assert!(level_2["round_trip_ms"].is_number(), "{level_2}");
    // A check at level 3 sends a message to an application on the client.
    let level_3 = tokio::spawn(json_response(level_3));
    let (topic, message) = fixture.own_client.next_message().await;
    assert_eq!(
        topic,
        format!("redhat/insights/{own_org_client_id}/data/in")
    );
    assert_eq!(message["directive"], "rhc:ping");
    let response = json!({"type": "data", "message_id": "d", "response_to": message["message_id"],
        "version": 1, "sent": "2026-01-02T15:04:05Z", "directive": "rhc:ping", "metadata": {},
        "content": "pong"});
    fixture
        .own_client
        .must_publish(&data_out_topic(&own_org_client_id), &response)
        .await;
    let level_3 = level_3.await.unwrap().1;
    assert_eq!(
        (&level_3["level"], &level_3["answered"]),
        (&json!(3), &json!(true))
    );
    for invalid in [
        "?level=0",
        "?level=4",
        "?level=x",
        "?level=3",
        "?level=3&directive=%20",
    ] {
        let rejection = error_response(fixture.v2_request(
            OWN_ORG,
            "POST",
            &action_path(&own_org_client_id, &format!("check{invalid}")),
        ))
        .await;
        assert_eq!(rejection, (400, "Invalid request".to_owned()), "{invalid}");
    }
}

async fn check_returns_the_error_that_a_handshake_client_reports(mode: DeploymentMode) {
    let fixture = ApiFixture::start(mode, &[("tenant.default_org_id", OWN_ORG)]).await;
    let client_id = unique_id("proxy");
    let mut client = RawClient::connect(
        &fixture.deployment.mqtt_address(),
        &Connect::new(&client_id),
    )
    .await;
    client
        .subscribe(&format!("redhat/insights/out/{client_id}"))
        .await;
    let handshake = json!({"type": "host-handshake", "message_id": "h1", "version": 1,
        "sent": "2026-01-02T15:04:05Z", "payload": {"canonical_facts": {"fqdn": "h.example"}}});
    let topic = format!("redhat/insights/in/{client_id}");
    client
        .publish_retained(&topic, handshake.to_string().as_bytes())
        .await;
    eventually("the client's row", || fixture.deployment.row(&client_id)).await;
    let rejection =
        error_response(fixture.v2_request(OWN_ORG, "POST", &action_path(&client_id, "ping"))).await;
    assert_eq!(rejection, (409, "Ping failed".to_owned()));
    let path = action_path(
        &client_id,
        "check?level=3&directive=catalog:ping&timeout=20",
    );
    let check_task = tokio::spawn(json_response(fixture.v2_request(OWN_ORG, "POST", &path)));
    let (_, message) = client.next_message().await;
    let response = json!({"type": "message-error", "message_id": "e", "version": 1,
        "sent": "2026-01-02T15:04:05Z", "in_response_to": message["message_id"],
        "payload": {"details": "no such directive"}});
    client.must_publish(&topic, &response).await;
    let (status, checked) = check_task.await.unwrap();
    assert_eq!(
        (status, &checked["answered"]),
        (OK, &json!(true)),
        "{checked}"
    );
    assert_eq!(checked["client_error"], "no such directive");
    client.publish_retained(&topic, b"").await;
}

async fn reconnect_sends_a_command_and_the_client_is_still_listed(mode: DeploymentMode) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    let reconnect_request = |client: &str, body: Value| {
        fixture
            .v2_request(OWN_ORG, "POST", &action_path(client, "reconnect"))
            .json(&body)
    };
    let (status, response) = json_response(reconnect_request(
        &fixture.own_org_client_id,
        json!({"delay": 0.0, "message": "maintenance"}),
    ))
    .await;
    assert_eq!(status, OK);
    let invalid_bodies = [
        (
            json!({"delay": -1}),
            (400, "Delay field cannot be negative"),
        ),
        (json!({}), (400, "Unable to process json input")),
        (json!({"delay": "5"}), (400, "Unable to process json input")),
        (json!({"delay": 1.5}), (400, "Unable to process json input")),
    ];
    for (body, (status, title)) in invalid_bodies {
        assert_eq!(
            error_response(reconnect_request(&fixture.own_org_client_id, body)).await,
            (status, title.to_owned())
        );
    }
    for hidden_client_id in [
        "unknown",
        &fixture.other_org_client_id,
        &fixture.satellite_id,
        &fixture.tenantless_client_id,
    ] {
        assert_eq!(
            error_response(reconnect_request(hidden_client_id, json!({"delay": 1})))
                .await
                .0,
            404
        );
    }
    let (_, command) = fixture.own_client.next_message().await;
    assert_eq!(response, json!({"id": command["message_id"]}));
    let content =
        json!({"command": "reconnect", "arguments": {"delay": "0"}, "message": "maintenance"});
    assert_eq!(command["content"], content);
    assert!(
        fixture
            .deployment
            .row(&fixture.own_org_client_id)
            .await
            .is_some()
    );
}

async fn disconnect_sends_a_command_and_removes_the_connection(mode: DeploymentMode) {
    let mut fixture = ApiFixture::start(mode, &[]).await;
    let own_org_client_id = fixture.own_org_client_id.clone();
    for hidden_client_id in [
        "unknown",
        &fixture.other_org_client_id,
        &fixture.satellite_id,
        &fixture.tenantless_client_id,
    ] {
        let request = fixture.v2_request(
            OWN_ORG,
            "POST",
            &action_path(hidden_client_id, "disconnect"),
        );
        assert_eq!(error_response(request).await.0, 404);
    }
    let invalid_request = fixture
        .v2_request(
            OWN_ORG,
            "POST",
            &action_path(&own_org_client_id, "disconnect"),
        )
        .body("[]");
    assert_eq!(error_response(invalid_request).await.0, 400);
    let (status, response) = json_response(fixture.v2_request(
        OWN_ORG,
        "POST",
        &action_path(&own_org_client_id, "disconnect"),
    ))
    .await;
    assert_eq!(status, OK);
    let (_, command) = fixture.own_client.next_message().await;
    assert_eq!(response, json!({"id": command["message_id"]}));
    let content = json!({"command": "disconnect", "arguments": null, "message": ""});
    assert_eq!(command["content"], content);
    let status = json_response(fixture.v2_request(
        OWN_ORG,
        "GET",
        &action_path(&own_org_client_id, "status"),
    ))
    .await
    .1;
    assert_eq!(status, json!({"status": "disconnected"}));
    // The MQTT connection is still open. A heartbeat adds the client to the list again.
    fixture
        .own_client
        .publish_heartbeat(&data_out_topic(&own_org_client_id))
        .await;
    eventually("the client's row", || {
        fixture.deployment.row(&own_org_client_id)
    })
    .await;
    // The v1 disconnect endpoint also removes the connection.
    let node = json!({"account": OWN_ACCOUNT, "node_id": own_org_client_id, "message": "bye"});
    let request = fixture
        .management_request("POST", "/connection/disconnect")
        .json(&node);
    assert_eq!(json_response(request).await, (OK, json!({})));
    assert!(fixture.deployment.row(&own_org_client_id).await.is_none());
}

#[tokio::test]
async fn in_distributed_mode_each_pong_reaches_the_process_that_sent_the_ping() {
    use test_support::cluster::DEFAULT_ORG_ID;
    let deployment = Deployment::distributed(&[("tenant.default_org_id", DEFAULT_ORG_ID)]).await;
    let Deployment::Distributed(distributed) = &deployment else {
        unreachable!("Deployment::distributed creates this variant");
    };
    let other_processes = [
        distributed.cluster.start(&["api"]).await,
        distributed.cluster.start(&["api"]).await,
    ];
    for process in &other_processes {
        eventually("readiness", || async {
            let response = process
                .unauthenticated_request("GET", "/readiness")
                .send()
                .await
                .unwrap();
            (response.status() == 200).then_some(())
        })
        .await;
    }
    let client_id = unique_id("pinged");
    let mut client = super::connect_client(&deployment, &client_id, "echo").await;
    let ping_from = |process: &test_support::cluster::ConnectorProcess| {
        let request = process.request(
            "POST",
            &format!("/v2{}", action_path(&client_id, "ping?timeout=20")),
        );
        tokio::spawn(json_response(request))
    };
    let pings = [
        ping_from(&distributed.process),
        ping_from(&other_processes[0]),
        ping_from(&other_processes[1]),
    ];
    let mut ping_ids = Vec::new();
    for _ in &pings {
        ping_ids.push(client.next_message().await.1["message_id"].clone());
    }
    for ping_id in ping_ids.iter().rev() {
        client
            .must_publish(&control_out_topic(&client_id), &pong(ping_id))
            .await;
    }
    let mut response_ids = Vec::new();
    for ping in pings {
        let (status, body) = ping.await.unwrap();
        assert_eq!(status, OK, "{body}");
        response_ids.push(body["id"].clone());
    }
    ping_ids.sort_by_key(Value::to_string);
    response_ids.sort_by_key(Value::to_string);
    assert_eq!(ping_ids, response_ids);
}
