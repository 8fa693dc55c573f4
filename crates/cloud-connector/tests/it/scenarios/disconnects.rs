//! Clients whose connection ended, or was taken over.

use serde_json::{Value, json};

use super::{CONNECTED, ORG, Scenario};
use test_support::mqtt::{
    Connect, control_out_topic, data_out_topic, offline_message, online_message,
};
use test_support::{Deployment, DeploymentMode, each_deployment, eventually, unique_id};

each_deployment!(
    client_that_sends_an_offline_message_has_left,
    client_whose_connection_breaks_has_a_last_will,
    client_that_is_connected_when_the_broker_dies,
    second_connection_with_the_same_id_is_only_in_the_history,
    client_that_a_caller_disconnects_returns_with_its_next_heartbeat,
    client_that_did_not_respond_to_pings_has_expired,
    reconnect_that_changes_content_is_an_update,
);

const LEFT: (&str, &str) = ("offline", "client");
const LEFT_SUGGESTION: &str = "Check whether the machine is switched off or the client program was \
     stopped. Start the client program to connect the client again.";

async fn client_that_sends_an_offline_message_has_left(mode: DeploymentMode) {
    let mut scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("left");
    let mut client = scenario.connect(&client_id).await;
    let mut offline = offline_message();
    offline["sent"] = json!(jiff::Timestamp::now().to_string());
    offline["message_id"] = json!(unique_id("offline"));
    let topic = control_out_topic(&client_id);
    client.must_publish(&topic, &offline).await;
    client.disconnect().await;
    let details = scenario
        .wait_for_details(ORG, &client_id, "disconnected")
        .await;
    assert_eq!(details["reason"], "client");
    scenario
        .check_transitions(ORG, &client_id, &[CONNECTED, LEFT])
        .await;
    let summary = "The client of organization 10001 has been disconnected since TIME: the client \
         closed its connection.";
    let diagnosis = scenario
        .check_why(&client_id, "disconnected", summary, LEFT_SUGGESTION)
        .await;
    assert_eq!(diagnosis["reason"], "client");
    assert_eq!(diagnosis["org_id"], ORG);
    assert_eq!(diagnosis["disconnected_at"], details["disconnected_at"]);
    let event = &scenario.events_of(ORG, &client_id)[1];
    assert_eq!(event.data["dispatchers"], json!({"echo": {}}));
    assert_eq!(event.data["time"], details["disconnected_at"]);
}

#[tokio::test]
async fn embedded_client_that_sends_a_disconnect_packet_has_left() {
    let mut scenario = Scenario::start(DeploymentMode::Embedded, &[]).await;
    let client_id = unique_id("left");
    let client = scenario.connect(&client_id).await;
    client.disconnect().await;
    scenario
        .wait_for_details(ORG, &client_id, "disconnected")
        .await;
    scenario
        .check_transitions(ORG, &client_id, &[CONNECTED, LEFT])
        .await;
    let summary = "The client of organization 10001 has been disconnected since TIME: the client \
         closed its connection.";
    scenario
        .check_why(&client_id, "disconnected", summary, LEFT_SUGGESTION)
        .await;
}

async fn client_whose_connection_breaks_has_a_last_will(mode: DeploymentMode) {
    let mut scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("will");
    let connect = Connect::new(&client_id).offline_will();
    let client = scenario.connect_with(&connect).await;
    scenario
        .wait_for_details(ORG, &client_id, "connected")
        .await;
    drop(client);
    let details = scenario
        .wait_for_details(ORG, &client_id, "disconnected")
        .await;
    let broken = ("offline", "will");
    scenario
        .check_transitions(ORG, &client_id, &[CONNECTED, broken])
        .await;
    let summary = "The client of organization 10001 has been disconnected since TIME: the connection \
         was lost, and the broker published the last will of the client.";
    let suggestion = "Check that the machine is running and that it can reach the broker. The client \
         connects again by itself as soon as it can.";
    let suggestion = scenario.with_broker_hint(suggestion);
    let diagnosis = scenario
        .check_why(&client_id, "disconnected", summary, &suggestion)
        .await;
    assert_eq!(diagnosis["reason"], "will");
    // The client was seen before the broker noticed the lost connection.
    let time = |value: &Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert!(time(&details["last_seen"]) <= time(&details["disconnected_at"]));
}

