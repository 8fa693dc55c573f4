//! The configurable topic levels of the handshake dialect.

use serde::{Deserialize, Deserializer};

/// The topic levels that the handshake dialect uses between the prefix and the client id. A
/// deployment can configure these levels.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandshakeTopicLevels {
    /// Level in the topics that clients publish to. The default is `in`.
    #[serde(rename = "in")]
    pub inbound_level: String,
    /// Level in the topics that clients subscribe to. The default is `out`.
    #[serde(rename = "out")]
    pub outbound_level: String,
    /// Level in the separate topics for presence messages. `None` if the deployment has no separate
    /// topics for presence messages.
    #[serde(rename = "status", deserialize_with = "level_unless_empty")]
    pub status_level: Option<String>,
}

/// Deserializes a topic level. Returns `None` for an empty string.
fn level_unless_empty<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let level = String::deserialize(deserializer)?;
    Ok((!level.is_empty()).then_some(level))
}

impl Default for HandshakeTopicLevels {
    fn default() -> Self {
        Self {
            inbound_level: "in".to_owned(),
            outbound_level: "out".to_owned(),
            status_level: None,
        }
    }
}
