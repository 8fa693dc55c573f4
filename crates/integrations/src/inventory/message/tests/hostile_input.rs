//! Tests which facts remain in the message if a host sends unusual or invalid facts.

use serde_json::{Value, json};

use super::{SampleHost, UUID_1, UUID_2};
use crate::inventory::message::IneligibleReason;

/// Returns the facts that remain in the message. Adds a valid id, because a host without an id is
/// not eligible, and removes this id from the result.
fn sent_facts(client_facts: &Value) -> Value {
    let mut facts = client_facts.clone();
    facts["subscription_manager_id"] = UUID_1.into();
    let mut sent_facts = SampleHost::with_facts(facts).check_message_and_get_facts();
    sent_facts
        .as_object_mut()
        .unwrap()
        .remove("subscription_manager_id");
    sent_facts
}

fn assert_sent_facts(cases: &[(Value, Value)]) {
    for (client_facts, expected) in cases {
        assert_eq!(sent_facts(client_facts), *expected, "{client_facts}");
    }
}

fn assert_all_facts_omitted(cases: &[Value]) {
    for client_facts in cases {
        assert_eq!(sent_facts(client_facts), json!({}), "{client_facts}");
    }
}

fn assert_all_facts_sent_unchanged(cases: &[Value]) {
    for client_facts in cases {
        assert_eq!(sent_facts(client_facts), *client_facts);
    }
}

#[test]
fn valid_facts_are_sent_unchanged() {
    let longest_fqdn = format!("{}é", "a".repeat(254));
    assert_all_facts_sent_unchanged(&[
        json!({
            "insights_id": UUID_2, "bios_uuid": UUID_1, "satellite_id": "1234567890",
            "fqdn": "a.example", "ip_addresses": ["10.0.0.1", "::1"],
            "mac_addresses": ["52:54:00:ab:cd:ef"], "provider_id": "i-1", "provider_type": "aws",
        }),
        json!({"insights_id": UUID_2.to_uppercase()}),
        json!({"satellite_id": UUID_2}),
        json!({"satellite_id": "0000000001"}),
        json!({"ip_addresses": ["::ffff:10.0.0.1", "0.0.0.0"]}),
        json!({"mac_addresses": ["52-54-00-AB-CD-EF", "5254.00ab.cdef", "525400abcdef"]}),
        json!({"mac_addresses": ["80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:0a:6a:21"]}),
        json!({"fqdn": longest_fqdn}),
        json!({"provider_id": "i-1", "provider_type": "Azure"}),
        json!({"provider_id": "i".repeat(500), "provider_type": "gcp"}),
    ]);
}

#[test]
fn empty_facts_and_facts_of_wrong_types_are_omitted() {
    assert_all_facts_omitted(&[
        json!({"insights_id": null, "fqdn": null, "ip_addresses": null}),
        json!({"insights_id": "", "bios_uuid": "", "fqdn": ""}),
        json!({"satellite_id": "", "provider_id": "", "provider_type": ""}),
        json!({"ip_addresses": [], "mac_addresses": []}),
        json!({"ip_addresses": [""], "mac_addresses": [null, ""]}),
        json!({"fqdn": " \t\u{1f}"}),
        json!({"insights_id": 7, "bios_uuid": true, "fqdn": 1.5}),
        json!({"insights_id": {"id": UUID_2}, "fqdn": ["a.example"]}),
        json!({"insights_id": [UUID_2], "bios_uuid": [UUID_2]}),
        json!({"satellite_id": 1_234_567_890}),
        json!({"ip_addresses": "10.0.0.1", "mac_addresses": "52:54:00:ab:cd:ef"}),
        json!({"ip_addresses": {"eth0": "10.0.0.1"}, "mac_addresses": 5}),
    ]);
}

#[test]
fn dashless_uuids_get_dashes_and_other_invalid_ids_are_omitted() {
    let dashless = UUID_2.replace('-', "");
    assert_sent_facts(&[
        (
            json!({"insights_id": dashless}),
            json!({"insights_id": UUID_2}),
        ),
        (json!({"bios_uuid": dashless}), json!({"bios_uuid": UUID_2})),
        (
            json!({"satellite_id": dashless}),
            json!({"satellite_id": UUID_2}),
        ),
        (
            json!({"insights_id": dashless.to_uppercase()}),
            json!({"insights_id": UUID_2}),
        ),
    ]);
    assert_all_facts_omitted(&[
        json!({"insights_id": format!("{{{UUID_2}}}"), "bios_uuid": format!("urn:uuid:{UUID_2}")}),
        json!({"insights_id": format!(" {UUID_2}"), "bios_uuid": format!("{UUID_2}\n")}),
        json!({"insights_id": &UUID_2[..35], "bios_uuid": "not-a-uuid"}),
        json!({"insights_id": format!("{}g", &UUID_2[..35])}),
        json!({"insights_id": format!("{}-", &dashless[..31])}),
        json!({"bios_uuid": "3a57b1ad516347ee-9e57-3bb6d90bdfff-a"}),
        json!({"satellite_id": "123456789"}),
        json!({"satellite_id": "12345678901"}),
        json!({"satellite_id": "123456789a"}),
        json!({"satellite_id": "\u{661}\u{662}\u{663}\u{664}\u{665}"}),
    ]);
}

