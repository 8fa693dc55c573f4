//! Hosts with awkward facts, and what is left of them.

use serde_json::{Value, json};

use super::{Sample, U1, U2};
use crate::integrations::inventory::message::NotEligible;

/// Merges `more` facts into a host that has one good id, and takes that id out again.
fn beside_an_id(more: &Value) -> Value {
    let mut facts = more.clone();
    facts["subscription_manager_id"] = U1.into();
    let mut left = Sample::with_facts(facts).facts();
    left.as_object_mut()
        .unwrap()
        .remove("subscription_manager_id");
    left
}

fn each(cases: &[(Value, Value)]) {
    for (reported, left) in cases {
        assert_eq!(beside_an_id(reported), *left, "of {reported}");
    }
}

/// None of these facts is left.
fn nothing_is_left_of(cases: &[Value]) {
    for reported in cases {
        assert_eq!(beside_an_id(reported), json!({}), "of {reported}");
    }
}

/// All of these facts are left, as they are.
fn all_is_left_of(cases: &[Value]) {
    for reported in cases {
        assert_eq!(beside_an_id(reported), *reported);
    }
}

#[test]
fn good_facts_are_sent_as_they_are() {
    let name_255 = format!("{}é", "a".repeat(254));
    all_is_left_of(&[
        json!({
            "insights_id": U2, "bios_uuid": U1, "satellite_id": "1234567890", "fqdn": "a.example",
            "ip_addresses": ["10.0.0.1", "::1"], "mac_addresses": ["52:54:00:ab:cd:ef"],
            "provider_id": "i-1", "provider_type": "aws",
        }),
        json!({"insights_id": U2.to_uppercase()}),
        json!({"satellite_id": U2}),
        json!({"satellite_id": "0000000001"}),
        json!({"ip_addresses": ["::ffff:10.0.0.1", "0.0.0.0"]}),
        json!({"mac_addresses": ["52-54-00-AB-CD-EF", "5254.00ab.cdef", "525400abcdef"]}),
        json!({"mac_addresses": ["80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:0a:6a:21"]}),
        json!({"fqdn": name_255}),
        json!({"provider_id": "i-1", "provider_type": "Azure"}),
        json!({"provider_id": "i".repeat(500), "provider_type": "gcp"}),
    ]);
}

#[test]
fn empty_facts_and_facts_of_other_types_are_left_out() {
    nothing_is_left_of(&[
        json!({"insights_id": null, "fqdn": null, "ip_addresses": null}),
        json!({"insights_id": "", "bios_uuid": "", "fqdn": ""}),
        json!({"satellite_id": "", "provider_id": "", "provider_type": ""}),
        json!({"ip_addresses": [], "mac_addresses": []}),
        json!({"ip_addresses": [""], "mac_addresses": [null, ""]}),
        json!({"fqdn": " \t\u{1f}"}),
        json!({"insights_id": 7, "bios_uuid": true, "fqdn": 1.5}),
        json!({"insights_id": {"id": U2}, "fqdn": ["a.example"]}),
        json!({"insights_id": [U2], "bios_uuid": [U2]}),
        json!({"satellite_id": 1_234_567_890}),
        json!({"ip_addresses": "10.0.0.1", "mac_addresses": "52:54:00:ab:cd:ef"}),
        json!({"ip_addresses": {"eth0": "10.0.0.1"}, "mac_addresses": 5}),
    ]);
}

