//! Selects the facts that inventory accepts from those that a client sent.

use std::borrow::Cow;
use std::net::IpAddr;

use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::message::is_longer_than;

const MAX_FQDN_CHARS: usize = 255;
const MAX_PROVIDER_ID_CHARS: usize = 500;
/// Inventory rejects a host with any other provider type. It ignores upper and lower case.
const PROVIDER_TYPES: [&str; 6] = ["alibaba", "aws", "azure", "discovery", "gcp", "ibm"];
/// Notations of a MAC address of 6 octets, or of 20 (InfiniBand): separator, number of groups,
/// digits per group.
const MAC_NOTATIONS: [(char, usize, usize); 5] = [
    (':', 6, 2),
    ('-', 6, 2),
    ('.', 3, 4),
    (':', 20, 2),
    ('-', 20, 2),
];

/// The canonical facts of inventory's schema. All other facts are omitted.
///
/// The message has the facts and the host's own fields in one JSON object. The fixed list therefore
/// prevents that a client sets a field such as `org_id` or `display_name` by sending a fact of that
/// name. `machine_id`, which older clients send, is no longer a canonical fact.
#[derive(Serialize)]
pub(super) struct Facts<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    insights_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subscription_manager_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    satellite_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bios_uuid: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ip_addresses: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fqdn: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mac_addresses: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    provider_type: Option<&'a str>,
}

impl<'a> Facts<'a> {
    /// Selects and normalizes the facts that inventory accepts.
    pub(super) fn accepted(client_facts: &'a Value) -> Self {
        let text = |key: &str| client_facts.get(key).and_then(Value::as_str);
        let provider = provider(text("provider_id"), text("provider_type"));
        Self {
            insights_id: text("insights_id").and_then(dashed_uuid),
            subscription_manager_id: text("subscription_manager_id").and_then(dashed_uuid),
            satellite_id: text("satellite_id").and_then(satellite_id),
            bios_uuid: text("bios_uuid").and_then(dashed_uuid),
            ip_addresses: valid_items(client_facts, "ip_addresses", is_ip),
            fqdn: text("fqdn")
                .filter(|name| !is_blank(name) && !is_longer_than(name, MAX_FQDN_CHARS)),
            mac_addresses: valid_items(client_facts, "mac_addresses", is_mac),
            provider_id: provider.map(|(id, _)| id),
            provider_type: provider.map(|(_, kind)| kind),
        }
    }

    /// Returns whether the facts identify a host. Inventory requires one of these three.
    pub(super) fn identify_host(&self) -> bool {
        self.insights_id.is_some()
            || self.subscription_manager_id.is_some()
            || self.provider_id.is_some()
    }
}

/// Returns whether any fact has a value. Some clients without facts send them all empty.
pub(super) fn any_present(facts: &Value) -> bool {
    let has_value = |fact: &Value| match fact {
        Value::Null => false,
        Value::String(text) => !is_blank(text),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    let values = facts.as_object().into_iter().flat_map(Map::values);
    values.into_iter().any(has_value)
}

/// Checks the length, because `Uuid::try_parse` also accepts dashless, braced and `urn:` notations.
pub(super) fn is_dashed_uuid(text: &str) -> bool {
    text.len() == 36 && Uuid::try_parse(text).is_ok()
}

/// Adds the dashes that inventory requires to a dashless UUID. Returns a dashed UUID unchanged.
fn dashed_uuid(id: &str) -> Option<Cow<'_, str>> {
    if is_dashed_uuid(id) {
        return Some(id.into());
    }
    let id = Uuid::try_parse(id).ok().filter(|_| id.len() == 32)?;
    Some(id.hyphenated().to_string().into())
}

/// Older Satellite versions use ten digits, newer ones a UUID.
fn satellite_id(id: &str) -> Option<Cow<'_, str>> {
    if id.len() == 10 && id.bytes().all(|b| b.is_ascii_digit()) {
        return Some(id.into());
    }
    dashed_uuid(id)
}

/// Returns id and type only together: inventory rejects a host with just one of them.
fn provider<'a>(id: Option<&'a str>, kind: Option<&'a str>) -> Option<(&'a str, &'a str)> {
    let id = id.filter(|id| !is_blank(id) && !is_longer_than(id, MAX_PROVIDER_ID_CHARS))?;
    let is_supported = |kind: &&str| PROVIDER_TYPES.iter().any(|k| k.eq_ignore_ascii_case(kind));
    Some((id, kind.filter(is_supported)?))
}

/// Returns the strings in the list `key` that satisfy `is_valid`.
fn valid_items<'a>(facts: &'a Value, key: &str, is_valid: fn(&str) -> bool) -> Vec<&'a str> {
    let items = facts.get(key).and_then(Value::as_array);
    let texts = items.into_iter().flatten().filter_map(Value::as_str);
    texts.filter(|text| is_valid(text)).collect()
}

fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// Rejects an all-zero address: every host has it on its loopback interface, so it identifies none.
fn is_mac(text: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
    let is_grouped = MAC_NOTATIONS.iter().any(|&(separator, groups, digits)| {
        let is_group = |part: &str| part.len() == digits && is_hex(part);
        text.split(separator).count() == groups && text.split(separator).all(is_group)
    });
    let is_ungrouped = matches!(text.len(), 12 | 40) && is_hex(text);
    let is_zero = !text.contains(|c: char| c.is_ascii_hexdigit() && c != '0');
    (is_grouped || is_ungrouped) && !is_zero
}

/// Returns whether the text is empty or has only white space and control characters. Inventory
/// treats some control characters as white space.
fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || c.is_control())
}
