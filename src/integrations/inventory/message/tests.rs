use insta::assert_snapshot;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::domain::OrgId;

mod checker;
mod hostile_input;

const U1: &str = "f8d7e0a1-5b0a-4c6e-9a43-6d1e0f0b8a11";
const U2: &str = "3a57b1ad-5163-47ee-9e57-3bb6d90bdfff";
const REQUEST: Uuid = uuid::uuid!("0195f0a1-0000-7000-8000-000000000001");
/// A system of organisation 10001 with the common name `U1`.
const SYSTEM: &str = "eyJpZGVudGl0eSI6eyJ0eXBlIjoiU3lzdGVtIiwiYXV0aF90eXBlIjoiY2VydC1hdXRoIiwiYWNjb3VudF9udW1iZXIiOiIwMTAxMDEiLCJvcmdfaWQiOiIxMDAwMSIsImludGVybmFsIjp7Im9yZ19pZCI6IjEwMDAxIn0sInN5c3RlbSI6eyJjbiI6ImY4ZDdlMGExLTViMGEtNGM2ZS05YTQzLTZkMWUwZjBiOGExMSIsImNlcnRfdHlwZSI6InN5c3RlbSJ9fX0=";
const TERMS: ReportPolicy = ReportPolicy {
    stale_after: Duration::from_hours(26),
    include_handshake_hosts: true,
};

/// A connection that can be announced, to be made awkward.
#[derive(Debug)]
struct Sample {
    client_id: ClientId,
    tenant: Tenant,
    identity: Identity,
    dialect: Dialect,
    kind: ClientKind,
    reported: ClientInfo,
    terms: ReportPolicy,
}

impl Sample {
    fn new() -> Self {
        let tenant = tenant("10001", "010101");
        Self {
            client_id: ClientId::new(U1).unwrap(),
            identity: Identity::made_for(&tenant),
            tenant,
            dialect: Dialect::Status,
            kind: ClientKind::Host,
            reported: ClientInfo {
                canonical_facts: json!({"insights_id": U2}),
                catalog_service_facts: Value::Null,
                dispatchers: json!({"rhc-worker-playbook": {}}),
                tags: Value::Null,
                client_name: String::new(),
                client_version: String::new(),
            },
            terms: TERMS,
        }
    }

    fn with_facts(facts: Value) -> Self {
        let mut sample = Self::new();
        sample.reported.canonical_facts = facts;
        sample
    }

    fn with_tags(tags: Value) -> Self {
        let mut sample = Self::new();
        sample.reported.tags = tags;
        sample
    }

    fn announce(&self) -> Result<InventoryMessage, NotEligible> {
        let host = Host {
            client_id: &self.client_id,
            tenant: &self.tenant,
            identity: &self.identity,
            dialect: self.dialect,
            kind: self.kind,
            reported: &self.reported,
        };
        let now = "2026-01-02T15:04:05Z".parse().unwrap();
        announcement(&host, now, self.terms, REQUEST)
    }

    fn inventory_eligible(&self) -> bool {
        let include_handshake_hosts = self.terms.include_handshake_hosts;
        inventory_eligible(
            self.dialect,
            self.kind,
            &self.reported,
            include_handshake_hosts,
        )
    }

    fn refusal(&self) -> NotEligible {
        self.announce().unwrap_err()
    }

    /// The message's `data`. Every message that a test looks at is checked on the way.
    fn data(&self) -> Value {
        let sent = self.announce().unwrap();
        checker::check(&sent.key, &sent.value);
        assert!(self.inventory_eligible());
        let mut message: Value = serde_json::from_slice(&sent.value).unwrap();
        message["data"].take()
    }

    /// Without what is not of the client's facts.
    fn facts(&self) -> Value {
        let mut data = self.data();
        let fields = data.as_object_mut().unwrap();
        assert_eq!(fields.remove("org_id").unwrap(), "10001");
        assert_eq!(fields.remove("account").unwrap(), "010101");
        assert_eq!(fields.remove("reporter").unwrap(), "cloud-connector");
        assert_eq!(
            fields.remove("stale_timestamp").unwrap(),
            "2026-01-03T17:04:05Z"
        );
        let profile = json!({"rhc_client_id": U1, "owner_id": U1});
        assert_eq!(fields.remove("system_profile").unwrap(), profile);
        data
    }
}

