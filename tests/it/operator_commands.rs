//! Operator commands that work on the database of a running connector: `tenantless`,
//! `update-tenantless`, `update-inventory`, `report`.

use serde_json::{Value, json};

use crate::each_deployment;
use crate::support::gateway::{FakeGateway, GatewayReply};
use crate::support::mqtt::{Connect, RawClient, control_out, online};
use crate::support::{Deployment, eventually, unique_id};

each_deployment!(
    tenantless_clients_are_listed_retried_and_deleted,
    update_fails_without_using_up_attempts_when_the_lookup_is_unavailable,
    update_that_would_clear_many_tenants_needs_force,
    report_counts_connections_by_organization,
);

/// An online message of a host that is eligible for inventory.
fn eligible_host() -> Value {
    let mut host = online();
    host["content"]["canonical_facts"] = json!({"insights_id": uuid::Uuid::new_v4()});
    host["content"]["dispatchers"] = json!({"rhc-worker-playbook": {}});
    host
}

/// Connects this many clients and waits until each has a row.
async fn connect_clients(deployment: &Deployment, count: usize) -> (Vec<String>, Vec<RawClient>) {
    let ids: Vec<String> = (0..count).map(|n| unique_id(&format!("o{n}"))).collect();
    let mut clients = Vec::new();
    for id in &ids {
        let mut client = RawClient::connect(&deployment.mqtt_address(), &Connect::new(id)).await;
        client
            .must_publish(&control_out(id), &eligible_host())
            .await;
        eventually("the client's row", || deployment.row(id)).await;
        clients.push(client);
    }
    (ids, clients)
}

/// Runs a command, checks its exit code, and returns its output.
async fn run(deployment: &Deployment, expected_code: i32, args: &[&str]) -> String {
    let (code, output) = deployment.run_command(args).await;
    assert_eq!(code, Some(expected_code), "{args:?}: {output}");
    output
}

async fn due_count(deployment: &Deployment) -> String {
    let output = run(deployment, 0, &["update-tenantless", "--dry-run"]).await;
    output.trim().to_owned()
}

async fn tenantless_clients_are_listed_retried_and_deleted(deployment: Deployment) {
    let gateway = FakeGateway::start(GatewayReply::NotFound).await;
    let settings: &[_] = &[("updaters.tenant_max_attempts", "2")];
    let deployment = deployment.recreate_with_gateway(&gateway, settings).await;
    let (ids, _clients) = connect_clients(&deployment, 3).await;

    let list = run(&deployment, 0, &["tenantless", "list"]).await;
    assert!(
        list.starts_with("3 pending, 0 gave up after 2 attempts"),
        "{list}"
    );
    assert!(ids.iter().all(|id| list.contains(id)), "{list}");
    let listed = deployment.list_client_ids().await;
    assert!(
        listed.is_empty(),
        "the API must not list tenantless clients"
    );

    let use_up_attempts = "UPDATE connections SET tenant_lookup_failure_count = 2";
    deployment.execute(use_up_attempts).await;
    let list = ["tenantless", "list", "--output", "json", "--limit", "2"];
    let list: Value = serde_json::from_str(&run(&deployment, 0, &list).await).unwrap();
    assert_eq!((&list["pending"], &list["gave_up"]), (&json!(0), &json!(3)));
    assert_eq!(list["clients"].as_array().unwrap().len(), 2);
    assert_eq!(list["clients"][0]["failed_lookups"], 2);
    assert_eq!(due_count(&deployment).await, "0 due");

    // A retry resets the attempts, and the next run finds the tenant.
    let output = run(&deployment, 0, &["tenantless", "retry", &ids[0]]).await;
    assert!(output.starts_with("1 reset"), "{output}");
    assert_eq!(due_count(&deployment).await, "1 due");
    gateway.set_reply(&ids[0], GatewayReply::Found("10000"));
    let output = run(&deployment, 0, &["update-tenantless"]).await;
    assert!(
        output.contains("1 looked up: 1 found, 0 not found"),
        "{output}"
    );
    assert_eq!(deployment.status(&ids[0]).await["status"], "connected");

    // Both commands reject clients with a tenant, unknown clients and an empty list.
    for command in ["retry", "delete"] {
        for id in [ids[0].as_str(), "unknown-client"] {
            let output = run(&deployment, 1, &["tenantless", command, id]).await;
            assert!(output.contains("tenantless list"), "{output}");
        }
        run(&deployment, 2, &["tenantless", command]).await;
    }
    assert_eq!(deployment.row(&ids[0]).await.unwrap().org_id, "10000");

    let output = run(&deployment, 0, &["tenantless", "retry", "--all"]).await;
    assert!(output.starts_with("2 reset"), "{output}");
    let output = run(&deployment, 0, &["update-tenantless", "--limit", "1"]).await;
    assert!(
        output.contains("1 looked up: 0 found, 1 not found"),
        "{output}"
    );
    assert_eq!(due_count(&deployment).await, "1 due");

    let output = run(&deployment, 0, &["tenantless", "delete", &ids[1]]).await;
    assert!(output.starts_with("1 deleted"), "{output}");
    assert!(deployment.row(&ids[1]).await.is_none());
    assert!(deployment.row(&ids[2]).await.is_some());
}