#[test]
fn ids_are_dashed_uuids() {
    let dashless = U2.replace('-', "");
    each(&[
        (json!({"insights_id": dashless}), json!({"insights_id": U2})),
        (json!({"bios_uuid": dashless}), json!({"bios_uuid": U2})),
        (
            json!({"satellite_id": dashless}),
            json!({"satellite_id": U2}),
        ),
        (
            json!({"insights_id": dashless.to_uppercase()}),
            json!({"insights_id": U2}),
        ),
    ]);
    nothing_is_left_of(&[
        json!({"insights_id": format!("{{{U2}}}"), "bios_uuid": format!("urn:uuid:{U2}")}),
        json!({"insights_id": format!(" {U2}"), "bios_uuid": format!("{U2}\n")}),
        json!({"insights_id": &U2[..35], "bios_uuid": "not-a-uuid"}),
        json!({"insights_id": format!("{}g", &U2[..35])}),
        json!({"insights_id": format!("{}-", &dashless[..31])}),
        json!({"bios_uuid": "3a57b1ad516347ee-9e57-3bb6d90bdfff-a"}),
        json!({"satellite_id": "123456789"}),
        json!({"satellite_id": "12345678901"}),
        json!({"satellite_id": "123456789a"}),
        json!({"satellite_id": "\u{661}\u{662}\u{663}\u{664}\u{665}"}),
    ]);
}

#[test]
fn addresses_that_are_none_are_left_out_of_their_lists() {
    let good = json!({"mac_addresses": ["52:54:00:ab:cd:ef"]});
    each(&[
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
            good,
        ),
    ]);
    nothing_is_left_of(&[
        json!({"ip_addresses": ["10.0.0.256", "10.0.0.1/24", "10.0.0", "010.0.0.1", "x", " ::1"]}),
        json!({"mac_addresses": ["00:00:00:00:00:00", "00-00-00-00-00-00", "000000000000"]}),
        json!({"mac_addresses": ["0000.0000.0000", vec!["00"; 20].join(":"), "0".repeat(40)]}),
        json!({"mac_addresses": ["52:54:00:ab:cd", "52:54:00:ab:cd:ef:01", "52:54:00:ab:cd:eg"]}),
        json!({"mac_addresses": ["52:54-00:ab-cd:ef", "5:254:00:ab:cd:ef", " 52:54:00:ab:cd:ef"]}),
        json!({"mac_addresses": ["::::::", "525400abcde", "5254:00ab:cdef"]}),
    ]);
}

#[test]
fn a_name_that_is_too_long_and_half_a_provider_are_left_out() {
    nothing_is_left_of(&[
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
fn a_client_cannot_set_anything_but_facts() {
    nothing_is_left_of(&[
        json!({"machine_id": U2, "rhel_machine_id": U2, "": "x"}),
        json!({"display_name": "x", "ansible_host": "x", "groups": [{}], "facts": [{}]}),
        json!({"org_id": "666", "account": "666", "reporter": "x", "stale_timestamp": "x"}),
        json!({"tags": {"x": {}}, "system_profile": {"owner_id": U2}, "operation": "x"}),
    ]);
}

#[test]
fn without_an_id_that_inventory_accepts_the_host_is_refused() {
    for facts in [
        json!({"insights_id": "not-a-uuid"}),
        json!({"bios_uuid": U1, "satellite_id": U1, "fqdn": "a.example"}),
        json!({"ip_addresses": ["10.0.0.1"], "mac_addresses": ["52:54:00:ab:cd:ef"]}),
        json!({"provider_id": "i-1"}),
        json!({"provider_type": "aws"}),
        json!({"subscription_manager_id": 5}),
        json!({"machine_id": U1}),
    ] {
        let sample = Sample::with_facts(facts);
        assert_eq!(sample.refusal(), NotEligible::NoAcceptedId, "{sample:?}");
        assert!(!sample.inventory_eligible());
    }
    for facts in [
        json!({"insights_id": U1}),
        json!({"subscription_manager_id": U1.replace('-', "")}),
        json!({"provider_id": "i-1", "provider_type": "ibm"}),
    ] {
        assert!(Sample::with_facts(facts).inventory_eligible());
    }
}

#[test]
fn without_any_facts_it_does_not_concern_inventory() {
    for facts in [
        json!({}),
        json!({"insights_id": null, "fqdn": "", "ip_addresses": [], "x": {}}),
        // Rows that were adopted may hold these.
        Value::Null,
        json!([U1]),
        json!("facts"),
    ] {
        let sample = Sample::with_facts(facts);
        assert_eq!(sample.refusal(), NotEligible::NoFacts, "{sample:?}");
        assert!(!sample.inventory_eligible());
    }
}
