//! Creates the exact bytes that clients send, in both dialects.

use std::sync::{Arc, LazyLock};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::model::Online;
use crate::plan::Profile;
use test_support::mqtt::{Connect, control_out_topic, data_out_topic};

/// Size of a large response. The embedded broker accepts packets of up to 1 MiB.
const LARGE_RESPONSE_BYTES: usize = 1_000_000;

/// A message, and the effect that the message must have after the broker has acknowledged the
/// message.
#[derive(Debug, Clone)]
pub struct Message {
    pub topic: String,
    pub payload: Arc<[u8]>,
    pub retain: bool,
    pub effect: Effect,
}

/// The effect of a message on the recorded state of the client.
#[derive(Debug, Clone)]
pub enum Effect {
    Online(Online),
    Offline,
    DeadLetter,
    /// No effect, because the message is a duplicate or is stale. If the connection has closed since
    /// the latest online message, the message can connect the client with the content of this revision.
    OutdatedOnline {
        revision: u64,
    },
    /// No effect on a connected client. The message is a response that no caller waits for.
    Heartbeat,
    /// No effect, because the message clears a retained message.
    None,
}

impl Message {
    /// Returns whether the message connects or disconnects the client.
    pub fn is_presence_message(&self) -> bool {
        matches!(self.effect, Effect::Online(_) | Effect::Offline)
    }
}

/// Returns the topic to which the client publishes its presence messages.
fn presence_topic(profile: &Profile) -> String {
    if profile.uses_handshake {
        format!("redhat/insights/in/{}", profile.client_id)
    } else {
        control_out_topic(&profile.client_id)
    }
}

fn new_message(profile: &Profile, retain: bool, payload: &[u8], effect: Effect) -> Message {
    Message {
        topic: presence_topic(profile),
        payload: payload.into(),
        retain,
        effect,
    }
}

pub fn connect_packet(profile: &Profile) -> Connect {
    let connect = Connect::new(&profile.client_id).without_keep_alive();
    if profile.uses_handshake {
        let will = json!({"type": "offline", "message_id": "the-will", "version": 1}).to_string();
        connect.retained_will(&presence_topic(profile), will.as_bytes())
    } else {
        connect.offline_will()
    }
}

/// Creates the content of an online message. The content contains the `revision`. The caller passes
/// a new revision for each new content, so the check can distinguish the contents of a client.
pub fn online_content(
    profile: &Profile,
    revision: u64,
    message_id: Option<String>,
    sent: Timestamp,
) -> Online {
    let facts = json!({"fqdn": format!("{}.example", profile.client_id), "revision": revision,
        "ip_addresses": ["192.0.2.7"]});
    let (dispatchers, tags) = if profile.uses_handshake {
        (Value::Null, Value::Null)
    } else {
        let version = format!("1.{revision}");
        (
            json!({"echo": {}, "rhc-worker-playbook": {"ansible-runner-version": version}}),
            json!({"revision": revision.to_string(), "region": "us1"}),
        )
    };
    Online {
        message_id,
        sent,
        earliest_receive_time: None,
        facts,
        dispatchers,
        tags,
    }
}

pub fn online_message(profile: &Profile, online: Online) -> Message {
    let json_message = if profile.uses_handshake {
        json!({"type": "host-handshake", "message_id": online.message_id, "version": 1,
            "sent": online.sent.to_string(), "payload": {"canonical_facts": online.facts}})
    } else {
        json!({"type": "connection-status", "message_id": online.message_id, "response_to": "",
            "version": 1, "sent": online.sent.to_string(), "content": {"state": "online",
                "canonical_facts": online.facts, "dispatchers": online.dispatchers,
                "tags": online.tags}})
    };
    let payload = json_message.to_string();
    new_message(
        profile,
        profile.uses_handshake,
        payload.as_bytes(),
        Effect::Online(online),
    )
}

