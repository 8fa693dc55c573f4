//! Log lines about presence changes.

use serde_json::Value;

use super::{ORG, Scenario};
use test_support::gateway::GatewayReply;
use test_support::mqtt::{Connect, control_out_topic, online_message};
use test_support::{DeploymentMode, each_deployment, unique_id};

each_deployment!(presence_messages_are_logged_with_organization_and_reason);

async fn presence_messages_are_logged_with_organization_and_reason(mode: DeploymentMode) {
    let mut scenario = Scenario::start(mode, &[]).await;
    let client_id = unique_id("logged");
    let connect = Connect::new(&client_id).offline_will();
    let mut client = scenario.connect_with(&connect).await;
    scenario
        .wait_for_details(ORG, &client_id, "connected")
        .await;
    let topic = control_out_topic(&client_id);
    client.must_publish(&topic, &online_message()).await;
    scenario.read_events(ORG).await;
    drop(client);
    scenario
        .wait_for_details(ORG, &client_id, "disconnected")
        .await;
    let tenantless_id = unique_id("logged");
    scenario
        .gateway
        .set_reply(&tenantless_id, GatewayReply::NotFound);
    let _tenantless = scenario.connect_with(&Connect::new(&tenantless_id)).await;
    for (client_id, org_id, message, status, reason) in [
        (&client_id, ORG, "presence changed", "online", "connected"),
        (
            &client_id,
            ORG,
            "online message recorded",
            "online",
            "unchanged",
        ),
        (&client_id, ORG, "presence changed", "offline", "will"),
        (
            &tenantless_id,
            "",
            "presence changed",
            "online",
            "connected",
        ),
    ] {
        let is_expected = |line: &Value| {
            line["level"] == "DEBUG"
                && line["message"] == message
                && line["client_id"] == client_id.as_str()
                && line["org_id"] == org_id
                && line["status"] == status
                && line["reason"] == reason
        };
        let description = format!("the log line {message:?} with the reason {reason}");
        scenario
            .deployment
            .wait_for_log_line(&description, is_expected)
            .await;
    }
    // The log contains no facts of clients.
    let lines = scenario.deployment.log_lines();
    assert!(lines.iter().all(|line| !line.contains("raw.example")));
}
