use insta::assert_snapshot;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use domain::OrgId;
use protocol::{handshake, status};

mod checker;
mod hostile_input;

const UUID_1: &str = "f8d7e0a1-5b0a-4c6e-9a43-6d1e0f0b8a11";
const UUID_2: &str = "3a57b1ad-5163-47ee-9e57-3bb6d90bdfff";
const REQUEST_ID: Uuid = uuid::uuid!("0195f0a1-0000-7000-8000-000000000001");
/// A `System` identity of organization 10001 with common name `UUID_1`, in base64.
const SYSTEM_IDENTITY: &str = "eyJpZGVudGl0eSI6eyJ0eXBlIjoiU3lzdGVtIiwiYXV0aF90eXBlIjoiY2VydC1hdXRoIiwiYWNjb3VudF9udW1iZXIiOiIwMTAxMDEiLCJvcmdfaWQiOiIxMDAwMSIsImludGVybmFsIjp7Im9yZ19pZCI6IjEwMDAxIn0sInN5c3RlbSI6eyJjbiI6ImY4ZDdlMGExLTViMGEtNGM2ZS05YTQzLTZkMWUwZjBiOGExMSIsImNlcnRfdHlwZSI6InN5c3RlbSJ9fX0=";
const REPORT_POLICY: ReportPolicy = ReportPolicy {
    stale_after: Duration::from_hours(26),
    include_handshake_hosts: true,
};

/// An eligible host. Each test changes some fields of the host.
#[derive(Debug)]
struct SampleHost {
    client_id: ClientId,
    tenant: Tenant,
    identity: Identity,
    dialect: DialectName,
    kind: ClientKind,
    info: ClientInfo,
    policy: ReportPolicy,
}

impl SampleHost {
    fn new() -> Self {
        let tenant = tenant("10001", "010101");
        Self {
            client_id: ClientId::new(UUID_1).unwrap(),
            identity: Identity::for_tenant(&tenant),
            tenant,
            dialect: status::NAME,
            kind: ClientKind::Host,
            info: ClientInfo {
                canonical_facts: json!({"insights_id": UUID_2}),
                dispatchers: json!({"rhc-worker-playbook": {}}),
                ..ClientInfo::default()
            },
            policy: REPORT_POLICY,
        }
    }

    fn with_facts(facts: Value) -> Self {
        let mut sample = Self::new();
        sample.info.canonical_facts = facts;
        sample
    }

    fn with_tags(tags: Value) -> Self {
        let mut sample = Self::new();
        sample.info.tags = tags;
        sample
    }

    fn build_message(&self) -> Result<InventoryMessage, IneligibleReason> {
        let host = Host {
            client_id: &self.client_id,
            tenant: &self.tenant,
            identity: &self.identity,
            dialect: &self.dialect,
            kind: self.kind,
            info: &self.info,
        };
        let now = "2026-01-02T15:04:05Z".parse().unwrap();
        super::build_message(&host, now, self.policy, REQUEST_ID)
    }

    fn is_eligible(&self) -> bool {
        let include_handshake_hosts = self.policy.include_handshake_hosts;
        is_inventory_eligible(
            &self.dialect,
            self.kind,
            &self.info,
            include_handshake_hosts,
        )
    }

    fn ineligible_reason(&self) -> IneligibleReason {
        self.build_message().unwrap_err()
    }

    /// Builds the message and checks it with [`checker::check_message`]. Returns the `data` object
    /// of the message.
    fn check_message_and_get_data(&self) -> Value {
        let message = self.build_message().unwrap();
        checker::check_message(&message.kafka_key, &message.json);
        assert!(self.is_eligible());
        let mut document: Value = serde_json::from_slice(&message.json).unwrap();
        document["data"].take()
    }

