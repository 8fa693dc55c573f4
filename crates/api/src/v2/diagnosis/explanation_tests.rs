//! Tests of the summary and the suggestion, one for each cause.

use super::explanation::{ClientFacts, Explanation, explain};
use super::test_facts::{
    connected, dead_letter, disconnected, entry, facts, rejection, seconds_ago, tenantless, text,
};
use domain::{BrokerRejection, OfflineReason, Timestamp};
use store::ClientRecord;

/// Checks the summary, and that the suggestion contains a text. Both must be complete sentences.
#[track_caller]
fn assert_explained(facts: &ClientFacts<'_>, expected_summary: &str, suggestion_part: &str) {
    let Explanation {
        summary,
        suggestion,
    } = explain(facts);
    assert_eq!(summary, expected_summary);
    assert!(
        summary.ends_with('.') && !summary.contains(". "),
        "{summary}"
    );
    let suggestion = suggestion.unwrap();
    assert!(suggestion.contains(suggestion_part), "{suggestion}");
    assert!(
        suggestion.ends_with('.') && !suggestion.contains("  "),
        "{suggestion}"
    );
}

#[test]
fn connected_client_without_a_problem_needs_no_suggestion() {
    let explanation = explain(&facts(Some(&connected())));
    let since = text(600);
    assert_eq!(
        explanation,
        Explanation {
            summary: format!("The client has been connected to organization 1 since {since}."),
            suggestion: None,
        }
    );
    let (rejections, dead_letters) = ([rejection("rate_limited", 700)], [dead_letter(700)]);
    let record = connected();
    let mut with_old_problems = facts(Some(&record));
    with_old_problems.rejections = Some(&rejections);
    with_old_problems.dead_letters = &dead_letters;
    assert_eq!(explain(&with_old_problems), explanation);
}

#[test]
fn disconnected_client_is_explained_by_the_reason_of_its_disconnect() {
    for (reason, cause, suggestion_part) in [
        (
            Some(OfflineReason::Client),
            "the client closed its connection",
            "Start the client program",
        ),
        (
            Some(OfflineReason::Will),
            "the connection was lost, and the broker published the last will of the client",
            "Check that the machine is running",
        ),
        (
            Some(OfflineReason::BrokerRestart),
            "the client has not reconnected after a restart of the broker",
            "restart the client program",
        ),
        (
            Some(OfflineReason::Disconnected),
            "a caller of the API disconnected the client",
            "The audit log contains the caller",
        ),
        (
            Some(OfflineReason::Expired),
            "the client did not respond to pings",
            "suspended or overloaded",
        ),
        (
            Some(OfflineReason::TenantLost),
            "the tenant lookup found that the client no longer belongs to an organization",
            "Check the registration",
        ),
        (
            Some(OfflineReason::Moved),
            "the client moved to another organization",
            "Check the registration",
        ),
        (
            None,
            "the reason was not recorded",
            "broker.reconnect_grace",
        ),
    ] {
        let record = disconnected(reason);
        let since = text(300);
        let summary =
            format!("The client of organization 1 has been disconnected since {since}: {cause}.");
        assert_explained(&facts(Some(&record)), &summary, suggestion_part);
    }
}

#[test]
fn disconnected_client_without_an_organization_is_not_called_a_client_of_one() {
    let record = ClientRecord {
        tenant: None,
        ..disconnected(Some(OfflineReason::Client))
    };
    let summary = format!(
        "The client, which belongs to no organization, has been disconnected since {}: the client closed its \
         connection.",
        text(300)
    );
    assert_explained(&facts(Some(&record)), &summary, "Start the client program");
}

#[test]
fn log_of_an_external_broker_is_suggested_only_where_it_can_help() {
    let suggestion = |record: Option<&ClientRecord>, rejections| {
        let facts = ClientFacts {
            rejections,
            ..facts(record)
        };
        explain(&facts).suggestion.unwrap()
    };
    let hint = "The log of the external MQTT broker";
    let (lost, stopped) = (
        disconnected(Some(OfflineReason::Will)),
        disconnected(Some(OfflineReason::Client)),
    );
    assert!(suggestion(Some(&lost), None).contains(hint));
    assert!(suggestion(None, None).contains(hint));
    assert!(!suggestion(Some(&stopped), None).contains(hint));
    assert!(!suggestion(Some(&lost), Some(&[])).contains(hint));
    assert!(!suggestion(None, Some(&[])).contains(hint));
}