async fn update_fails_without_using_up_attempts_when_the_lookup_is_unavailable(
    deployment: Deployment,
) {
    let gateway = FakeGateway::start(GatewayReply::NotFound).await;
    let deployment = deployment.recreate_with_gateway(&gateway, &[]).await;
    let (ids, _clients) = connect_clients(&deployment, 2).await;
    run(&deployment, 0, &["tenantless", "retry", "--all"]).await;
    gateway.set_default_reply(GatewayReply::Overloaded);
    let output = run(&deployment, 1, &["update-tenantless"]).await;
    assert!(output.contains("2 unavailable"), "{output}");
    assert!(
        output.contains("the lookup service is unavailable"),
        "{output}"
    );
    for id in &ids {
        assert_eq!(
            deployment
                .row(id)
                .await
                .unwrap()
                .tenant_lookup_failure_count,
            0
        );
    }
    assert_eq!(due_count(&deployment).await, "2 due");
}

async fn update_that_would_clear_many_tenants_needs_force(deployment: Deployment) {
    let gateway = FakeGateway::start(GatewayReply::Found("10000")).await;
    let deployment = deployment.recreate_with_gateway(&gateway, &[]).await;
    let (ids, _clients) = connect_clients(&deployment, 60).await;
    let make_all_stale = if deployment.has_external_broker() {
        "UPDATE connections SET stale_timestamp = 'epoch'"
    } else {
        "UPDATE connections SET stale_timestamp = 0"
    };
    deployment.execute(make_all_stale).await;
    gateway.set_default_reply(GatewayReply::NotFound);
    let output = run(&deployment, 1, &["update-inventory"]).await;
    assert!(output.contains("--force"), "{output}");
    let listed = deployment.list_client_ids().await.len();
    assert_eq!(listed, 60, "no client may lose its tenant");
    let output = run(&deployment, 0, &["update-inventory", "--force"]).await;
    assert!(output.contains("60 not found"), "{output}");
    assert!(deployment.list_client_ids().await.is_empty());
    assert_eq!(
        deployment
            .row(&ids[0])
            .await
            .unwrap()
            .tenant_lookup_failure_count,
        1
    );
}

async fn report_counts_connections_by_organization(deployment: Deployment) {
    let gateway = FakeGateway::start(GatewayReply::NotFound).await;
    let deployment = deployment.recreate_with_gateway(&gateway, &[]).await;
    let (ids, mut clients) = connect_clients(&deployment, 4).await;
    for (id, org_id) in ids.iter().zip(["7", "10000", "10000"]) {
        gateway.set_reply(id, GatewayReply::Found(org_id));
    }
    run(&deployment, 0, &["tenantless", "retry", "--all"]).await;
    run(&deployment, 0, &["update-tenantless"]).await;
    let args = ["report", "connections-by-org", "--output", "json"];
    let report: Value = serde_json::from_str(&run(&deployment, 0, &args).await).unwrap();
    let expected = json!({"tenantless": 1, "organizations": [
        {"org_id": "10000", "connections": 2}, {"org_id": "7", "connections": 1},
    ]});
    assert_eq!(report, expected);
    let table = run(&deployment, 0, &["report", "connections-by-org"]).await;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let expected = [
        ["organization", "connections"],
        ["10000", "2"],
        ["7", "1"],
        ["(tenantless)", "1"],
    ];
    assert_eq!(rows, expected);
    // The only client of organization 7 disconnects: the organization is no longer listed.
    let offline = crate::support::mqtt::offline();
    clients[0]
        .must_publish(&control_out(&ids[0]), &offline)
        .await;
    eventually("organization 7 removed from the report", || async {
        let table = run(&deployment, 0, &["report", "connections-by-org"]).await;
        (table.lines().count() == 3).then_some(())
    })
    .await;
}
