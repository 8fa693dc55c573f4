//! Clients that belong to another organization or to no organization, and clients that were never recorded.

use serde_json::{Value, json};

use super::{CONNECTED, ORG, OTHER_ORG, Scenario, assert_unknown_to};
use test_support::gateway::GatewayReply;
use test_support::mqtt::{Connect, control_out_topic, online_message};
use test_support::{DeploymentMode, RawClient, each_deployment, eventually, unique_id};

each_deployment!(
    client_that_moves_is_offline_for_the_old_and_online_for_the_new_organization,
    client_that_loses_its_organization_is_tenantless,
    tenantless_client_is_invisible_until_its_organization_is_found,
    client_whose_tenant_lookup_has_no_answer_is_tenantless,
    client_that_was_never_seen_is_unknown,
    client_whose_online_message_is_invalid_was_never_recorded,
);

const REGISTER: &str = "Check the registration of the machine: the tenant lookup must find an \
     organization for the client id.";

async fn publish_online(client: &mut RawClient, client_id: &str, dispatcher: &str) {
    let mut online = online_message();
    online["content"]["dispatchers"] = json!({dispatcher: {}});
    let topic = control_out_topic(client_id);
    client.must_publish(&topic, &online).await;
}

async fn client_that_moves_is_offline_for_the_old_and_online_for_the_new_organization(
    mode: DeploymentMode,
) {
    let mut scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("moved");
    let mut client = scenario.connect(&client_id).await;
    publish_online(&mut client, &client_id, "old_worker").await;
    let before = eventually("the first dispatchers", || async {
        let (_, details) = scenario.details(ORG, &client_id).await;
        details["dispatchers"]["old_worker"]
            .is_object()
            .then_some(details)
    })
    .await;
    scenario
        .gateway
        .set_reply(&client_id, GatewayReply::Found(OTHER_ORG));
    publish_online(&mut client, &client_id, "new_worker").await;
    let after = scenario
        .wait_for_details(OTHER_ORG, &client_id, "connected")
        .await;
    let connected_since = |details: &Value| -> jiff::Timestamp {
        details["connected_since"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    };
    assert!(connected_since(&after) > connected_since(&before));
    assert_eq!(after["reconnects"], 0);
    assert_eq!(scenario.details(ORG, &client_id).await.0, 404);
    let moved = ("offline", "moved");
    scenario
        .check_transitions(ORG, &client_id, &[CONNECTED, moved])
        .await;
    scenario
        .check_transitions(OTHER_ORG, &client_id, &[CONNECTED])
        .await;
    // The old organization sees only what it has seen before.
    let events = scenario.events_of(ORG, &client_id);
    let last = events.last().unwrap();
    assert_eq!(last.data["dispatchers"], json!({"old_worker": {}}));
    assert!(
        !events
            .iter()
            .any(|event| event.data.to_string().contains("new_worker")),
        "{events:?}"
    );
    let online = &scenario.events_of(OTHER_ORG, &client_id)[0];
    assert_eq!(online.data["dispatchers"], json!({"new_worker": {}}));

    let summary = "The client has been connected to organization 10002 since TIME; it moved from \
         organization 10001 at TIME.";
    let suggestion = "Send messages on behalf of organization 10002, because organization 10001 can no \
         longer reach the client. If the move was not intended, register the machine again with the \
         right organization.";
    let diagnosis = scenario
        .check_why(&client_id, "connected", summary, suggestion)
        .await;
    assert_eq!(diagnosis["org_id"], OTHER_ORG);
    let history = diagnosis["history"].as_array().unwrap().iter();
    let organizations: Vec<&Value> = history.map(|entry| &entry["org_id"]).collect();
    assert_eq!(organizations, [OTHER_ORG, ORG, ORG]);
}

async fn client_that_loses_its_organization_is_tenantless(mode: DeploymentMode) {
    let mut scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("lost");
    let mut client = scenario.connect(&client_id).await;
    scenario
        .gateway
        .set_reply(&client_id, GatewayReply::NotFound);
    publish_online(&mut client, &client_id, "echo").await;
    let lost = ("offline", "tenant-lost");
    scenario
        .check_transitions(ORG, &client_id, &[CONNECTED, lost])
        .await;
    assert_eq!(scenario.details(ORG, &client_id).await.0, 404);
    let summary = "The client is connected, but it has not belonged to organization 10001 since TIME: the \
         tenant lookup found none, and is repeated at most 30 times.";
    let suggestion = format!("{REGISTER} The next lookup is after TIME.");
    let diagnosis = scenario
        .check_why(&client_id, "tenantless", summary, &suggestion)
        .await;
    assert_eq!(diagnosis["org_id"], Value::Null);
    assert_eq!(diagnosis["tenant_lookup"]["outcome"], "not-found");
    assert_eq!(diagnosis["tenant_lookup"]["gave_up"], false);
}

async fn tenantless_client_is_invisible_until_its_organization_is_found(mode: DeploymentMode) {
    let mut scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("tenantless");
    scenario
        .gateway
        .set_reply(&client_id, GatewayReply::NotFound);
    let _client = scenario.connect_with(&Connect::new(&client_id)).await;
    eventually("the row of the client", || {
        scenario.deployment.row(&client_id)
    })
    .await;
    for org in [ORG, OTHER_ORG] {
        assert_unknown_to(&scenario, org, &client_id).await;
    }
    let summary = "The client is connected, but it belongs to no organization: the tenant lookup found \
         none, and is repeated at most 30 times.";
    let suggestion = format!("{REGISTER} The next lookup is after TIME.");
    let diagnosis = scenario
        .check_why(&client_id, "tenantless", summary, &suggestion)
        .await;
    assert_eq!(diagnosis["history"][0]["org_id"], Value::Null);

    scenario
        .gateway
        .set_reply(&client_id, GatewayReply::Found(ORG));
    for command in [
        &["tenantless", "retry", &client_id][..],
        &["update-tenantless"],
    ] {
        let (code, output) = scenario.deployment.run_command(command).await;
        assert_eq!(code, Some(0), "{output}");
    }
    let found = ("online", "tenant-found");
    scenario.check_transitions(ORG, &client_id, &[found]).await;
    scenario
        .wait_for_details(ORG, &client_id, "connected")
        .await;
    let event = &scenario.events_of(ORG, &client_id)[0];
    assert_eq!(event.data["dispatchers"], json!({"echo": {}}));
    assert_eq!(scenario.why(&client_id).await.code, Some(0));
}

async fn client_whose_tenant_lookup_has_no_answer_is_tenantless(mode: DeploymentMode) {
    let scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("pending");
    scenario
        .gateway
        .set_reply(&client_id, GatewayReply::Overloaded);
    let _client = scenario.connect_with(&Connect::new(&client_id)).await;
    eventually("the row of the client", || {
        scenario.deployment.row(&client_id)
    })
    .await;
    let summary = "The client is connected, but it belongs to no organization: the tenant lookup has not \
         answered yet.";
    let suggestion = format!(
        "{REGISTER} The next lookup is due now; `cloud-connector update-tenantless` runs it."
    );
    let diagnosis = scenario
        .check_why(&client_id, "tenantless", summary, &suggestion)
        .await;
    assert_eq!(diagnosis["tenant_lookup"]["outcome"], "pending");
    assert_unknown_to(&scenario, ORG, &client_id).await;
}

async fn client_that_was_never_seen_is_unknown(mode: DeploymentMode) {
    let scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("never");
    let summary = "The client is unknown: no online message of it was received, or its data was deleted \
         after a long disconnect.";
    let suggestion = "Check that the client id is spelled correctly and is the common name of the \
         machine's certificate, that the client program on the machine is running, and that it can reach \
         the broker. GET /v2/clients?search= finds a client by its FQDN.";
    let suggestion = scenario.with_broker_hint(suggestion);
    let diagnosis = scenario
        .check_why(&client_id, "unknown", summary, &suggestion)
        .await;
    assert_eq!(diagnosis["history"], json!([]));
    assert_unknown_to(&scenario, ORG, &client_id).await;
}

async fn client_whose_online_message_is_invalid_was_never_recorded(mode: DeploymentMode) {
    let scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("invalid");
    let connect = Connect::new(&client_id).without_keep_alive();
    let mut client = RawClient::connect(&scenario.deployment.mqtt_address(), &connect).await;
    let topic = control_out_topic(&client_id);
    client.publish(&topic, b"{not json").await.unwrap();
    eventually("the dead letter", || async {
        let diagnosis = scenario.diagnosis(&client_id).await;
        (diagnosis["dead_letters"] != json!([])).then_some(())
    })
    .await;
    let why = scenario.why(&client_id).await;
    assert_eq!(why.code, Some(1), "{}", why.text);
    let summary = "The client has never been recorded as connected: its message at TIME was rejected with \
         the reason invalid_json.";
    assert_eq!(why.summary, summary);
    let suggestion = why.suggestion.unwrap();
    let (start, rest) = suggestion.split_once(" is invalid (").unwrap();
    let expected = format!(
        "Update the client program, or correct its configuration: its message on the topic {topic}"
    );
    assert_eq!(start, expected);
    // The suggested command exists and shows the message.
    let (_, command) = rest.split_once("`cloud-connector ").unwrap();
    let (command, _) = command.split_once('`').unwrap();
    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(words[..2], ["dead-letters", "show"]);
    let (code, output) = scenario.deployment.run_command(&words).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("{not json"), "{output}");

    // An invalid message of a connected client.
    publish_online(&mut client, &client_id, "echo").await;
    scenario
        .wait_for_details(ORG, &client_id, "connected")
        .await;
    client.publish(&topic, b"[1]").await.unwrap();
    eventually("the second dead letter", || async {
        let summary = scenario.diagnosis(&client_id).await["summary"].take();
        let summary = summary.as_str().unwrap().to_owned();
        let expected = "The client has been connected to organization 10001 since";
        let is_expected = summary.starts_with(expected) && summary.contains("was rejected");
        is_expected.then_some(())
    })
    .await;
    assert_eq!(scenario.why(&client_id).await.code, Some(0));
}
