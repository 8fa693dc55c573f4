//! Selects those facts of a client that inventory accepts.

use std::borrow::Cow;
use std::net::IpAddr;

use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::message::is_longer_than;

const MAX_FQDN_CHARS: usize = 255;
const MAX_PROVIDER_ID_CHARS: usize = 500;
/// Provider types that inventory accepts, in any letter case. Inventory rejects a host with another
/// provider type.
const PROVIDER_TYPES: [&str; 6] = ["alibaba", "aws", "azure", "discovery", "gcp", "ibm"];
/// Notations of MAC addresses that inventory accepts: separator, number of groups, digits per
/// group. An Ethernet address has 6 octets. An InfiniBand address has 20 octets.
const MAC_NOTATIONS: [(char, usize, usize); 5] = [
    (':', 6, 2),
    ('-', 6, 2),
    ('.', 3, 4),
    (':', 20, 2),
    ('-', 20, 2),
];

/// The canonical facts of inventory's schema. All other facts are omitted.
///
/// The message contains the facts and other fields, such as `org_id`, in the same JSON object. The
/// fixed list of facts prevents a client from setting another field with a fact of the same name.
/// Older clients send `machine_id`, which is no longer a canonical fact.
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
    pub(super) fn select_accepted_facts(client_facts: &'a Value) -> Self {
        let string_fact = |fact_name: &str| client_facts.get(fact_name).and_then(Value::as_str);
        let provider = valid_provider(string_fact("provider_id"), string_fact("provider_type"));
        Self {
            insights_id: string_fact("insights_id").and_then(to_dashed_uuid),
            subscription_manager_id: string_fact("subscription_manager_id")
                .and_then(to_dashed_uuid),
            satellite_id: string_fact("satellite_id").and_then(valid_satellite_id),
            bios_uuid: string_fact("bios_uuid").and_then(to_dashed_uuid),
            ip_addresses: valid_list_items(client_facts, "ip_addresses", is_ip),
            fqdn: string_fact("fqdn")
                .filter(|name| !is_blank(name) && !is_longer_than(name, MAX_FQDN_CHARS)),
            mac_addresses: valid_list_items(client_facts, "mac_addresses", is_mac),
            provider_id: provider.map(|(id, _)| id),
            provider_type: provider.map(|(_, kind)| kind),
        }
    }

    /// Returns whether the facts identify a host. Inventory requires an `insights_id`, a
    /// `subscription_manager_id` or a `provider_id`.
    pub(super) fn can_identify_host(&self) -> bool {
        self.insights_id.is_some()
            || self.subscription_manager_id.is_some()
            || self.provider_id.is_some()
    }
}

/// Returns whether any fact has a value. Some clients that have no facts send every fact with an
/// empty value.
pub(super) fn has_any_value(facts: &Value) -> bool {
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

/// Returns whether the text is a UUID with dashes. Checks the length, because `Uuid::try_parse`
/// also accepts UUIDs without dashes, with braces or with `urn:`.
pub(super) fn is_dashed_uuid(text: &str) -> bool {
    text.len() == 36 && Uuid::try_parse(text).is_ok()
}

/// Adds the dashes that inventory requires to a UUID without dashes. Returns a UUID with dashes
/// unchanged. Returns `None` for other texts.
fn to_dashed_uuid(text: &str) -> Option<Cow<'_, str>> {
    if is_dashed_uuid(text) {
        return Some(text.into());
    }
    let uuid = Uuid::try_parse(text).ok().filter(|_| text.len() == 32)?;
    Some(uuid.hyphenated().to_string().into())
}

/// Returns the Satellite id, or `None` if the id is invalid. Older Satellite versions use ten
/// digits, and newer versions use a UUID.
fn valid_satellite_id(id: &str) -> Option<Cow<'_, str>> {
    if id.len() == 10 && id.bytes().all(|b| b.is_ascii_digit()) {
        return Some(id.into());
    }
    to_dashed_uuid(id)
}

/// Returns the provider id and the provider type if both are valid. Inventory rejects a host that
/// has only one of these two facts.
fn valid_provider<'a>(id: Option<&'a str>, kind: Option<&'a str>) -> Option<(&'a str, &'a str)> {
    let id = id.filter(|id| !is_blank(id) && !is_longer_than(id, MAX_PROVIDER_ID_CHARS))?;
    let is_supported = |kind: &&str| PROVIDER_TYPES.iter().any(|k| k.eq_ignore_ascii_case(kind));
    Some((id, kind.filter(is_supported)?))
}

/// The fact `fact_name` is a list. Returns the strings in this list that satisfy `is_valid`.
fn valid_list_items<'a>(
    facts: &'a Value,
    fact_name: &str,
    is_valid: fn(&str) -> bool,
) -> Vec<&'a str> {
    let items = facts.get(fact_name).and_then(Value::as_array);
    let texts = items.into_iter().flatten().filter_map(Value::as_str);
    texts.filter(|text| is_valid(text)).collect()
}

fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// Returns whether the text is a MAC address. Rejects an address of zeros: every host has this
/// address on its loopback interface, so the address identifies no host.
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

/// Returns whether the text is empty or contains only white space and control characters. Control
/// characters are included, because inventory treats some of them as white space.
fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || c.is_control())
}
