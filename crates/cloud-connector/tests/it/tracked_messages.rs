//! Tests of tracked messages in both deployment modes.

mod answers;
mod distributed_broker;
mod idempotency;
mod requests;
mod states;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};

use test_support::mqtt::{
    Connect, RawClient, control_out_topic, data_in_topic, data_out_topic, online_message,
};
use test_support::{Deployment, eventually, unique_id};

const ORG_ID_HEADER: HeaderName = HeaderName::from_static("x-rh-cloud-connector-org-id");

/// A connected client of the status dialect that receives messages.
pub struct Receiver {
    client_id: String,
    client: RawClient,
}

impl Receiver {
    pub async fn connect(deployment: &Deployment) -> Self {
        Self::connect_as(deployment, &unique_id("tracked")).await
    }

    async fn connect_as(deployment: &Deployment, client_id: &str) -> Self {
        let address = deployment.mqtt_address();
        let mut client = RawClient::connect(&address, &Connect::new(client_id)).await;
        client.subscribe(&data_in_topic(client_id)).await;
        let topic = control_out_topic(client_id);
        client.must_publish(&topic, &online_message()).await;
        deployment.wait_until_connected(client_id).await;
        Self {
            client_id: client_id.to_owned(),
            client,
        }
    }

    /// Sends a tracked message to the client. Returns its id after the broker has acknowledged it.
    pub async fn send_tracked(&self, deployment: &Deployment) -> String {
        let message = json!({"directive": "echo", "payload": "hello", "track": true});
        let (status, body) = deployment.send_message(&self.client_id, message).await;
        assert_eq!(status, 201, "{body}");
        assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
        body["id"].as_str().unwrap().to_owned()
    }

    /// Answers a message.
    pub async fn answer(&mut self, id: &str, content: &Value) {
        let topic = data_out_topic(&self.client_id);
        let answer = answers::data_message(id, content);
        self.client.must_publish(&topic, &answer).await;
    }
}

/// Requests a tracked message. Returns the status and the body of the response.
async fn get_message(deployment: &Deployment, id: &str) -> (u16, Value) {
    let request = deployment.request("GET", &format!("/v2/messages/{id}"));
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Waits until the message has a state. Returns the message.
async fn wait_for_state(deployment: &Deployment, id: &str, state: &str) -> Value {
    eventually(&format!("message {id} to be {state}"), || async {
        let (status, message) = get_message(deployment, id).await;
        (status == 200 && message["state"] == state).then_some(message)
    })
    .await
}

/// Returns the headers that replace the organization of a request.
fn other_organization() -> HeaderMap {
    HeaderMap::from_iter([(
        ORG_ID_HEADER,
        HeaderValue::from_static("another-organization"),
    )])
}