    /// Builds and checks the message. Returns only the facts of the `data` object.
    fn check_message_and_get_facts(&self) -> Value {
        let mut data = self.check_message_and_get_data();
        let fields = data.as_object_mut().unwrap();
        assert_eq!(fields.remove("org_id").unwrap(), "10001");
        assert_eq!(fields.remove("account").unwrap(), "010101");
        assert_eq!(fields.remove("reporter").unwrap(), "cloud-connector");
        assert_eq!(
            fields.remove("stale_timestamp").unwrap(),
            "2026-01-03T17:04:05Z"
        );
        let profile = json!({"rhc_client_id": UUID_1, "owner_id": UUID_1});
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
fn message_with_all_fields_matches_the_snapshot() {
    let mut sample = SampleHost::with_tags(json!({"role": "web <&>", "env": "prod"}));
    sample.info.canonical_facts = json!({
        "insights_id": UUID_2, "subscription_manager_id": UUID_1, "satellite_id": "1234567890",
        "bios_uuid": UUID_2, "ip_addresses": ["10.0.0.1"], "fqdn": "a.example",
        "mac_addresses": ["52:54:00:ab:cd:ef"], "provider_id": "i-1", "provider_type": "aws",
    });
    sample.identity = Identity::from_base64(SYSTEM_IDENTITY).unwrap();
    let message = sample.build_message().unwrap();
    checker::check_message(&message.kafka_key, &message.json);
    assert_eq!(message.kafka_key, "10001");
    assert_snapshot!(
        String::from_utf8(message.json).unwrap(),
        @r#"{"operation":"add_host","platform_metadata":{"request_id":"0195f0a1-0000-7000-8000-000000000001","b64_identity":"eyJpZGVudGl0eSI6eyJ0eXBlIjoiU3lzdGVtIiwiYXV0aF90eXBlIjoiY2VydC1hdXRoIiwiYWNjb3VudF9udW1iZXIiOiIwMTAxMDEiLCJvcmdfaWQiOiIxMDAwMSIsImludGVybmFsIjp7Im9yZ19pZCI6IjEwMDAxIn0sInN5c3RlbSI6eyJjbiI6ImY4ZDdlMGExLTViMGEtNGM2ZS05YTQzLTZkMWUwZjBiOGExMSIsImNlcnRfdHlwZSI6InN5c3RlbSJ9fX0="},"data":{"insights_id":"3a57b1ad-5163-47ee-9e57-3bb6d90bdfff","subscription_manager_id":"f8d7e0a1-5b0a-4c6e-9a43-6d1e0f0b8a11","satellite_id":"1234567890","bios_uuid":"3a57b1ad-5163-47ee-9e57-3bb6d90bdfff","ip_addresses":["10.0.0.1"],"fqdn":"a.example","mac_addresses":["52:54:00:ab:cd:ef"],"provider_id":"i-1","provider_type":"aws","account":"010101","org_id":"10001","stale_timestamp":"2026-01-03T17:04:05Z","reporter":"cloud-connector","system_profile":{"rhc_client_id":"f8d7e0a1-5b0a-4c6e-9a43-6d1e0f0b8a11","owner_id":"f8d7e0a1-5b0a-4c6e-9a43-6d1e0f0b8a11"},"tags":{"rhc_client":{"env":["prod"],"role":["web <&>"]}}}}"#
    );
}

#[test]
fn minimal_message_has_no_null_or_empty_fields() {
    let mut sample = SampleHost::new();
    sample.tenant.account = String::new();
    sample.client_id = ClientId::new("client-1").unwrap();
    assert_eq!(
        sample.check_message_and_get_data(),
        json!({"insights_id": UUID_2, "org_id": "10001", "reporter": "cloud-connector",
            "stale_timestamp": "2026-01-03T17:04:05Z"})
    );
}

#[test]
fn status_client_is_eligible_only_with_a_host_dispatcher_spelled_with_dashes_or_underscores() {
    for name in [
        "rhc-worker-playbook",
        "package-manager",
        "rhc_worker_script",
    ] {
        let mut sample = SampleHost::new();
        sample.info.dispatchers = json!({name: null, "echo": {}});
        sample.check_message_and_get_data();
    }
    for dispatchers in [
        json!({}),
        json!({"echo": {}, "rhc-worker": {}}),
        Value::Null,
    ] {
        let mut sample = SampleHost::new();
        sample.info.dispatchers = dispatchers;
        assert_eq!(sample.ineligible_reason(), IneligibleReason::NoDispatcher);
        assert!(!sample.is_eligible());
    }
}

#[test]
fn handshake_host_without_dispatchers_is_eligible_only_if_include_handshake_hosts_is_true() {
    let mut sample = SampleHost::new();
    sample.dialect = handshake::NAME;
    sample.info.dispatchers = Value::Null;
    sample.check_message_and_get_data();
    sample.policy.include_handshake_hosts = false;
    assert_eq!(
        sample.ineligible_reason(),
        IneligibleReason::HandshakeHostsOff
    );
    assert!(!sample.is_eligible());
}

#[test]
fn host_of_an_unknown_dialect_is_eligible_only_because_of_a_dispatcher() {
    let mut sample = SampleHost::new();
    sample.dialect = DialectName::from("no-such-dialect".to_owned());
    sample.check_message_and_get_data();
    sample.info.dispatchers = Value::Null;
    assert_eq!(sample.ineligible_reason(), IneligibleReason::NoDispatcher);
}

#[test]
fn proxies_are_not_eligible() {
    for dialect in [status::NAME, handshake::NAME] {
        let mut sample = SampleHost::new();
        sample.dialect = dialect;
        sample.kind = ClientKind::Proxy;
        assert_eq!(sample.ineligible_reason(), IneligibleReason::NotAHost);
        assert!(!sample.is_eligible());
    }
}

#[test]
fn org_id_must_match_the_identity_and_have_at_most_36_characters() {
    let mut sample = SampleHost::new();
    sample.identity = identity(&json!({"org_id": "10002", "internal": {"org_id": "10001"}}));
    assert_eq!(
        sample.ineligible_reason(),
        IneligibleReason::OtherOrganization
    );
    sample.identity = identity(&json!({}));
    assert_eq!(
        sample.ineligible_reason(),
        IneligibleReason::OtherOrganization
    );
    sample.identity = identity(&json!({"internal": {"org_id": "10001"}}));
    sample.check_message_and_get_data();

    for (length, is_accepted) in [(36, true), (37, false)] {
        sample.tenant = tenant(&"1".repeat(length), "");
        sample.identity = Identity::for_tenant(&sample.tenant);
        match sample.build_message() {
            Ok(_) => assert!(is_accepted),
            Err(reason) => assert_eq!(
                (reason, is_accepted),
                (IneligibleReason::OrgIdTooLong, false)
            ),
        }
    }
}

#[test]
fn account_longer_than_10_characters_is_omitted() {
    for (account, expected) in [
        ("1234567890", Some("1234567890")),
        ("ééééééééé0", Some("ééééééééé0")),
        ("12345678901", None),
        ("", None),
    ] {
        let mut sample = SampleHost::new();
        sample.tenant.account = account.into();
        assert_eq!(
            sample
                .check_message_and_get_data()
                .get("account")
                .and_then(Value::as_str),
            expected
        );
    }
}

#[test]
fn system_profile_is_omitted_unless_client_id_is_a_lowercase_dashed_uuid() {
    let uppercase = UUID_1.to_uppercase();
    let dashless = UUID_1.replace('-', "");
    let braced = format!("{{{UUID_1}}}");
    for id in ["client-1", &uppercase, &dashless, &braced, &UUID_1[1..]] {
        let mut sample = SampleHost::new();
        sample.client_id = ClientId::new(id).unwrap();
        assert_eq!(
            sample.check_message_and_get_data().get("system_profile"),
            None,
            "{id}"
        );
    }
}

#[test]
fn owner_id_is_omitted_without_cert_auth_or_if_a_system_identity_has_another_common_name() {
    for (fields, is_owner) in [
        (json!({"type": "User", "auth_type": "cert-auth"}), true),
        (json!({"type": "User"}), true),
        (json!({}), true),
        (json!({"type": "User", "auth_type": "basic-auth"}), false),
        (json!({"type": "System", "system": {"cn": UUID_1}}), true),
        (json!({"type": "System", "system": {"cn": UUID_2}}), false),
        (
            json!({"type": "System", "system": {"cn": UUID_1.to_uppercase()}}),
            false,
        ),
        (json!({"type": "System", "system": {}}), false),
        (json!({"type": "System"}), false),
        (
            json!({"type": "System", "system": {"cn": UUID_1}, "auth_type": "jwt-auth"}),
            false,
        ),
        (json!({"type": "User", "system": {"cn": UUID_2}}), true),
    ] {
        let mut fields = fields;
        fields["org_id"] = "10001".into();
        let mut sample = SampleHost::new();
        sample.identity = identity(&fields);
        let profile = if is_owner {
            json!({"rhc_client_id": UUID_1, "owner_id": UUID_1})
        } else {
            json!({"rhc_client_id": UUID_1})
        };
        assert_eq!(
            sample.check_message_and_get_data()["system_profile"],
            profile,
            "{fields}"
        );
    }
}

#[test]
fn invalid_tags_are_omitted() {
    let longest_tag = "é".repeat(255);
    let too_long_tag = "é".repeat(256);
    for (tags, accepted_tags) in [
        (
            json!({"a": "1", "b": ""}),
            Some(json!({"a": ["1"], "b": [""]})),
        ),
        (
            json!({&longest_tag: &longest_tag}),
            Some(json!({&longest_tag: [&longest_tag]})),
        ),
        (
            json!({&too_long_tag: "1", "a": &too_long_tag, "": "1", "b": "2"}),
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
        let data = SampleHost::with_tags(tags.clone()).check_message_and_get_data();
        let expected = accepted_tags.map(|tags| json!({ "rhc_client": tags }));
        assert_eq!(data.get("tags"), expected.as_ref(), "{tags}");
    }
}

#[test]
fn stale_timestamp_is_now_plus_stale_after_or_the_maximum_timestamp() {
    let mut sample = SampleHost::new();
    sample.policy.stale_after = Duration::from_millis(1500);
    assert_eq!(
        sample.check_message_and_get_data()["stale_timestamp"],
        "2026-01-02T15:04:06.5Z"
    );
    sample.policy.stale_after = Duration::MAX;
    let stale_timestamp = sample.check_message_and_get_data()["stale_timestamp"].take();
    assert_eq!(
        stale_timestamp
            .as_str()
            .unwrap()
            .parse::<Timestamp>()
            .unwrap(),
        Timestamp::MAX
    );
}

#[test]
fn ineligible_reasons_have_distinct_labels_and_expected_would_be_rejected_values() {
    let reasons = [
        (IneligibleReason::NotAHost, false),
        (IneligibleReason::NoDispatcher, false),
        (IneligibleReason::HandshakeHostsOff, false),
        (IneligibleReason::NoFacts, false),
        (IneligibleReason::NoAcceptedId, true),
        (IneligibleReason::OtherOrganization, true),
        (IneligibleReason::OrgIdTooLong, true),
    ];
    let labels: std::collections::BTreeSet<_> = reasons.iter().map(|(r, _)| r.as_str()).collect();
    assert_eq!(labels.len(), reasons.len());
    for (reason, would_be_rejected) in reasons {
        assert_eq!(reason.would_be_rejected(), would_be_rejected, "{reason}");
    }
}

/// Generates valid and invalid values of a fact.
fn any_fact_value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        Just(UUID_1.to_owned()),
        Just(UUID_2.replace('-', "")),
        "[0-9]{9,11}",
        "[0-9a-f]{1,4}([:.-][0-9a-f]{1,4}){2,7}",
        "(0{2}[:-]){5}0{2}",
        "[0-9]{1,3}(\\.[0-9]{1,3}){3}",
        "(aws|AZURE|basement)",
        ".{0,8}",
        Just("x".repeat(300)),
    ];
    let single_value = prop_oneof![
        6 => text.prop_map(Value::from),
        1 => Just(Value::Null),
        1 => any::<i64>().prop_map(Value::from),
        1 => Just(json!({"a": 1})),
    ];
    let list = prop::collection::vec(single_value.clone(), 0..4).prop_map(Value::from);
    prop_oneof![single_value, list]
}

proptest! {
    #[test]
    fn messages_from_random_facts_and_tags_are_valid(
        facts in prop::collection::btree_map(
            "(insights_id|subscription_manager_id|satellite_id|bios_uuid|ip_addresses|fqdn|mac_addresses|provider_id|provider_type|machine_id)",
            any_fact_value(),
            0..10,
        ),
        tags in prop::collection::btree_map(".{0,3}", any_fact_value(), 0..4),
    ) {
        let mut sample = SampleHost::with_tags(json!(tags));
        sample.info.canonical_facts = json!(facts);
        match sample.build_message() {
            Ok(message) => checker::check_message(&message.kafka_key, &message.json),
            Err(reason) => prop_assert!(
                matches!(reason, IneligibleReason::NoFacts | IneligibleReason::NoAcceptedId)
            ),
        }
        prop_assert_eq!(sample.build_message().is_ok(), sample.is_eligible());
    }
}
