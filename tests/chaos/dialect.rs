//! What clients say, byte for byte, in either dialect.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::model::Word;
use crate::plan::Profile;
use crate::support::mqtt::{Connect, control_out};

/// A message, and what it means if it is acknowledged.
#[derive(Debug, Clone)]
pub struct Message {
    pub topic: String,
    pub bytes: Arc<[u8]>,
    pub retain: bool,
    pub means: Meaning,
}

#[derive(Debug, Clone)]
pub enum Meaning {
    Online(Word),
    Offline,
    Garbage,
    /// A repetition, something old, the removal of what was retained.
    Nothing,
}

impl Message {
    /// Whether it says that the client is here or that it leaves.
    pub fn is_presence(&self) -> bool {
        matches!(self.means, Meaning::Online(_) | Meaning::Offline)
    }
}

fn topic(manner: &Profile) -> String {
    if manner.handshake {
        format!("redhat/insights/in/{}", manner.name)
    } else {
        control_out(&manner.name)
    }
}

fn message(manner: &Profile, retain: bool, bytes: &[u8], means: Meaning) -> Message {
    Message {
        topic: topic(manner),
        bytes: bytes.into(),
        retain,
        means,
    }
}

pub fn connect(manner: &Profile) -> Connect {
    let connect = Connect::new(&manner.name).patient();
    if manner.handshake {
        let will = json!({"type": "offline", "message_id": "the-will", "version": 1}).to_string();
        connect.retained_will(&topic(manner), will.as_bytes())
    } else {
        connect.offline_will()
    }
}

/// The facts of a client, by a mark that no two of its descriptions share.
pub fn word(manner: &Profile, mark: u64, id: Option<String>, sent: Timestamp) -> Word {
    let facts = json!({"fqdn": format!("{}.example", manner.name), "mark": mark,
        "ip_addresses": ["192.0.2.7"]});
    let (dispatchers, tags) = if manner.handshake {
        (Value::Null, Value::Null)
    } else {
        let version = format!("1.{mark}");
        (
            json!({"echo": {}, "rhc-worker-playbook": {"ansible-runner-version": version}}),
            json!({"mark": mark.to_string(), "region": "us1"}),
        )
    };
    Word {
        id,
        sent,
        received_after: None,
        facts,
        dispatchers,
        tags,
    }
}

pub fn online(manner: &Profile, word: Word) -> Message {
    let value = if manner.handshake {
        json!({"type": "host-handshake", "message_id": word.id, "version": 1,
            "sent": word.sent.to_string(), "payload": {"canonical_facts": word.facts}})
    } else {
        json!({"type": "connection-status", "message_id": word.id, "response_to": "", "version": 1,
            "sent": word.sent.to_string(), "content": {"state": "online",
                "canonical_facts": word.facts, "dispatchers": word.dispatchers, "tags": word.tags}})
    };
    let bytes = value.to_string();
    message(
        manner,
        manner.handshake,
        bytes.as_bytes(),
        Meaning::Online(word),
    )
}

/// What a clean leave says: the farewell, and in the handshake dialect the removal of the handshake.
pub fn farewell(manner: &Profile, now: Timestamp) -> Vec<Message> {
    if manner.handshake {
        let offline = json!({"type": "offline", "message_id": now.to_string(), "version": 1});
        let bytes = offline.to_string();
        let removal = message(manner, true, b"", Meaning::Nothing);
        vec![
            message(manner, false, bytes.as_bytes(), Meaning::Offline),
            removal,
        ]
    } else {
        // The very bytes of the will, built at the client's start: as real clients do.
        let bytes = crate::support::mqtt::offline().to_string();
        vec![message(manner, false, bytes.as_bytes(), Meaning::Offline)]
    }
}

/// Something that can never be processed.
pub fn garbage(manner: &Profile, kind: u64, variant: u64) -> Message {
    let online = |facts: Value| {
        if manner.handshake {
            json!({"type": "host-handshake", "message_id": "x", "payload": {"canonical_facts": facts}})
        } else {
            json!({"type": "connection-status", "message_id": "x",
                "content": {"state": "online", "canonical_facts": facts}})
        }
    };
    let bytes = match kind {
        1 => [b"\xff\xfe", variant.to_string().as_bytes()].concat(),
        2 => format!("[{variant}]").into_bytes(),
        3 if manner.handshake => {
            let lacking = json!({"type": "host-handshake", "variant": variant,
                "payload": {"canonical_facts": {}}});
            lacking.to_string().into_bytes()
        }
        3 => {
            let asleep = json!({"type": "connection-status", "variant": variant,
                "content": {"state": "asleep"}});
            asleep.to_string().into_bytes()
        }
        4 => {
            let facts = json!({"fqdn": format!("nul\0{variant}")});
            online(facts).to_string().into_bytes()
        }
        5 => {
            let deep = (0..40).fold(json!(variant), |below, _| json!([below]));
            online(json!({"deep": deep})).to_string().into_bytes()
        }
        _ => {
            let mut cut = online(json!({"variant": variant})).to_string().into_bytes();
            cut.pop();
            cut
        }
    };
    message(manner, false, &bytes, Meaning::Garbage)
}

/// The same bytes once more.
pub fn again(manner: &Profile, word: &Word) -> Message {
    let mut same = online(manner, word.clone());
    same.means = Meaning::Nothing;
    same
}

/// A word that was sent a little before the last one.
pub fn old(manner: &Profile, last: &Word, seconds: u64, mark: u64, id: String) -> Message {
    let back = SignedDuration::from_secs(i64::try_from(seconds).unwrap());
    let word = word(manner, mark, Some(id), last.sent - back);
    let mut old = online(manner, word);
    old.means = Meaning::Nothing;
    old
}
