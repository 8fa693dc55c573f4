//! What operators ask of the program, beside a connector that runs.

use serde_json::{Value, json};

use crate::each_deployment;
use crate::support::gateway::{Gateway, GatewayReply};
use crate::support::mqtt::{Connect, RawClient, control_out, online};
use crate::support::{Deployment, eventually, unique};

each_deployment!(
    tenantless_clients_are_listed_retried_and_forgotten,
    a_run_without_answers_says_so_and_fails,
    a_run_that_would_take_many_tenants_needs_force,
    connections_are_counted_by_organisation,
);

/// An online that inventory hears of.
fn host() -> Value {
    let mut host = online();
    host["content"]["canonical_facts"] = json!({"insights_id": uuid::Uuid::new_v4()});
    host["content"]["dispatchers"] = json!({"rhc-worker-playbook": {}});
    host
}

/// Clients that are online, and have a row.
async fn fleet(subject: &Deployment, count: usize) -> (Vec<String>, Vec<RawClient>) {
    let names: Vec<String> = (0..count).map(|n| unique(&format!("o{n}"))).collect();
    let mut clients = Vec::new();
    for name in &names {
        let mut client = RawClient::connect(&subject.mqtt(), &Connect::new(name)).await;
        client.must_publish(&control_out(name), &host()).await;
        eventually("its row", || subject.row(name)).await;
        clients.push(client);
    }
    (names, clients)
}

/// Runs a command that must end with this code, and returns what it said.
async fn said(subject: &Deployment, code: i32, args: &[&str]) -> String {
    let (found, said) = subject.command(args).await;
    assert_eq!(found, Some(code), "{args:?}: {said}");
    said
}

async fn tenantless_clients_are_listed_retried_and_forgotten(subject: Deployment) {
    let gateway = Gateway::start(GatewayReply::NotFound).await;
    let attempts: &[_] = &[("updaters.tenant_max_attempts", "2")];
    let subject = subject.asking(&gateway, attempts).await;
    let (names, _clients) = fleet(&subject, 3).await;

    let list = said(&subject, 0, &["tenantless", "list"]).await;
    assert!(list.starts_with("3 wait for their organisation, 0 were looked up 2 times in vain"));
    assert!(names.iter().all(|name| list.contains(name)), "{list}");
    assert!(subject.listed().await.is_empty(), "no caller sees them");

    let exhaust = "UPDATE connections SET tenant_lookup_failure_count = 2";
    subject.execute(exhaust).await;
    let list = ["tenantless", "list", "--output", "json", "--limit", "2"];
    let list: Value = serde_json::from_str(&said(&subject, 0, &list).await).unwrap();
    assert_eq!(
        (&list["waiting"], &list["exhausted"]),
        (&json!(0), &json!(3))
    );
    assert_eq!(list["clients"].as_array().unwrap().len(), 2);
    assert_eq!(list["clients"][0]["failures"], 2);
    let due = ["update-tenantless", "--dry-run"];
    assert_eq!(said(&subject, 0, &due).await.trim(), "0 due");

    // One gets all its attempts again, and now it belongs to somebody.
    let retry = ["tenantless", "retry", &names[0]];
    let done = said(&subject, 0, &retry).await;
    assert!(done.starts_with("1 will be looked up"), "{done}");
    assert_eq!(said(&subject, 0, &due).await.trim(), "1 due");
    gateway.says_of(&names[0], GatewayReply::Found("10000"));
    let done = said(&subject, 0, &["update-tenantless"]).await;
    assert!(done.contains("1 looked up: 1 found, 0 belong to nobody"));
    assert_eq!(subject.status(&names[0]).await["status"], "connected");

    // Who has an organisation is none of its business.
    for verb in ["retry", "forget"] {
        for whom in [names[0].as_str(), "nobody-knows-it"] {
            let refused = said(&subject, 1, &["tenantless", verb, whom]).await;
            assert!(
                refused.contains("`tenantless list` shows them"),
                "{refused}"
            );
        }
        said(&subject, 2, &["tenantless", verb]).await;
    }
    assert_eq!(subject.row(&names[0]).await.unwrap().org_id, "10000");

    let done = said(&subject, 0, &["tenantless", "retry", "--all"]).await;
    assert!(done.starts_with("2 will be looked up"), "{done}");
    let done = said(&subject, 0, &["update-tenantless", "--limit", "1"]).await;
    assert!(done.contains("1 looked up: 0 found, 1 belong to nobody"));
    assert_eq!(said(&subject, 0, &due).await.trim(), "1 due");

    let done = said(&subject, 0, &["tenantless", "forget", &names[1]]).await;
    assert!(done.starts_with("1 forgotten"), "{done}");
    assert!(subject.row(&names[1]).await.is_none());
    assert!(subject.row(&names[2]).await.is_some());
}