/// Creates the messages of a clean disconnect: the offline message and, in the handshake dialect,
/// the removal of the retained handshake.
pub fn offline_messages(profile: &Profile, now: Timestamp) -> Vec<Message> {
    if profile.uses_handshake {
        let offline = json!({"type": "offline", "message_id": now.to_string(), "version": 1});
        let payload = offline.to_string();
        vec![
            new_message(profile, false, payload.as_bytes(), Effect::Offline),
            new_message(profile, true, b"", Effect::None),
        ]
    } else {
        // Like real clients, the simulated client sends exactly the bytes of its last will.
        let payload = test_support::mqtt::offline_message().to_string();
        vec![new_message(
            profile,
            false,
            payload.as_bytes(),
            Effect::Offline,
        )]
    }
}

/// Creates a message that can never be processed. `kind` selects what is invalid. Messages of the
/// same kind with different variants have different bytes.
pub fn invalid_message(profile: &Profile, kind: u64, variant: u64) -> Message {
    let online_with_facts = |facts: Value| {
        if profile.uses_handshake {
            json!({"type": "host-handshake", "message_id": "x",
                "payload": {"canonical_facts": facts}})
        } else {
            json!({"type": "connection-status", "message_id": "x",
                "content": {"state": "online", "canonical_facts": facts}})
        }
    };
    let payload = match kind {
        1 => [b"\xff\xfe", variant.to_string().as_bytes()].concat(),
        2 => format!("[{variant}]").into_bytes(),
        3 if profile.uses_handshake => {
            let without_message_id = json!({"type": "host-handshake", "variant": variant,
                "payload": {"canonical_facts": {}}});
            without_message_id.to_string().into_bytes()
        }
        3 => {
            let unknown_state = json!({"type": "connection-status", "variant": variant,
                "content": {"state": "asleep"}});
            unknown_state.to_string().into_bytes()
        }
        4 => {
            let facts_with_nul = json!({"fqdn": format!("nul\0{variant}")});
            online_with_facts(facts_with_nul).to_string().into_bytes()
        }
        5 => {
            let nested = (0..40).fold(json!(variant), |inner, _| json!([inner]));
            let online = online_with_facts(json!({"deep": nested}));
            online.to_string().into_bytes()
        }
        _ => {
            let online = online_with_facts(json!({"variant": variant}));
            let mut truncated_json = online.to_string().into_bytes();
            truncated_json.pop();
            truncated_json
        }
    };
    new_message(profile, false, &payload, Effect::DeadLetter)
}

/// Creates a message with exactly the bytes of the earlier message `online`. The new message must
/// have no effect.
pub fn resent_message(profile: &Profile, online: &Online) -> Message {
    outdated_message(profile, online.clone())
}

fn outdated_message(profile: &Profile, online: Online) -> Message {
    let revision = online.revision();
    let mut message = online_message(profile, online);
    message.effect = Effect::OutdatedOnline { revision };
    message
}

/// Creates an online message whose `sent` time is `age_seconds` before the `sent` time of `latest`.
/// The message must have no effect.
pub fn stale_message(
    profile: &Profile,
    latest: &Online,
    age_seconds: u64,
    revision: u64,
    message_id: String,
) -> Message {
    let age = SignedDuration::from_secs(i64::try_from(age_seconds).unwrap());
    let stale = online_content(profile, revision, Some(message_id), latest.sent - age);
    outdated_message(profile, stale)
}

/// Creates a response of about 1 MB to a request that no caller sent. The message must have no effect.
pub fn large_response(profile: &Profile) -> Message {
    // All clients send the same bytes, so the logs of the clients need little memory.
    static PAYLOAD: LazyLock<Arc<[u8]>> = LazyLock::new(|| {
        let response = json!({"type": "data", "message_id": "the-response", "version": 1,
            "response_to": "3f2b1a52-6f4e-4a3f-9a77-0f6f8e1c2d3b", "sent": "2026-01-01T00:00:00Z",
            "directive": "echo", "metadata": {}, "content": "x".repeat(LARGE_RESPONSE_BYTES)});
        response.to_string().into_bytes().into()
    });
    Message {
        topic: data_out_topic(&profile.client_id),
        payload: PAYLOAD.clone(),
        retain: false,
        effect: Effect::Heartbeat,
    }
}