async fn client_that_is_connected_when_the_broker_dies(mode: DeploymentMode) {
    let mut scenario = Scenario::start(mode, &[("broker.reconnect_grace", "1s")]).await;
    let client_id = unique_id("broker");
    let client = scenario.connect(&client_id).await;
    if let Deployment::Distributed(distributed) = &scenario.deployment {
        let mosquitto = &distributed.cluster.mosquitto;
        mosquitto.kill().await;
        drop(client);
        distributed.process.wait_until_not_ready().await;
        mosquitto.start_process().await;
        distributed.process.wait_until_ready().await;
        // The broker has lost the last will. The liveness sweep pings the client later. Until then, the
        // connector knows only that the client was connected.
        let diagnosis = scenario.diagnosis(&client_id).await;
        assert_eq!(diagnosis["state"], "connected");
        assert_eq!(diagnosis["broker_rejections"], Value::Null);
        let _client = scenario.connect_with(&Connect::new(&client_id)).await;
        scenario
            .check_transitions(ORG, &client_id, &[CONNECTED])
            .await;
        return;
    }
    scenario.restart().await;
    drop(client);
    // Before the startup sweep, the client cannot be reached, and the reason is not known.
    let (_, details) = scenario.details(ORG, &client_id).await;
    assert_eq!(details["status"], "disconnected");
    let restart = ("offline", "broker-restart");
    scenario
        .check_transitions(ORG, &client_id, &[CONNECTED, restart])
        .await;
    let summary = "The client of organization 10001 has been disconnected since TIME: the client has \
         not reconnected after a restart of the broker.";
    let suggestion = "Check that the machine is running and that it can reach the broker. Other clients \
         have reconnected by themselves; otherwise restart the client program on the machine.";
    let diagnosis = scenario
        .check_why(&client_id, "disconnected", summary, suggestion)
        .await;
    assert_eq!(diagnosis["reason"], "broker-restart");
}

#[tokio::test]
async fn embedded_client_that_reconnects_after_a_restart_has_no_event() {
    let mut scenario = Scenario::start(
        DeploymentMode::Embedded,
        &[("broker.reconnect_grace", "1h")],
    )
    .await;
    let client_id = unique_id("returning");
    let client = scenario.connect(&client_id).await;
    scenario.restart().await;
    drop(client);
    let summary = "The client of organization 10001 has been disconnected since TIME: the client has not \
         reconnected since the service was restarted.";
    let suggestion = "Check that the machine is running and that it can reach the broker. After a restart \
         of the service, clients need up to broker.reconnect_grace to reconnect.";
    scenario
        .check_why(&client_id, "disconnected", summary, suggestion)
        .await;
    let _client = scenario.connect(&client_id).await;
    scenario
        .check_transitions(ORG, &client_id, &[CONNECTED])
        .await;
}

async fn second_connection_with_the_same_id_is_only_in_the_history(mode: DeploymentMode) {
    let mut scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("twice");
    let mut first = scenario.connect(&client_id).await;
    let (_, before) = scenario.details(ORG, &client_id).await;
    let _second = scenario.connect(&client_id).await;
    first.wait_for_close().await;
    if scenario.deployment.has_external_broker() {
        // The client has no last will, so the connector cannot notice the takeover: the second online
        // message changes nothing.
        scenario
            .check_transitions(ORG, &client_id, &[CONNECTED])
            .await;
    } else {
        let takeover = ("online", "takeover");
        scenario
            .check_transitions(ORG, &client_id, &[CONNECTED, takeover])
            .await;
        let (_, after) = scenario.details(ORG, &client_id).await;
        assert_eq!(after["connected_since"], before["connected_since"]);
        assert_eq!(
            (&before["reconnects"], &after["reconnects"]),
            (&json!(0), &json!(1))
        );
    }
    let summary = "The client has been connected to organization 10001 since TIME.";
    scenario
        .check_why(&client_id, "connected", summary, "")
        .await;
}