#[test]
fn rejection_after_the_disconnect_explains_why_the_client_does_not_return() {
    for (reason, suggestion_part) in [
        (
            "cn_mismatch",
            "common name of the certificate of 192.0.2.7:5000 differ",
        ),
        ("tls_handshake_failed", "broker.tls.client_ca."),
        ("no_common_name", "has no common name"),
        ("rate_limited", "broker.connect_limit"),
        ("taken_over", "two machines use this client id"),
        ("overloaded", "/readiness"),
        ("forbidden_will_topic", "mqtt.prefixes"),
        ("invalid_client_id", "forbidden character"),
        ("packet_too_large", "with the reason packet_too_large"),
    ] {
        let record = disconnected(Some(OfflineReason::Will));
        let rejections = [rejection("shutting_down", 290), rejection(reason, 100)];
        let facts = ClientFacts {
            rejections: Some(&rejections),
            ..facts(Some(&record))
        };
        let summary = format!(
            "The client of organization 1 has been disconnected since {}: the connection was lost, and the \
             broker published the last will of the client, and the broker rejected it at {} with the \
             reason {reason}.",
            text(300),
            text(100)
        );
        assert_explained(&facts, &summary, suggestion_part);
    }
}

#[test]
fn later_one_of_a_rejection_and_a_dead_letter_is_the_cause() {
    let record = disconnected(Some(OfflineReason::Client));
    let (rejections, dead_letters) = ([rejection("rate_limited", 100)], [dead_letter(50)]);
    let mut facts = facts(Some(&record));
    facts.rejections = Some(&rejections);
    facts.dead_letters = &dead_letters;
    let summary = format!(
        "The client of organization 1 has been disconnected since {}: the client closed its connection, and \
         its message at {} was rejected with the reason invalid_json.",
        text(300),
        text(50)
    );
    assert_explained(&facts, &summary, "dead-letters show 17");
    let earlier = [dead_letter(150)];
    facts.dead_letters = &earlier;
    let suggestion = explain(&facts).suggestion.unwrap();
    assert!(suggestion.contains("broker.connect_limit"), "{suggestion}");
}

#[test]
fn many_reconnects_within_an_hour_mean_that_the_client_id_is_used_twice() {
    let unstable = ClientRecord {
        hourly_reconnects: 12,
        hourly_reconnects_since: Some(seconds_ago(1800)),
        ..connected()
    };
    let summary = format!(
        "The client has been connected to organization 1 since {}, but its connection is unstable: there were \
         12 reconnects since {}.",
        text(600),
        text(1800)
    );
    assert_explained(
        &facts(Some(&unstable)),
        &summary,
        "two machines use this client id",
    );
    let disconnected = ClientRecord {
        status: disconnected(Some(OfflineReason::Will)).status,
        ..unstable.clone()
    };
    let summary = format!(
        "The client of organization 1 has been disconnected since {}: the connection was lost, and the broker \
         published the last will of the client, after 12 reconnects since {}.",
        text(300),
        text(1800)
    );
    assert_explained(
        &facts(Some(&disconnected)),
        &summary,
        "two machines use this client id",
    );
    for stable in [
        ClientRecord {
            hourly_reconnects: 9,
            ..unstable.clone()
        },
        ClientRecord {
            hourly_reconnects_since: Some(seconds_ago(4000)),
            ..unstable
        },
    ] {
        assert_eq!(explain(&facts(Some(&stable))).suggestion, None);
    }
}

#[test]
fn takeovers_name_the_peers() {
    let record = connected();
    let rejections = [
        rejection("taken_over", 30),
        BrokerRejection {
            peer: "192.0.2.8:6000".to_owned(),
            ..rejection("taken_over", 90)
        },
        rejection("taken_over", 120),
    ];
    let with_takeovers = ClientFacts {
        rejections: Some(&rejections),
        ..facts(Some(&record))
    };
    let summary = format!(
        "The client has been connected to organization 1 since {}, but its connection is unstable: there were \
         connections with the same client id that replace each other.",
        text(600)
    );
    let peers = "The connections come from 192.0.2.7:5000 and 192.0.2.8:6000.";
    assert_explained(&with_takeovers, &summary, peers);
    let old = [rejection("taken_over", 4000)];
    let with_old_takeover = ClientFacts {
        rejections: Some(&old),
        ..facts(Some(&record))
    };
    assert_eq!(explain(&with_old_takeover).suggestion, None);
}

#[test]
fn connected_client_with_a_later_rejection_or_dead_letter_has_a_problem() {
    let record = connected();
    let rejections = [rejection("forbidden_publish_topic", 100)];
    let mut facts = facts(Some(&record));
    facts.rejections = Some(&rejections);
    let since = text(600);
    let summary = format!(
        "The client has been connected to organization 1 since {since}, but the broker rejected a request with \
         this client id at {} with the reason forbidden_publish_topic.",
        text(100)
    );
    assert_explained(&facts, &summary, "mqtt.prefixes");
    let dead_letters = [dead_letter(50)];
    facts.dead_letters = &dead_letters;
    let summary = format!(
        "The client has been connected to organization 1 since {since}, but its message at {} was rejected \
         with the reason invalid_json.",
        text(50)
    );
    assert_explained(&facts, &summary, "expected value at line 1");
}

