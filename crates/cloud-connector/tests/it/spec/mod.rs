//! Tests of the wire protocol specification against real brokers, in both deployment modes. The
//! unit tests of encoding and decoding are in `crates/protocol/src`.

mod dead_letters;
mod handshake;
mod order;
mod status;

use serde_json::{Value, json};

use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{Deployment, unique_id};

/// Returns an online message with this message id and `sent` time. The message contains a tag with
/// the value `message_label`. The API returns this tag in the client's status, so a test can check
/// which online message was recorded.
fn online_message_with(message_id: &str, sent: &str, message_label: &str) -> Value {
    let mut online = online_message();
    online["message_id"] = json!(message_id);
    online["sent"] = json!(sent);
    online["content"]["tags"] = json!({"message_label": message_label});
    online
}

/// Returns the time that is `seconds` from now, in the format of the field `sent`.
fn time_from_now(seconds: i64) -> String {
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    time.to_string()
}

/// Returns the label of the recorded online message: the tag `message_label` in a client's status.
fn recorded_message_label(status: &Value) -> &str {
    status["tags"]["message_label"].as_str().unwrap_or_default()
}

/// Connects a client with a unique client id to the broker. Returns the client id and the client.
async fn connect_client(deployment: &Deployment, client_id_prefix: &str) -> (String, RawClient) {
    let client_id = unique_id(client_id_prefix);
    let connect = Connect::new(&client_id);
    let client = RawClient::connect(&deployment.mqtt_address(), &connect).await;
    (client_id, client)
}

/// Publishes an online message with the tag `message_label`, and waits until the message is
/// recorded. After that, all earlier messages of the client have been processed. Returns the
/// client's status.
async fn publish_online_and_wait(
    deployment: &Deployment,
    client_id: &str,
    client: &mut RawClient,
    message_label: &str,
) -> Value {
    let online = online_message_with("", &time_from_now(0), message_label);
    client
        .must_publish(&control_out_topic(client_id), &online)
        .await;
    deployment
        .wait_for_status(client_id, |status| {
            status["tags"]["message_label"] == message_label
        })
        .await
}