fn tenant(org_id: &str, account: &str) -> Tenant {
    Tenant {
        org_id: OrgId::new(org_id).unwrap(),
        account: account.into(),
    }
}

fn identity(fields: &Value) -> Identity {
    use base64::Engine as _;
    let text = json!({"identity": fields}).to_string();
    Identity::from_base64(&base64::engine::general_purpose::STANDARD.encode(text)).unwrap()
}

#[test]
fn a_message_has_every_field_in_its_place() {
    let mut sample = Sample::with_tags(json!({"role": "web <&>", "env": "prod"}));
    sample.reported.canonical_facts = json!({
        "insights_id": U2, "subscription_manager_id": U1, "satellite_id": "1234567890",
        "bios_uuid": U2, "ip_addresses": ["10.0.0.1"], "fqdn": "a.example",
        "mac_addresses": ["52:54:00:ab:cd:ef"], "provider_id": "i-1", "provider_type": "aws",
    });
    sample.identity = Identity::from_base64(SYSTEM).unwrap();
    let sent = sample.announce().unwrap();
    checker::check(&sent.key, &sent.value);
    assert_eq!(sent.key, "10001");
    assert_snapshot!(
        String::from_utf8(sent.value).unwrap(),
        @r#"{"operation":"add_host","platform_metadata":{"request_id":"0195f0a1-0000-7000-8000-000000000001","b64_identity":"eyJpZGVudGl0eSI6eyJ0eXBlIjoiU3lzdGVtIiwiYXV0aF90eXBlIjoiY2VydC1hdXRoIiwiYWNjb3VudF9udW1iZXIiOiIwMTAxMDEiLCJvcmdfaWQiOiIxMDAwMSIsImludGVybmFsIjp7Im9yZ19pZCI6IjEwMDAxIn0sInN5c3RlbSI6eyJjbiI6ImY4ZDdlMGExLTViMGEtNGM2ZS05YTQzLTZkMWUwZjBiOGExMSIsImNlcnRfdHlwZSI6InN5c3RlbSJ9fX0="},"data":{"insights_id":"3a57b1ad-5163-47ee-9e57-3bb6d90bdfff","subscription_manager_id":"f8d7e0a1-5b0a-4c6e-9a43-6d1e0f0b8a11","satellite_id":"1234567890","bios_uuid":"3a57b1ad-5163-47ee-9e57-3bb6d90bdfff","ip_addresses":["10.0.0.1"],"fqdn":"a.example","mac_addresses":["52:54:00:ab:cd:ef"],"provider_id":"i-1","provider_type":"aws","account":"010101","org_id":"10001","stale_timestamp":"2026-01-03T17:04:05Z","reporter":"cloud-connector","system_profile":{"rhc_client_id":"f8d7e0a1-5b0a-4c6e-9a43-6d1e0f0b8a11","owner_id":"f8d7e0a1-5b0a-4c6e-9a43-6d1e0f0b8a11"},"tags":{"rhc_client":{"env":["prod"],"role":["web <&>"]}}}}"#
    );
}

#[test]
fn the_least_that_is_sent_has_no_empty_places() {
    let mut sample = Sample::new();
    sample.tenant.account = String::new();
    sample.client_id = ClientId::new("client-1").unwrap();
    assert_eq!(
        sample.data(),
        json!({"insights_id": U2, "org_id": "10001", "reporter": "cloud-connector",
            "stale_timestamp": "2026-01-03T17:04:05Z"})
    );
}

#[test]
fn a_connection_needs_one_of_the_dispatchers_in_either_spelling() {
    for name in [
        "rhc-worker-playbook",
        "package-manager",
        "rhc_worker_script",
    ] {
        let mut sample = Sample::new();
        sample.reported.dispatchers = json!({name: null, "echo": {}});
        sample.data();
    }
    for dispatchers in [
        json!({}),
        json!({"echo": {}, "rhc-worker": {}}),
        Value::Null,
    ] {
        let mut sample = Sample::new();
        sample.reported.dispatchers = dispatchers;
        assert_eq!(sample.refusal(), NotEligible::NoDispatcher);
        assert!(!sample.inventory_eligible());
    }
}

