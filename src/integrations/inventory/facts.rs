//! The facts that inventory would accept of those that a client reports.

use std::borrow::Cow;
use std::net::IpAddr;

use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::message::is_over;

const FQDN_MAX_CHARS: usize = 255;
const PROVIDER_ID_MAX_CHARS: usize = 500;
/// Any other costs the host. Inventory compares them in lower case.
const PROVIDER_TYPES: [&str; 6] = ["alibaba", "aws", "azure", "discovery", "gcp", "ibm"];
/// Ways to write an address of 6 octets, or of 20 as InfiniBand has: separator, groups, digits.
const MAC_GROUPS: [(char, usize, usize); 5] = [
    (':', 6, 2),
    ('-', 6, 2),
    ('.', 3, 4),
    (':', 20, 2),
    ('-', 20, 2),
];

/// Canonical facts as inventory knows them; what it does not is left out.
///
/// The list is closed. `machine_id`, which older clients report, is no canonical fact any more, and
/// any other key would be a field of the host itself: a client that reports a "fact" `org_id` or
/// `display_name` must not be able to set these.
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
    pub(super) fn accepted(reported: &'a Value) -> Self {
        let text = |key: &str| reported.get(key).and_then(Value::as_str);
        let provider = provider(text("provider_id"), text("provider_type"));
        Self {
            insights_id: text("insights_id").and_then(dashed),
            subscription_manager_id: text("subscription_manager_id").and_then(dashed),
            satellite_id: text("satellite_id").and_then(satellite_id),
            bios_uuid: text("bios_uuid").and_then(dashed),
            ip_addresses: those(reported, "ip_addresses", is_ip),
            fqdn: text("fqdn").filter(|name| !is_blank(name) && !is_over(name, FQDN_MAX_CHARS)),
            mac_addresses: those(reported, "mac_addresses", is_mac),
            provider_id: provider.map(|(id, _)| id),
            provider_type: provider.map(|(_, kind)| kind),
        }
    }

    /// Whether inventory could tell this host by any of them: it wants one of these three.
    pub(super) fn have_id(&self) -> bool {
        self.insights_id.is_some()
            || self.subscription_manager_id.is_some()
            || self.provider_id.is_some()
    }
}

/// Whether the client reported anything: clients without facts send none, or all of them empty.
pub(super) fn are_reported(facts: &Value) -> bool {
    let says_something = |fact: &Value| match fact {
        Value::Null => false,
        Value::String(text) => !is_blank(text),
        Value::Array(items) => !items.is_empty(),
        Value::Object(inside) => !inside.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    };
    let values = facts.as_object().into_iter().flat_map(Map::values);
    values.into_iter().any(says_something)
}

/// Not in the braces or behind the `urn:` that the crate takes, too.
pub(super) fn is_dashed_uuid(text: &str) -> bool {
    text.len() == 36 && Uuid::try_parse(text).is_ok()
}

/// Dashed ones as they came, since inventory folds the case of all facts; dashless ones with the
/// dashes that it insists on.
fn dashed(id: &str) -> Option<Cow<'_, str>> {
    if is_dashed_uuid(id) {
        return Some(id.into());
    }
    let id = Uuid::try_parse(id).ok().filter(|_| id.len() == 32)?;
    Some(id.hyphenated().to_string().into())
}

/// Older Satellites count, newer ones have UUIDs.
fn satellite_id(id: &str) -> Option<Cow<'_, str>> {
    if id.len() == 10 && id.bytes().all(|b| b.is_ascii_digit()) {
        return Some(id.into());
    }
    dashed(id)
}

/// One without the other costs the host.
fn provider<'a>(id: Option<&'a str>, kind: Option<&'a str>) -> Option<(&'a str, &'a str)> {
    let id = id.filter(|id| !is_blank(id) && !is_over(id, PROVIDER_ID_MAX_CHARS))?;
    let is_known = |kind: &&str| PROVIDER_TYPES.iter().any(|k| k.eq_ignore_ascii_case(kind));
    Some((id, kind.filter(is_known)?))
}

fn those<'a>(facts: &'a Value, key: &str, is_good: fn(&str) -> bool) -> Vec<&'a str> {
    let items = facts.get(key).and_then(Value::as_array);
    let texts = items.into_iter().flatten().filter_map(Value::as_str);
    texts.filter(|text| is_good(text)).collect()
}

fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// Loopback interfaces have an address of zeros: it would make every host the same.
fn is_mac(text: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
    let is_grouped = MAC_GROUPS.iter().any(|&(separator, groups, digits)| {
        let is_group = |part: &str| part.len() == digits && is_hex(part);
        text.split(separator).count() == groups && text.split(separator).all(is_group)
    });
    let is_plain = matches!(text.len(), 12 | 40) && is_hex(text);
    let is_zero = !text.contains(|c: char| c.is_ascii_hexdigit() && c != '0');
    (is_grouped || is_plain) && !is_zero
}

/// Empty, or nothing that can be seen: inventory counts the separators among control characters
/// as space.
fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || c.is_control())
}
