//! Results that depend on the broker: no subscription, no acknowledgement, no connection. The embedded
//! broker knows the subscriptions of its clients; an external broker without MQTT 5 does not report them.

use serde_json::{Value, json};

use super::{Receiver, get_message, wait_for_state};
use test_support::connector::send_signal;
use test_support::deployment::DistributedDeployment;
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{Deployment, eventually, unique_id};

fn distributed(deployment: &Deployment) -> &DistributedDeployment {
    match deployment {
        Deployment::Distributed(distributed) => distributed,
        Deployment::Embedded(_) => {
            unreachable!("the tests of this module use the distributed mode")
        }
    }
}

/// Returns the id of the only message.
async fn only_message_id(deployment: &Deployment) -> String {
    let list = deployment.request("GET", "/v2/messages");
    let list: Value = list.send().await.unwrap().json().await.unwrap();
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "{list}");
    list["data"][0]["id"].as_str().unwrap().to_owned()
}

async fn connect_without_subscription(deployment: &Deployment) -> (String, RawClient) {
    let client_id = unique_id("not-subscribed");
    let address = deployment.mqtt_address();
    let mut client = RawClient::connect(&address, &Connect::new(&client_id)).await;
    let topic = control_out_topic(&client_id);
    client.must_publish(&topic, &online_message()).await;
    deployment.wait_until_connected(&client_id).await;
    (client_id, client)
}

#[tokio::test]
async fn embedded_broker_reports_a_client_that_has_not_subscribed_like_an_unknown_client() {
    let deployment = Deployment::embedded(&[]).await;
    let (client_id, _client) = connect_without_subscription(&deployment).await;
    let unknown = deployment
        .send_message(&unique_id("unknown"), json!({"directive": "echo"}))
        .await;
    for message in [
        json!({"directive": "echo"}),
        json!({"directive": "echo", "track": true}),
    ] {
        let response = deployment.send_message(&client_id, message).await;
        assert_eq!(response, unknown);
    }
    let id = only_message_id(&deployment).await;
    let (_, message) = get_message(&deployment, &id).await;
    assert_eq!(message["state"], "failed");
    assert_eq!(message["reason"], "not-connected");
    assert_eq!(message["may_be_duplicate"], false);
}

#[tokio::test]
async fn late_acknowledgement_changes_a_failed_message() {
    let settings = [("mqtt.publish_timeout", "300ms")];
    let deployment = Deployment::distributed(&settings).await;
    let receiver = Receiver::connect(&deployment).await;
    let mosquitto = &distributed(&deployment).cluster.mosquitto;
    let pid = std::fs::read_to_string(mosquitto.file_path("pid")).unwrap();
    let pid: i32 = pid.trim().parse().unwrap();
    send_signal(pid, "STOP");
    let message = json!({"directive": "echo", "track": true});
    let (status, body) = deployment.send_message(&receiver.client_id, message).await;
    assert_eq!(status, 504, "{body}");
    let id = body["id"].as_str().unwrap();
    let failed = wait_for_state(&deployment, id, "failed").await;
    assert_eq!(failed["reason"], "broker-timeout");
    assert!(failed["ended_at"].is_string(), "{failed}");
    send_signal(pid, "CONT");
    let message = wait_for_state(&deployment, id, "acknowledged").await;
    assert_eq!(message.get("reason"), None, "{message}");
}

#[tokio::test]
async fn message_of_a_process_that_is_killed_before_the_acknowledgement_fails() {
    let settings = [("mqtt.publish_timeout", "15s"), ("messages.lease", "16s")];
    let mut deployment = Deployment::distributed(&settings).await;
    let receiver = Receiver::connect(&deployment).await;
    let mosquitto = &distributed(&deployment).cluster.mosquitto;
    let pid = std::fs::read_to_string(mosquitto.file_path("pid")).unwrap();
    let pid: i32 = pid.trim().parse().unwrap();
    send_signal(pid, "STOP");
    let path = format!("/v2/connections/{}/message", receiver.client_id);
    let message = json!({"directive": "echo", "track": true});
    let request = deployment.request("POST", &path).json(&message);
    let request = tokio::spawn(request.send());
    let sending = "SELECT count(*) FROM messages WHERE state = 'sending'";
    eventually("the committed message", || async {
        (deployment.count_rows(sending).await == 1).then_some(())
    })
    .await;
    let id = only_message_id(&deployment).await;
    distributed(&deployment).process.send_signal("KILL");
    send_signal(pid, "CONT");
    request.await.unwrap().unwrap_err();
    deployment.restart().await;
    let message = wait_for_state(&deployment, &id, "failed").await;
    assert_eq!(message["reason"], "broker-timeout");
    assert_eq!(message["may_be_duplicate"], true);
}

#[tokio::test]
async fn message_fails_while_the_broker_is_down() {
    let deployment = Deployment::distributed(&[]).await;
    let receiver = Receiver::connect(&deployment).await;
    distributed(&deployment).cluster.mosquitto.stop().await;
    eventually("readiness to fail", || async {
        (!deployment.is_ready().await).then_some(())
    })
    .await;
    let message = json!({"directive": "echo", "track": true});
    let (status, body) = deployment.send_message(&receiver.client_id, message).await;
    assert_eq!(status, 503, "{body}");
    let id = body["id"].as_str().unwrap();
    let (_, message) = get_message(&deployment, id).await;
    assert_eq!(message["state"], "failed");
    assert_eq!(message["reason"], "broker-unavailable");
}

#[tokio::test]
async fn message_is_not_sent_while_the_database_is_down() {
    let deployment =
        Deployment::distributed_with_private_postgres(&[("postgres.acquire_timeout", "1s")]).await;
    let receiver = Receiver::connect(&deployment).await;
    let postgres = distributed(&deployment).cluster.postgres.as_ref().unwrap();
    postgres.stop().await;
    let message = json!({"directive": "tracked", "track": true});
    let (status, body) = deployment.send_message(&receiver.client_id, message).await;
    assert_eq!(status, 503, "{body}");
    assert_eq!(body.get("id"), None, "{body}");
    postgres.start_process().await;
    let mut client = receiver.client;
    let id = eventually("a sent message after the database restart", || async {
        let message = json!({"directive": "later", "track": true});
        let response = deployment.send_message(&receiver.client_id, message);
        let (status, body) = response.await;
        (status == 201).then(|| body["id"].clone())
    })
    .await;
    // The client has not received the first message.
    let (_, delivered) = client.next_message().await;
    assert_eq!(delivered["directive"], "later");
    assert_eq!(delivered["message_id"], id);
}
