//! Checks that a message meets inventory's rules, without using the code under test.

use std::net::{Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

const FACT_KEYS: [&str; 9] = [
    "insights_id",
    "subscription_manager_id",
    "satellite_id",
    "bios_uuid",
    "ip_addresses",
    "fqdn",
    "mac_addresses",
    "provider_id",
    "provider_type",
];
const NON_FACT_DATA_KEYS: [&str; 6] = [
    "account",
    "org_id",
    "stale_timestamp",
    "reporter",
    "system_profile",
    "tags",
];

/// Panics if the message violates one of inventory's rules.
pub(super) fn check_message(kafka_key: &str, json: &[u8]) {
    let message: Value = serde_json::from_slice(json).unwrap();
    assert_keys(
        &message,
        &["operation", "platform_metadata", "data"],
        &["operation", "platform_metadata", "data"],
    );
    assert_eq!(message["operation"], "add_host");
    assert_no_null_or_empty_value(&message);

    let metadata = &message["platform_metadata"];
    let metadata_keys = ["request_id", "b64_identity"];
    assert_keys(metadata, &metadata_keys, &metadata_keys);
    assert!(is_uuid(string_value(&metadata["request_id"])));
    let identity = STANDARD
        .decode(string_value(&metadata["b64_identity"]))
        .unwrap();
    let identity: Value = serde_json::from_slice(&identity).unwrap();
    let identity = &identity["identity"];

    let data = &message["data"];
    let allowed_keys: Vec<&str> = FACT_KEYS.into_iter().chain(NON_FACT_DATA_KEYS).collect();
    assert_keys(
        data,
        &allowed_keys,
        &["org_id", "stale_timestamp", "reporter"],
    );
    assert_eq!(string_value(&data["org_id"]), kafka_key);
    assert_eq!(string_value(&identity["org_id"]), kafka_key);
    assert!(kafka_key.chars().count() <= 36);
    assert_eq!(data["reporter"], "cloud-connector");
    let stale_timestamp = string_value(&data["stale_timestamp"]);
    assert!(
        stale_timestamp.ends_with('Z') && stale_timestamp.as_bytes()[10] == b'T',
        "{stale_timestamp}"
    );
    if let Some(account) = data.get("account") {
        assert!(string_value(account).chars().count() <= 10);
    }
    check_facts(data);
    check_system_profile(data, identity);
    check_tags(data);
}

fn check_facts(data: &Value) {
    let ids = ["insights_id", "subscription_manager_id", "provider_id"];
    assert!(ids.iter().any(|id| data.get(id).is_some()), "no id: {data}");
    for id in ["insights_id", "subscription_manager_id", "bios_uuid"] {
        if let Some(id) = data.get(id) {
            assert!(is_uuid(&string_value(id).to_lowercase()), "{id}");
        }
    }
    if let Some(id) = data.get("satellite_id") {
        let is_number =
            string_value(id).len() == 10 && string_value(id).chars().all(|c| c.is_ascii_digit());
        assert!(
            is_number || is_uuid(&string_value(id).to_lowercase()),
            "{id}"
        );
    }
    for ip in string_list(data, "ip_addresses") {
        assert!(
            ip.parse::<Ipv4Addr>().is_ok() || ip.parse::<Ipv6Addr>().is_ok(),
            "{ip}"
        );
    }
    for mac in string_list(data, "mac_addresses") {
        let digits: String = mac.chars().filter(char::is_ascii_hexdigit).collect();
        let separators: Vec<char> = mac.chars().filter(|c| !c.is_ascii_hexdigit()).collect();
        assert!(digits.len() == 12 || digits.len() == 40, "{mac}");
        assert!(digits.bytes().any(|digit| digit != b'0'), "{mac}");
        assert!(
            separators.windows(2).all(|pair| pair[0] == pair[1]),
            "{mac}"
        );
        assert!([0, 2, 5, 19].contains(&separators.len()), "{mac}");
    }
    if let Some(name) = data.get("fqdn") {
        assert!(string_value(name).chars().count() <= 255);
    }
    assert_eq!(
        data.get("provider_id").is_some(),
        data.get("provider_type").is_some()
    );
}

fn check_system_profile(data: &Value, identity: &Value) {
    let Some(profile) = data.get("system_profile") else {
        return;
    };
    assert_keys(profile, &["rhc_client_id", "owner_id"], &["rhc_client_id"]);
    let client = string_value(&profile["rhc_client_id"]);
    assert!(is_uuid(client), "{client}");
    if let Some(owner) = profile.get("owner_id") {
        assert_eq!(owner, client);
        assert_eq!(identity["auth_type"], "cert-auth");
        assert!(identity["type"] != "System" || &identity["system"]["cn"] == owner);
    }
}

fn check_tags(data: &Value) {
    let Some(tags) = data.get("tags") else {
        return;
    };
    assert_keys(tags, &["rhc_client"], &["rhc_client"]);
    for (key, values) in tags["rhc_client"].as_object().unwrap() {
        assert!((1..=255).contains(&key.chars().count()), "{key}");
        let values = values.as_array().unwrap();
        assert_eq!(values.len(), 1);
        assert!(string_value(&values[0]).chars().count() <= 255);
    }
}

/// Panics if `value` contains null, an empty value, a number or a boolean. Ignores the values of
/// tags, because a tag may be empty.
fn assert_no_null_or_empty_value(value: &Value) {
    match value {
        Value::String(text) => assert!(!text.trim().is_empty()),
        Value::Array(items) => {
            assert!(!items.is_empty());
            items.iter().for_each(assert_no_null_or_empty_value);
        }
        Value::Object(fields) => {
            assert!(!fields.is_empty());
            let without_tags = fields.iter().filter(|(key, _)| *key != "rhc_client");
            without_tags.for_each(|(_, value)| assert_no_null_or_empty_value(value));
            assert!(fields.get("rhc_client") != Some(&Value::Object(Map::new())));
        }
        other => panic!("unexpected value {other}"),
    }
}

/// Returns whether the text is a lower-case UUID with dashes.
fn is_uuid(text: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    let groups: Vec<usize> = text.split('-').map(str::len).collect();
    groups == [8, 4, 4, 4, 12] && text.chars().all(|c| c == '-' || is_digit(c))
}

fn assert_keys(object: &Value, allowed_keys: &[&str], required_keys: &[&str]) {
    let keys: Vec<&String> = object.as_object().unwrap().keys().collect();
    assert!(
        keys.iter().all(|key| allowed_keys.contains(&key.as_str())),
        "{keys:?}"
    );
    assert!(
        required_keys.iter().all(|key| object.get(key).is_some()),
        "{keys:?}"
    );
}

fn string_list<'a>(data: &'a Value, key: &str) -> Vec<&'a str> {
    let items = data.get(key).map(|items| items.as_array().unwrap());
    items.into_iter().flatten().map(string_value).collect()
}