#[test]
fn a_setting_decides_on_handshake_hosts_which_have_no_dispatchers() {
    let mut sample = Sample::new();
    sample.dialect = Dialect::Handshake;
    sample.reported.dispatchers = Value::Null;
    sample.data();
    sample.terms.include_handshake_hosts = false;
    assert_eq!(sample.refusal(), NotEligible::HandshakeHostsOff);
    assert!(!sample.inventory_eligible());
}

#[test]
fn what_speaks_for_others_is_not_announced() {
    for dialect in [Dialect::Status, Dialect::Handshake] {
        let mut sample = Sample::new();
        sample.dialect = dialect;
        sample.kind = ClientKind::Proxy;
        assert_eq!(sample.refusal(), NotEligible::NotAHost);
        assert!(!sample.inventory_eligible());
    }
}

#[test]
fn the_organisation_is_the_identitys_and_one_that_inventory_takes() {
    let mut sample = Sample::new();
    sample.identity = identity(&json!({"org_id": "10002", "internal": {"org_id": "10001"}}));
    assert_eq!(sample.refusal(), NotEligible::OtherOrganisation);
    sample.identity = identity(&json!({}));
    assert_eq!(sample.refusal(), NotEligible::OtherOrganisation);
    sample.identity = identity(&json!({"internal": {"org_id": "10001"}}));
    sample.data();

    for (length, is_taken) in [(36, true), (37, false)] {
        sample.tenant = tenant(&"1".repeat(length), "");
        sample.identity = Identity::made_for(&sample.tenant);
        match sample.announce() {
            Ok(_) => assert!(is_taken),
            Err(reason) => assert_eq!(
                (reason, is_taken),
                (NotEligible::OrganisationTooLong, false)
            ),
        }
    }
}

#[test]
fn an_account_of_over_ten_characters_is_left_out() {
    for (account, sent) in [
        ("1234567890", Some("1234567890")),
        ("ééééééééé0", Some("ééééééééé0")),
        ("12345678901", None),
        ("", None),
    ] {
        let mut sample = Sample::new();
        sample.tenant.account = account.into();
        assert_eq!(sample.data().get("account").and_then(Value::as_str), sent);
    }
}

#[test]
fn a_client_id_is_named_only_in_the_form_that_inventory_takes() {
    let upper = U1.to_uppercase();
    let dashless = U1.replace('-', "");
    let braced = format!("{{{U1}}}");
    for id in ["client-1", &upper, &dashless, &braced, &U1[1..]] {
        let mut sample = Sample::new();
        sample.client_id = ClientId::new(id).unwrap();
        assert_eq!(sample.data().get("system_profile"), None, "{id}");
    }
}

#[test]
fn the_owner_is_named_only_for_a_certificate_and_only_if_it_is_the_systems_own() {
    for (fields, owns) in [
        (json!({"type": "User", "auth_type": "cert-auth"}), true),
        (json!({"type": "User"}), true),
        (json!({}), true),
        (json!({"type": "User", "auth_type": "basic-auth"}), false),
        (json!({"type": "System", "system": {"cn": U1}}), true),
        (json!({"type": "System", "system": {"cn": U2}}), false),
        (
            json!({"type": "System", "system": {"cn": U1.to_uppercase()}}),
            false,
        ),
        (json!({"type": "System", "system": {}}), false),
        (json!({"type": "System"}), false),
        (
            json!({"type": "System", "system": {"cn": U1}, "auth_type": "jwt-auth"}),
            false,
        ),
        (json!({"type": "User", "system": {"cn": U2}}), true),
    ] {
        let mut fields = fields;
        fields["org_id"] = "10001".into();
        let mut sample = Sample::new();
        sample.identity = identity(&fields);
        let profile = if owns {
            json!({"rhc_client_id": U1, "owner_id": U1})
        } else {
            json!({"rhc_client_id": U1})
        };
        assert_eq!(sample.data()["system_profile"], profile, "{fields}");
    }
}

