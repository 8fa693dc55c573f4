//! The hostile messages in `crates/cloud-connector/tests/corpus/hostile.json`. `crates/cloud-connector/tests/corpus/README.md` describes the
//! fields.

use serde::Deserialize;

/// A hostile message and its expected result.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostileCase {
    pub name: String,
    pub channel: Option<String>,
    pub topic: Option<String>,
    pub payload: Option<String>,
    pub payload_hex: Option<String>,
    pub payload_repeat: Option<RepeatedPayload>,
    #[serde(rename = "expect")]
    pub expected_outcome: ExpectedOutcome,
    #[serde(rename = "reason")]
    pub expected_reason: Option<String>,
    #[serde(default, rename = "handshake_error")]
    pub expects_handshake_error: bool,
    #[serde(default, rename = "heartbeat")]
    pub counts_as_heartbeat: bool,
    #[serde(rename = "client")]
    pub expected_client: Option<String>,
    #[serde(default)]
    pub needs_open_broker: bool,
    #[serde(default)]
    pub broker_may_reject: bool,
    pub description: String,
}

/// The expected result of processing a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpectedOutcome {
    DeadLetter,
    Ignored,
    Online,
    Offline,
    DroppedByBroker,
}

/// A large payload. Consists of `prefix`, then `unit` repeated `count` times, then `suffix`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepeatedPayload {
    pub prefix: String,
    pub unit: String,
    pub count: usize,
    pub suffix: String,
}

impl HostileCase {
    /// Returns the payload of the message.
    ///
    /// # Errors
    /// If the case does not have exactly one payload field, or `payload_hex` is invalid.
    pub fn payload_bytes(&self) -> Result<Vec<u8>, String> {
        match (&self.payload, &self.payload_hex, &self.payload_repeat) {
            (Some(text), None, None) => Ok(text.clone().into_bytes()),
            (None, Some(digits), None) => decode_hex(digits),
            (None, None, Some(repeat)) => {
                let RepeatedPayload {
                    prefix,
                    unit,
                    count,
                    suffix,
                } = repeat;
                Ok(format!("{prefix}{}{suffix}", unit.repeat(*count)).into_bytes())
            }
            _ => {
                Err("exactly one of payload, payload_hex and payload_repeat is required".to_owned())
            }
        }
    }
}

fn decode_hex(digits: &str) -> Result<Vec<u8>, String> {
    let decode_byte = |pair: &[u8]| {
        let text = str::from_utf8(pair).map_err(|e| e.to_string())?;
        u8::from_str_radix(text, 16).map_err(|e| format!("payload_hex: {e}"))
    };
    if digits.len() % 2 == 1 {
        return Err("payload_hex has an odd number of digits".to_owned());
    }
    digits.as_bytes().chunks(2).map(decode_byte).collect()
}