async fn client_that_a_caller_disconnects_returns_with_its_next_heartbeat(mode: DeploymentMode) {
    let mut scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("told");
    let mut client = scenario.connect(&client_id).await;
    let topic = format!("redhat/insights/{client_id}/control/in");
    assert!(client.subscribe(&topic).await <= 1);
    let path = format!("/connections/{client_id}/disconnect");
    let request = scenario.request("POST", "tenant", super::TENANT_SECRET, &path);
    let response = request
        .header("x-rh-cloud-connector-org-id", ORG)
        .json(&json!({}))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200, "{}", response.text().await.unwrap());
    let (_, command) = client.next_message().await;
    assert_eq!(command["content"]["command"], "disconnect");
    let disconnected = ("offline", "disconnected");
    scenario
        .check_transitions(ORG, &client_id, &[CONNECTED, disconnected])
        .await;
    let summary = "The client of organization 10001 has been disconnected since TIME: a caller of the \
         API disconnected the client.";
    let suggestion = "The audit log contains the caller and the time of the request. The client does \
         not connect again by itself: start the client program on the machine again.";
    scenario
        .check_why(&client_id, "disconnected", summary, suggestion)
        .await;
    // The client has ignored the command.
    client.publish_heartbeat(&data_out_topic(&client_id)).await;
    let heartbeat = ("online", "heartbeat");
    scenario
        .check_transitions(ORG, &client_id, &[CONNECTED, disconnected, heartbeat])
        .await;
    assert_eq!(scenario.why(&client_id).await.code, Some(0));
}

async fn client_that_did_not_respond_to_pings_has_expired(mode: DeploymentMode) {
    let scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("expired");
    let mut client = scenario.connect(&client_id).await;
    client
        .must_publish(&control_out_topic(&client_id), &offline_message())
        .await;
    scenario
        .wait_for_details(ORG, &client_id, "disconnected")
        .await;
    // The liveness sweep stores this reason.
    scenario
        .deployment
        .execute("UPDATE disconnected_clients SET reason = 'expired'")
        .await;
    let (_, details) = scenario.details(ORG, &client_id).await;
    assert_eq!(details["reason"], "expired");
    let summary = "The client of organization 10001 has been disconnected since TIME: the client did not \
         respond to pings.";
    let suggestion = "Check whether the machine is suspended or overloaded, and whether a firewall drops \
         the idle connection. The next message of the client shows it as connected again.";
    let suggestion = scenario.with_broker_hint(suggestion);
    let diagnosis = scenario
        .check_why(&client_id, "disconnected", summary, &suggestion)
        .await;
    assert_eq!(diagnosis["reason"], "expired");
    let why = scenario.why(&client_id).await;
    assert!(
        why.text
            .contains("  Reason           expired: the client did not respond to pings\n"),
        "{}",
        why.text
    );
}

async fn reconnect_that_changes_content_is_an_update(mode: DeploymentMode) {
    let mut scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("updated");
    let mut client = scenario.connect(&client_id).await;
    let mut online = online_message();
    online["content"]["tags"] = json!({"site": "other"});
    let topic = control_out_topic(&client_id);
    client.must_publish(&topic, &online).await;
    eventually("the new tags", || async {
        let (_, details) = scenario.details(ORG, &client_id).await;
        (details["tags"]["site"] == "other").then_some(())
    })
    .await;
    scenario
        .check_transitions(ORG, &client_id, &[CONNECTED])
        .await;
    let events = scenario.events_of(ORG, &client_id);
    let types: Vec<&str> = events.iter().map(|it| it.event_type.as_str()).collect();
    assert_eq!(types, ["connection.online", "connection.updated"]);
    assert_eq!(events[1].data["changed"], json!(["tags"]));
}