#[test]
fn tags_that_inventory_would_refuse_are_left_out() {
    let long = "é".repeat(255);
    let longer = "é".repeat(256);
    for (tags, left) in [
        (
            json!({"a": "1", "b": ""}),
            Some(json!({"a": ["1"], "b": [""]})),
        ),
        (json!({&long: &long}), Some(json!({&long: [&long]}))),
        (
            json!({&longer: "1", "a": &longer, "": "1", "b": "2"}),
            Some(json!({"b": ["2"]})),
        ),
        (
            json!({"a": 1, "b": null, "c": true, "d": ["x"], "e": {"f": "g"}}),
            None,
        ),
        (json!({}), None),
        (Value::Null, None),
        (json!(["a"]), None),
        (json!("a=b"), None),
    ] {
        let data = Sample::with_tags(tags.clone()).data();
        let expected = left.map(|left| json!({"rhc_client": left}));
        assert_eq!(data.get("tags"), expected.as_ref(), "{tags}");
    }
}

#[test]
fn a_host_becomes_stale_when_the_terms_say_and_never_beyond_the_end_of_time() {
    let mut sample = Sample::new();
    sample.terms.stale_after = Duration::from_millis(1500);
    assert_eq!(sample.data()["stale_timestamp"], "2026-01-02T15:04:06.5Z");
    sample.terms.stale_after = Duration::MAX;
    let end = sample.data()["stale_timestamp"].take();
    assert_eq!(
        end.as_str().unwrap().parse::<Timestamp>().unwrap(),
        Timestamp::MAX
    );
}

#[test]
fn every_reason_has_a_label_of_its_own_and_says_whether_it_is_a_refusal() {
    let reasons = [
        (NotEligible::NotAHost, false),
        (NotEligible::NoDispatcher, false),
        (NotEligible::HandshakeHostsOff, false),
        (NotEligible::NoFacts, false),
        (NotEligible::NoAcceptedId, true),
        (NotEligible::OtherOrganisation, true),
        (NotEligible::OrganisationTooLong, true),
    ];
    let labels: std::collections::BTreeSet<_> = reasons.iter().map(|(r, _)| r.label()).collect();
    assert_eq!(labels.len(), reasons.len());
    for (reason, is_refusal) in reasons {
        assert_eq!(reason.is_refusal(), is_refusal, "{reason}");
    }
}

/// Good, bad and odd values, for any fact.
fn any_fact() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        Just(U1.to_owned()),
        Just(U2.replace('-', "")),
        "[0-9]{9,11}",
        "[0-9a-f]{1,4}([:.-][0-9a-f]{1,4}){2,7}",
        "(0{2}[:-]){5}0{2}",
        "[0-9]{1,3}(\\.[0-9]{1,3}){3}",
        "(aws|AZURE|basement)",
        ".{0,8}",
        Just("x".repeat(300)),
    ];
    let one = prop_oneof![
        6 => text.prop_map(Value::from),
        1 => Just(Value::Null),
        1 => any::<i64>().prop_map(Value::from),
        1 => Just(json!({"a": 1})),
    ];
    let list = prop::collection::vec(one.clone(), 0..4).prop_map(Value::from);
    prop_oneof![one, list]
}

proptest! {
    #[test]
    fn whatever_is_reported_what_is_sent_is_well_formed(
        facts in prop::collection::btree_map(
            "(insights_id|subscription_manager_id|satellite_id|bios_uuid|ip_addresses|fqdn|mac_addresses|provider_id|provider_type|machine_id)",
            any_fact(),
            0..10,
        ),
        tags in prop::collection::btree_map(".{0,3}", any_fact(), 0..4),
    ) {
        let mut sample = Sample::with_tags(json!(tags));
        sample.reported.canonical_facts = json!(facts);
        match sample.announce() {
            Ok(sent) => checker::check(&sent.key, &sent.value),
            Err(reason) => prop_assert!(
                matches!(reason, NotEligible::NoFacts | NotEligible::NoAcceptedId)
            ),
        }
        prop_assert_eq!(sample.announce().is_ok(), sample.inventory_eligible());
    }
}