#[test]
fn client_that_moved_to_another_organization_names_both() {
    let record = connected();
    let history = [
        entry("1", 600, "online", "tenant-found"),
        entry("2", 601, "offline", "moved"),
        entry("2", 9000, "online", "connected"),
    ];
    let moved = ClientFacts {
        history: &history,
        ..facts(Some(&record))
    };
    let summary = format!(
        "The client has been connected to organization 1 since {}; it moved from organization 2 at {}.",
        text(600),
        text(601)
    );
    assert_explained(
        &moved,
        &summary,
        "organization 2 can no longer reach the client",
    );
    let history = [
        entry("1", 600, "online", "connected"),
        entry("1", 650, "offline", "will"),
        history[1].clone(),
    ];
    let moved_earlier = ClientFacts {
        history: &history,
        ..facts(Some(&record))
    };
    assert_eq!(explain(&moved_earlier).suggestion, None);
}

#[test]
fn tenantless_client_is_looked_up_until_the_job_gives_up() {
    let record = tenantless(3);
    assert_explained(
        &facts(Some(&record)),
        "The client is connected, but it belongs to no organization: 3 of at most 30 lookups found none.",
        &format!("The next lookup is after {}.", text(60 - 1800)),
    );
    assert_explained(
        &facts(Some(&tenantless(0))),
        "The client is connected, but it belongs to no organization: the tenant lookup found none, and is \
         repeated at most 30 times.",
        "The next lookup is after",
    );
    let due = ClientRecord {
        last_lookup_at: Some(Timestamp::UNIX_EPOCH),
        ..tenantless(0)
    };
    assert_explained(
        &facts(Some(&due)),
        "The client is connected, but it belongs to no organization: the tenant lookup has not answered yet.",
        "The next lookup is due now; `cloud-connector update-tenantless` runs it.",
    );
    assert_explained(
        &facts(Some(&tenantless(30))),
        "The client is connected, but it belongs to no organization: 30 lookups found none, and there is \
         no further lookup.",
        "`cloud-connector tenantless retry a`",
    );
}

#[test]
fn client_that_lost_its_tenant_names_the_former_organization() {
    let record = tenantless(1);
    let history = [
        entry("", 200, "online", "connected"),
        entry("5", 200, "offline", "tenant-lost"),
    ];
    let lost = ClientFacts {
        history: &history,
        ..facts(Some(&record))
    };
    let summary = format!(
        "The client is connected, but it has not belonged to organization 5 since {}: 1 of at most 30 \
         lookups found none.",
        text(200)
    );
    assert_explained(&lost, &summary, "Check the registration");
}

#[test]
fn unknown_client_is_explained_by_its_rejection_or_dead_letter() {
    assert_explained(
        &facts(None),
        "The client is unknown: no online message of it was received, or its data was deleted after a \
         long disconnect.",
        "GET /v2/clients?search=",
    );
    let dead_letters = [dead_letter(100)];
    let mut facts = facts(None);
    facts.dead_letters = &dead_letters;
    let summary = format!(
        "The client has never been recorded as connected: its message at {} was rejected with the reason \
         invalid_json.",
        text(100)
    );
    assert_explained(
        &facts,
        &summary,
        "its message on the topic p/a/control/out is invalid",
    );
    let rejections = [rejection("cn_mismatch", 50)];
    facts.rejections = Some(&rejections);
    let summary = format!(
        "The client has never been connected: the broker rejected it at {} with the reason cn_mismatch.",
        text(50)
    );
    assert_explained(&facts, &summary, "use its own certificate");
}

#[test]
fn client_that_has_not_reconnected_after_a_restart_is_not_a_row_of_an_earlier_version() {
    let record = disconnected(None);
    let history = [entry("1", 600, "online", "connected")];
    let restarted = ClientFacts {
        history: &history,
        ..facts(Some(&record))
    };
    let summary = |cause: &str| {
        let since = text(300);
        format!("The client of organization 1 has been disconnected since {since}: {cause}.")
    };
    let cause = "the client has not reconnected since the service was restarted";
    assert_explained(&restarted, &summary(cause), "broker.reconnect_grace");
    let cause = "the reason was not recorded";
    assert_explained(
        &facts(Some(&record)),
        &summary(cause),
        "broker.reconnect_grace",
    );
}
