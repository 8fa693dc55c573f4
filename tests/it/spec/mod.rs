//! Tests of the wire protocol specification against real brokers, in both deployment modes.
//! Encoding and decoding alone are tested in `src/protocol`.

mod dead_letters;
mod handshake;
mod order;
mod status;

use serde_json::{Value, json};

use crate::support::mqtt::{Connect, RawClient, control_out, online};
use crate::support::{Deployment, unique_id};

/// An online message with this message id and `sent` time. Its tag `mark` shows in the client's
/// status which online message was recorded.
fn online_with(message_id: &str, sent: &str, mark: &str) -> Value {
    let mut online = online();
    online["message_id"] = json!(message_id);
    online["sent"] = json!(sent);
    online["content"]["tags"] = json!({"mark": mark});
    online
}

/// The time `seconds` from now, in the format of `sent`.
fn from_now(seconds: i64) -> String {
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    time.to_string()
}

/// The tag `mark` of a client's status.
fn mark(status: &Value) -> &str {
    status["tags"]["mark"].as_str().unwrap_or_default()
}

/// Connects a client to the broker. Returns its client id.
async fn connect_client(deployment: &Deployment, id_prefix: &str) -> (String, RawClient) {
    let client_id = unique_id(id_prefix);
    let connect = Connect::new(&client_id);
    let client = RawClient::connect(&deployment.mqtt_address(), &connect).await;
    (client_id, client)
}

/// Publishes an online message and waits until it is recorded. All earlier messages of the client
/// have been processed then.
async fn publish_and_wait(
    deployment: &Deployment,
    client_id: &str,
    client: &mut RawClient,
    mark: &str,
) -> Value {
    let online = online_with("", &from_now(0), mark);
    client.must_publish(&control_out(client_id), &online).await;
    deployment
        .wait_for_status(client_id, |status| status["tags"]["mark"] == mark)
        .await
}

/// Connects another client and waits until its online message is recorded. Messages that the broker
/// received before have probably been processed then, so a wrong effect of them would show.
async fn wait_for_another_client(deployment: &Deployment) {
    let (client_id, mut client) = connect_client(deployment, "marker").await;
    publish_and_wait(deployment, &client_id, &mut client, "x").await;
}
