//! The exact bytes that clients send, in both dialects.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::model::Online;
use crate::plan::Profile;
use crate::support::mqtt::{Connect, control_out};

/// A message and its effect once it is acknowledged.
#[derive(Debug, Clone)]
pub struct Message {
    pub topic: String,
    pub payload: Arc<[u8]>,
    pub retain: bool,
    pub effect: Effect,
}

#[derive(Debug, Clone)]
pub enum Effect {
    Online(Online),
    Offline,
    DeadLetter,
    /// For a resent message, a stale message, or the removal of a retained message.
    None,
}

impl Message {
    /// Returns whether the message connects or disconnects the client.
    pub fn is_presence(&self) -> bool {
        matches!(self.effect, Effect::Online(_) | Effect::Offline)
    }
}

fn topic(profile: &Profile) -> String {
    if profile.uses_handshake {
        format!("redhat/insights/in/{}", profile.client_id)
    } else {
        control_out(&profile.client_id)
    }
}

fn message(profile: &Profile, retain: bool, payload: &[u8], effect: Effect) -> Message {
    Message {
        topic: topic(profile),
        payload: payload.into(),
        retain,
        effect,
    }
}

pub fn connect_packet(profile: &Profile) -> Connect {
    let connect = Connect::new(&profile.client_id).without_keep_alive();
    if profile.uses_handshake {
        let will = json!({"type": "offline", "message_id": "the-will", "version": 1}).to_string();
        connect.retained_will(&topic(profile), will.as_bytes())
    } else {
        connect.offline_will()
    }
}

/// Creates the content of an online message. The caller passes a different `revision` for each new
/// content of a client, so that the check can tell the contents apart.
pub fn online(
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
        received_after: None,
        facts,
        dispatchers,
        tags,
    }
}

pub fn online_message(profile: &Profile, online: Online) -> Message {
    let value = if profile.uses_handshake {
        json!({"type": "host-handshake", "message_id": online.message_id, "version": 1,
            "sent": online.sent.to_string(), "payload": {"canonical_facts": online.facts}})
    } else {
        json!({"type": "connection-status", "message_id": online.message_id, "response_to": "",
            "version": 1, "sent": online.sent.to_string(), "content": {"state": "online",
                "canonical_facts": online.facts, "dispatchers": online.dispatchers,
                "tags": online.tags}})
    };
    let payload = value.to_string();
    message(
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
            message(profile, false, payload.as_bytes(), Effect::Offline),
            message(profile, true, b"", Effect::None),
        ]
    } else {
        // Like real clients, sends exactly the bytes of the last will.
        let payload = crate::support::mqtt::offline().to_string();
        vec![message(profile, false, payload.as_bytes(), Effect::Offline)]
    }
}

/// Creates a message that can never be processed.
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
    message(profile, false, &payload, Effect::DeadLetter)
}

/// Creates the same bytes again, which must have no effect.
pub fn resent_message(profile: &Profile, online: &Online) -> Message {
    let mut message = online_message(profile, online.clone());
    message.effect = Effect::None;
    message
}

/// Creates an online message that was sent `seconds` before `latest`, which must have no effect.
pub fn stale_message(
    profile: &Profile,
    latest: &Online,
    seconds: u64,
    revision: u64,
    message_id: String,
) -> Message {
    let age = SignedDuration::from_secs(i64::try_from(seconds).unwrap());
    let stale = online(profile, revision, Some(message_id), latest.sent - age);
    let mut message = online_message(profile, stale);
    message.effect = Effect::None;
    message
}
