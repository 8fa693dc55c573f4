//! The wire protocol, sentence by sentence, against real brokers in both set-ups. Bytes and shapes
//! alone are tested where they are read and written, in `src/protocol`.

mod dead_letters;
mod handshake;
mod order;
mod status;

use serde_json::{Value, json};

use crate::support::mqtt::{Connect, RawClient, control_out, online};
use crate::support::{Deployment, unique};

/// An online with this id, sender's clock and mark.
fn said(id: &str, sent: &str, mark: &str) -> Value {
    let mut online = online();
    online["message_id"] = json!(id);
    online["sent"] = json!(sent);
    online["content"]["tags"] = json!({"mark": mark});
    online
}

/// So many seconds from now, as clients write it.
fn from_now(seconds: i64) -> String {
    let at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(seconds);
    at.to_string()
}

fn mark(status: &Value) -> &str {
    status["tags"]["mark"].as_str().unwrap_or_default()
}

/// A client that is connected, and its name.
async fn client(subject: &Deployment, name: &str) -> (String, RawClient) {
    let me = unique(name);
    let client = RawClient::connect(&subject.mqtt(), &Connect::new(&me)).await;
    (me, client)
}

/// Publishes a last message that is recorded for certain: what was said before it has been dealt
/// with when it shows.
async fn settle(subject: &Deployment, me: &str, client: &mut RawClient, mark: &str) -> Value {
    let last = said("", &from_now(0), mark);
    client.must_publish(&control_out(me), &last).await;
    subject
        .wait_until(me, |status| status["tags"]["mark"] == mark)
        .await
}
