use insta::assert_snapshot;
use serde_json::{Value, json};

use super::*;

fn render_json(document: &Value) -> String {
    let diagnosis = Diagnosis::from_json(document).unwrap();
    let now = "2026-01-31T12:00:00Z".parse().unwrap();
    let text = render(&diagnosis, now, Colors::OFF);
    for line in text.lines() {
        assert!(line.chars().count() <= LINE_WIDTH, "{line}");
    }
    text
}

#[test]
fn a_disconnected_client() {
    let text = render_json(&json!({
        "state": "disconnected",
        "summary": "web-1 lost its connection 3 minutes ago and has not reconnected since then; its \
                    organization is 10000.",
        "org_id": "10000", "account": "111000", "client_name": "rhc", "client_version": "0.2.4",
        "last_seen": "2026-01-31T11:55:00Z", "disconnected_at": "2026-01-31T11:57:00.123Z",
        "reason": "will", "reconnects": 12,
        "recent_reconnects": {"count": 3, "since": "2026-01-31T11:00:00Z"},
        "dead_letters": [
            {"id": 41, "reason": "invalid_json", "detail": "expected value at line 1 column 1",
             "topic": "redhat/insights/web-1/data/out", "last_received": "2026-01-31T10:00:00Z",
             "occurrences": 7},
        ],
        "broker_rejections": [
            {"reason": "client-id-mismatch", "peer": "192.0.2.7:1234",
             "at": "2026-01-31T11:58:00Z"},
        ],
        "history": [
            {"number": 25, "at": "2026-01-31T11:57:00Z", "status": "disconnected", "reason": "will",
             "org_id": "10000"},
            {"number": 24, "at": "2026-01-30T11:57:00Z", "status": "connected", "org_id": "7"},
        ],
        "suggestion": "Check the network of the host, and the log of rhcd on the host.",
    }));
    assert_snapshot!(text, @r"
    web-1 lost its connection 3 minutes ago and has not reconnected since then; its
    organization is 10000.

      State            disconnected
      Organization     10000 (account 111000)
      Client           rhc 0.2.4
      Last seen        2026-01-31 11:55:00 UTC (5 min ago)
      Disconnected     2026-01-31 11:57:00 UTC (3 min ago)
      Reason           will: the connection was lost and the last will was published
      Reconnects       12 in total, 3 since 2026-01-31 11:00:00 UTC

    Dead letters
      2 h ago          2026-01-31 10:00:00 UTC: [41] invalid_json (7 times):
                       expected value at line 1 column 1 on
                       redhat/insights/web-1/data/out

    Rejected by the broker
      2 min ago        2026-01-31 11:58:00 UTC: client-id-mismatch from
                       192.0.2.7:1234

    History
      3 min ago        2026-01-31 11:57:00 UTC: #25 disconnected (will)
      24 h ago         2026-01-30 11:57:00 UTC: #24 connected in organization 7

    Suggestion: Check the network of the host, and the log of rhcd on the host.
    ");
}

#[test]
fn a_tenantless_client() {
    let text = render_json(&json!({
        "state": "tenantless", "summary": "web-1 is connected, but has no organization.",
        "tenant_lookup": {
            "failed_lookups": 3, "max_failed_lookups": 10, "last_lookup_at": "2026-01-31T11:50:00Z",
            "next_lookup_at": "2026-01-31T12:10:00Z", "gave_up": false,
        },
    }));
    assert_snapshot!(text, @r"
    web-1 is connected, but has no organization.

      State            tenantless
      Tenant lookup    3 of 10 lookups failed; last 2026-01-31 11:50:00 UTC (10 min
                       ago); next 2026-01-31 12:10:00 UTC (in 10 min)
    ");
}

#[test]
fn an_unknown_client() {
    let text = render_json(&json!({"state": "unknown", "summary": "x has never been seen."}));
    assert_snapshot!(text, @r"
    x has never been seen.

      State            unknown
    ");
}

#[test]
fn hostile_and_long_texts_stay_in_their_lines() {
    let text = render_json(&json!({
        "state": "disconnected\u{1b}[2J", "summary": "a\nb\u{202e}c ".repeat(40),
        "reason": "x".repeat(300), "last_seen": "not a time",
        "dead_letters": vec![json!({"detail": "d\r\nHistory"}); 7],
        "history": [{}],
    }));
    assert!(!text.contains(['\u{1b}', '\r', '\u{202e}']), "{text}");
    assert!(text.contains("not a time"), "{text}");
    assert!(text.contains("and 2 more; -o json prints all"), "{text}");
}
