//! The corpus of hostile messages, `tests/corpus/hostile.json`. Its README says what the fields mean.

use serde::Deserialize;

/// One message, and what must become of it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    pub route: Option<String>,
    pub topic: Option<String>,
    pub payload: Option<String>,
    pub payload_hex: Option<String>,
    pub payload_repeat: Option<Repeat>,
    pub becomes: Becomes,
    pub reason: Option<String>,
    #[serde(default)]
    pub refused: bool,
    #[serde(default)]
    pub sign_of_life: bool,
    pub client: Option<String>,
    pub needs: Option<String>,
    #[serde(default)]
    pub broker_may_refuse: bool,
    pub why: String,
}

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Becomes {
    DeadLetter,
    Ignored,
    Online,
    Offline,
    DroppedByBroker,
}

/// A payload that is too large to be written out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    pub prefix: String,
    pub unit: String,
    pub count: usize,
    pub suffix: String,
}

impl Case {
    /// The bytes to publish.
    ///
    /// # Errors
    /// When the case does not say them in exactly one way.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        match (&self.payload, &self.payload_hex, &self.payload_repeat) {
            (Some(text), None, None) => Ok(text.clone().into_bytes()),
            (None, Some(digits), None) => from_hex(digits),
            (None, None, Some(repeat)) => {
                let Repeat {
                    prefix,
                    unit,
                    count,
                    suffix,
                } = repeat;
                Ok(format!("{prefix}{}{suffix}", unit.repeat(*count)).into_bytes())
            }
            _ => Err("it needs exactly one of payload, payload_hex, payload_repeat".to_owned()),
        }
    }
}

fn from_hex(digits: &str) -> Result<Vec<u8>, String> {
    let pair = |pair: &[u8]| {
        let text = str::from_utf8(pair).map_err(|e| e.to_string())?;
        u8::from_str_radix(text, 16).map_err(|e| format!("payload_hex: {e}"))
    };
    if digits.len() % 2 == 1 {
        return Err("payload_hex has half a byte".to_owned());
    }
    digits.as_bytes().chunks(2).map(pair).collect()
}