#[test]
fn invalid_ip_and_mac_addresses_are_omitted_from_their_lists() {
    let valid_mac = json!({"mac_addresses": ["52:54:00:ab:cd:ef"]});
    assert_sent_facts(&[
        (
            json!({"ip_addresses": [1, {}, ["10.0.0.1"], "10.0.0.1", null]}),
            json!({"ip_addresses": ["10.0.0.1"]}),
        ),
        (
            json!({"ip_addresses": ["fe80::1%eth0", "[::1]", "fe80::1"]}),
            json!({"ip_addresses": ["fe80::1"]}),
        ),
        (
            json!({"mac_addresses": ["00:00:00:00:00:00", "52:54:00:ab:cd:ef"]}),
            valid_mac,
        ),
    ]);
    assert_all_facts_omitted(&[
        json!({"ip_addresses": ["10.0.0.256", "10.0.0.1/24", "10.0.0", "010.0.0.1", "x", " ::1"]}),
        json!({"mac_addresses": ["00:00:00:00:00:00", "00-00-00-00-00-00", "000000000000"]}),
        json!({"mac_addresses": ["0000.0000.0000", vec!["00"; 20].join(":"), "0".repeat(40)]}),
        json!({"mac_addresses": ["52:54:00:ab:cd", "52:54:00:ab:cd:ef:01", "52:54:00:ab:cd:eg"]}),
        json!({"mac_addresses": ["52:54-00:ab-cd:ef", "5:254:00:ab:cd:ef", " 52:54:00:ab:cd:ef"]}),
        json!({"mac_addresses": ["::::::", "525400abcde", "5254:00ab:cdef"]}),
    ]);
}

#[test]
fn too_long_fqdn_and_incomplete_provider_are_omitted() {
    assert_all_facts_omitted(&[
        json!({"fqdn": "a".repeat(256)}),
        json!({"provider_id": "i-1"}),
        json!({"provider_type": "aws"}),
        json!({"provider_id": "i-1", "provider_type": ""}),
        json!({"provider_id": " ", "provider_type": "aws"}),
        json!({"provider_id": 1, "provider_type": "aws"}),
        json!({"provider_id": "i-1", "provider_type": "basement"}),
        json!({"provider_id": "i".repeat(501), "provider_type": "gcp"}),
    ]);
}

#[test]
fn client_facts_cannot_set_other_fields_of_the_message() {
    assert_all_facts_omitted(&[
        json!({"machine_id": UUID_2, "rhel_machine_id": UUID_2, "": "x"}),
        json!({"display_name": "x", "ansible_host": "x", "groups": [{}], "facts": [{}]}),
        json!({"org_id": "666", "account": "666", "reporter": "x", "stale_timestamp": "x"}),
        json!({"tags": {"x": {}}, "system_profile": {"owner_id": UUID_2}, "operation": "x"}),
    ]);
}

#[test]
fn host_without_a_valid_id_is_not_eligible() {
    for facts in [
        json!({"insights_id": "not-a-uuid"}),
        json!({"bios_uuid": UUID_1, "satellite_id": UUID_1, "fqdn": "a.example"}),
        json!({"ip_addresses": ["10.0.0.1"], "mac_addresses": ["52:54:00:ab:cd:ef"]}),
        json!({"provider_id": "i-1"}),
        json!({"provider_type": "aws"}),
        json!({"subscription_manager_id": 5}),
        json!({"machine_id": UUID_1}),
    ] {
        let sample = SampleHost::with_facts(facts);
        assert_eq!(
            sample.ineligible_reason(),
            IneligibleReason::NoAcceptedId,
            "{sample:?}"
        );
        assert!(!sample.is_eligible());
    }
    for facts in [
        json!({"insights_id": UUID_1}),
        json!({"subscription_manager_id": UUID_1.replace('-', "")}),
        json!({"provider_id": "i-1", "provider_type": "ibm"}),
    ] {
        assert!(SampleHost::with_facts(facts).is_eligible());
    }
}

#[test]
fn host_without_facts_is_not_eligible() {
    for facts in [
        json!({}),
        json!({"insights_id": null, "fqdn": "", "ip_addresses": [], "x": {}}),
        // Rows that the Go implementation wrote can contain the following values.
        Value::Null,
        json!([UUID_1]),
        json!("facts"),
    ] {
        let sample = SampleHost::with_facts(facts);
        assert_eq!(
            sample.ineligible_reason(),
            IneligibleReason::NoFacts,
            "{sample:?}"
        );
        assert!(!sample.is_eligible());
    }
}
