//! The response of `GET /v2/clients/{client_id}/diagnosis`.
//!
//! Every field except `state` and `summary` can be absent. A field with an unexpected type counts as
//! absent, so that an old program shows the rest of a newer connector's response.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

#[derive(Debug, Deserialize)]
pub(super) struct Diagnosis {
    pub state: String,
    pub summary: String,
    #[serde(default, deserialize_with = "lenient")]
    pub org_id: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub account: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub client_name: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub client_version: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub connected_since: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub last_seen: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub disconnected_at: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub reason: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub reconnects: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    pub recent_reconnects: Option<RecentReconnects>,
    #[serde(default, deserialize_with = "lenient")]
    pub tenant_lookup: Option<TenantLookup>,
    #[serde(default, deserialize_with = "lenient_list")]
    pub dead_letters: Vec<DeadLetter>,
    #[serde(default, deserialize_with = "lenient_list")]
    pub broker_rejections: Vec<BrokerRejection>,
    #[serde(default, deserialize_with = "lenient_list")]
    pub history: Vec<HistoryEntry>,
    #[serde(default, deserialize_with = "lenient")]
    pub suggestion: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RecentReconnects {
    #[serde(default, deserialize_with = "lenient")]
    pub count: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    pub since: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TenantLookup {
    #[serde(default, deserialize_with = "lenient", alias = "failed_attempts")]
    pub failed_lookups: Option<u64>,
    #[serde(default, deserialize_with = "lenient", alias = "max_attempts")]
    pub max_failed_lookups: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    pub last_lookup_at: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub next_lookup_at: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub gave_up: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(super) struct DeadLetter {
    /// A number or a text.
    #[serde(default)]
    pub id: Value,
    #[serde(default, deserialize_with = "lenient")]
    pub reason: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub detail: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub topic: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub last_received: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub occurrences: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct BrokerRejection {
    #[serde(default, deserialize_with = "lenient")]
    pub reason: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub peer: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub at: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct HistoryEntry {
    #[serde(default, deserialize_with = "lenient")]
    pub number: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    pub at: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub status: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub reason: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub org_id: Option<String>,
}

impl Diagnosis {
    /// Decodes the response.
    pub(super) fn from_json(document: &Value) -> serde_json::Result<Self> {
        Self::deserialize(document)
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state == "connected"
    }
}

/// Decodes a value. Returns `None` if the value is null or has another type.
fn lenient<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

/// Decodes the entries of a list. Omits entries with another type.
fn lenient_list<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let Value::Array(entries) = Value::deserialize(deserializer)? else {
        return Ok(Vec::new());
    };
    let decode = |entry| serde_json::from_value(entry).ok();
    Ok(entries.into_iter().filter_map(decode).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_state_and_summary_are_required() {
        let diagnosis = json!({"state": "unknown", "summary": "never seen"});
        let diagnosis = Diagnosis::from_json(&diagnosis).unwrap();
        assert!(!diagnosis.is_connected());
        assert!(diagnosis.history.is_empty());
        assert!(Diagnosis::from_json(&json!({"state": "unknown"})).is_err());
    }

    #[test]
    fn fields_with_an_unexpected_type_count_as_absent() {
        let diagnosis = Diagnosis::from_json(&json!({
            "state": "connected", "summary": "s", "org_id": null, "reconnects": "many",
            "reason": {"code": 1}, "dead_letters": null, "history": [7, {"number": "x", "at": "t"}],
            "new_field": true,
        }));
        let diagnosis = diagnosis.unwrap();
        assert!(diagnosis.is_connected());
        assert!(diagnosis.org_id.is_none() && diagnosis.reason.is_none());
        assert!(diagnosis.reconnects.is_none() && diagnosis.dead_letters.is_empty());
        assert_eq!(diagnosis.history.len(), 1);
        assert_eq!(diagnosis.history[0].at.as_deref(), Some("t"));
    }
}