async fn a_run_without_answers_says_so_and_fails(subject: Deployment) {
    let gateway = Gateway::start(GatewayReply::NotFound).await;
    let subject = subject.asking(&gateway, &[]).await;
    let (names, _clients) = fleet(&subject, 2).await;
    said(&subject, 0, &["tenantless", "retry", "--all"]).await;
    gateway.says_of_others(GatewayReply::Busy);
    let done = said(&subject, 1, &["update-tenantless"]).await;
    assert!(done.contains("2 without an answer"), "{done}");
    assert!(
        done.contains("the lookup service does not answer"),
        "{done}"
    );
    for name in &names {
        assert_eq!(subject.row(name).await.unwrap().failures, 0);
    }
    // They are due as before.
    let due = said(&subject, 0, &["update-tenantless", "--dry-run"]).await;
    assert_eq!(due.trim(), "2 due");
}

async fn a_run_that_would_take_many_tenants_needs_force(subject: Deployment) {
    let gateway = Gateway::start(GatewayReply::Found("10000")).await;
    let subject = subject.asking(&gateway, &[]).await;
    let (names, _clients) = fleet(&subject, 60).await;
    let long_ago = if subject.has_outside_broker() {
        "UPDATE connections SET stale_timestamp = 'epoch'"
    } else {
        "UPDATE connections SET stale_timestamp = 0"
    };
    subject.execute(long_ago).await;
    gateway.says_of_others(GatewayReply::NotFound);
    let done = said(&subject, 1, &["update-stale"]).await;
    assert!(done.contains("--force overrides"), "{done}");
    assert_eq!(subject.listed().await.len(), 60, "no tenant is lost");
    let done = said(&subject, 0, &["update-stale", "--force"]).await;
    assert!(done.contains("60 belong to nobody"), "{done}");
    assert!(subject.listed().await.is_empty());
    assert_eq!(subject.row(&names[0]).await.unwrap().failures, 1);
}

async fn connections_are_counted_by_organisation(subject: Deployment) {
    let gateway = Gateway::start(GatewayReply::NotFound).await;
    let subject = subject.asking(&gateway, &[]).await;
    let (names, mut clients) = fleet(&subject, 4).await;
    for (name, org) in names.iter().zip(["7", "10000", "10000"]) {
        gateway.says_of(name, GatewayReply::Found(org));
    }
    said(&subject, 0, &["tenantless", "retry", "--all"]).await;
    said(&subject, 0, &["update-tenantless"]).await;
    let report = ["report", "connections-by-org", "--output", "json"];
    let counted: Value = serde_json::from_str(&said(&subject, 0, &report).await).unwrap();
    let expected = json!({"without_organisation": 1, "organisations": [
        {"org_id": "10000", "connections": 2}, {"org_id": "7", "connections": 1},
    ]});
    assert_eq!(counted, expected);
    let table = said(&subject, 0, &["report", "connections-by-org"]).await;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let expected = [
        ["organisation", "connections"],
        ["10000", "2"],
        ["7", "1"],
        ["(none)", "1"],
    ];
    assert_eq!(rows, expected);
    // Who leaves is not counted any more.
    let gone = crate::support::mqtt::offline();
    clients[0]
        .must_publish(&control_out(&names[0]), &gone)
        .await;
    eventually("one organisation fewer", || async {
        let table = said(&subject, 0, &["report", "connections-by-org"]).await;
        (table.lines().count() == 3).then_some(())
    })
    .await;
}