fn string_value(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[test]
fn checker_rejects_invalid_messages() {
    let message = super::SampleHost::with_tags(serde_json::json!({"a": "b"})).build_message();
    let valid_message: Value = serde_json::from_slice(&message.unwrap().json).unwrap();
    let is_rejected = |message: &Value| {
        let value = message.to_string();
        std::panic::catch_unwind(|| check_message("10001", value.as_bytes())).is_err()
    };
    assert!(!is_rejected(&valid_message));
    for (pointer, key, invalid_json) in [
        ("", "metadata", "{}"),
        ("/data", "machine_id", "\"x\""),
        ("/data", "org_id", "\"10002\""),
        ("/data", "account", "\"12345678901\""),
        (
            "/data",
            "insights_id",
            "\"3a57b1ad516347ee9e573bb6d90bdfff\"",
        ),
        ("/data", "bios_uuid", "null"),
        ("/data", "fqdn", "\"\""),
        ("/data", "ip_addresses", "[\"10.0.0.256\"]"),
        ("/data", "mac_addresses", "[\"00:00:00:00:00:00\"]"),
        ("/data", "mac_addresses", "[]"),
        ("/data", "provider_id", "\"i-1\""),
        ("/data/system_profile", "owner_id", "\"x\""),
        ("/data/tags/rhc_client", "", "[\"x\"]"),
    ] {
        let mut message = valid_message.clone();
        let object = message.pointer_mut(pointer).unwrap();
        object[key] = serde_json::from_str(invalid_json).unwrap();
        assert!(is_rejected(&message), "{pointer}/{key} was accepted");
    }
}
