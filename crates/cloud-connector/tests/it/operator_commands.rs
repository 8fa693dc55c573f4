//! Tests of operator commands that use the database of a running connector: `tenantless`,
//! `update-tenantless`, `update-inventory`, `report`.

use serde_json::{Value, json};

use test_support::each_deployment;
use test_support::gateway::{FakeGateway, GatewayReply};
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{Deployment, DeploymentMode, eventually, unique_id};

each_deployment!(
    tenantless_commands_list_retry_and_delete_clients_without_a_tenant,
    update_tenantless_fails_and_counts_no_attempt_if_the_lookup_service_is_unavailable,
    update_inventory_that_would_remove_many_tenants_requires_force,
    report_counts_connections_by_organization,
);

/// Returns an online message of a host that is eligible for inventory.
fn eligible_host_online_message() -> Value {
    let mut message = online_message();
    message["content"]["canonical_facts"] = json!({"insights_id": uuid::Uuid::new_v4()});
    message["content"]["dispatchers"] = json!({"rhc-worker-playbook": {}});
    message
}

/// Connects `count` clients and waits until the database contains the row of each client. Returns
/// the client ids and the clients.
async fn connect_clients(deployment: &Deployment, count: usize) -> (Vec<String>, Vec<RawClient>) {
    let client_ids: Vec<String> = (0..count).map(|n| unique_id(&format!("o{n}"))).collect();
    let mut clients = Vec::new();
    for client_id in &client_ids {
        let mut client =
            RawClient::connect(&deployment.mqtt_address(), &Connect::new(client_id)).await;
        client
            .must_publish(
                &control_out_topic(client_id),
                &eligible_host_online_message(),
            )
            .await;
        eventually("the client's row", || deployment.row(client_id)).await;
        clients.push(client);
    }
    (client_ids, clients)
}

/// Runs a command and checks the exit code. Returns the output of the command.
async fn run(deployment: &Deployment, expected_exit_code: i32, args: &[&str]) -> String {
    let (code, output) = deployment.run_command(args).await;
    assert_eq!(code, Some(expected_exit_code), "{args:?}: {output}");
    output
}

/// Returns the number of clients that are due for a tenant lookup, for example `2 due`.
async fn due_clients_text(deployment: &Deployment) -> String {
    let output = run(deployment, 0, &["update-tenantless", "--dry-run"]).await;
    output.trim().to_owned()
}

async fn tenantless_commands_list_retry_and_delete_clients_without_a_tenant(mode: DeploymentMode) {
    let gateway = FakeGateway::start(GatewayReply::NotFound).await;
    let settings: &[_] = &[("updaters.tenant_max_attempts", "2")];
    let deployment = mode.start_with_gateway(&gateway, settings).await;
    let (client_ids, _clients) = connect_clients(&deployment, 3).await;

    let list = run(&deployment, 0, &["tenantless", "list"]).await;
    assert!(
        list.starts_with("3 pending, 0 gave up after 2 attempts"),
        "{list}"
    );
    assert!(
        client_ids.iter().all(|client_id| list.contains(client_id)),
        "{list}"
    );
    let listed_ids = deployment.list_client_ids().await;
    assert!(
        listed_ids.is_empty(),
        "the API must not list tenantless clients"
    );

    let set_max_attempts = "UPDATE connections SET tenant_lookup_failure_count = 2";
    deployment.execute(set_max_attempts).await;
    let list = ["tenantless", "list", "--output", "json", "--limit", "2"];
    let list: Value = serde_json::from_str(&run(&deployment, 0, &list).await).unwrap();
    assert_eq!((&list["pending"], &list["gave_up"]), (&json!(0), &json!(3)));
    assert_eq!(list["clients"].as_array().unwrap().len(), 2);
    assert_eq!(list["clients"][0]["failed_lookups"], 2);
    assert_eq!(due_clients_text(&deployment).await, "0 due");

    // `tenantless retry` resets the number of failed lookups. The next run of `update-tenantless`
    // looks up the client again.
    let output = run(&deployment, 0, &["tenantless", "retry", &client_ids[0]]).await;
    assert!(output.starts_with("1 reset"), "{output}");
    assert_eq!(due_clients_text(&deployment).await, "1 due");
    gateway.set_reply(&client_ids[0], GatewayReply::Found("10000"));
    let output = run(&deployment, 0, &["update-tenantless"]).await;
    assert!(
        output.contains("1 looked up: 1 found, 0 not found"),
        "{output}"
    );
    assert_eq!(
        deployment.client_status(&client_ids[0]).await["status"],
        "connected"
    );

    // `retry` and `delete` reject clients with a tenant, unknown clients and an empty list of
    // clients.
    for command in ["retry", "delete"] {
        for client_id in [client_ids[0].as_str(), "unknown-client"] {
            let output = run(&deployment, 1, &["tenantless", command, client_id]).await;
            assert!(output.contains("tenantless list"), "{output}");
        }
        run(&deployment, 2, &["tenantless", command]).await;
    }
    assert_eq!(
        deployment.row(&client_ids[0]).await.unwrap().org_id,
        "10000"
    );

    let output = run(&deployment, 0, &["tenantless", "retry", "--all"]).await;
    assert!(output.starts_with("2 reset"), "{output}");
    let output = run(&deployment, 0, &["update-tenantless", "--limit", "1"]).await;
    assert!(
        output.contains("1 looked up: 0 found, 1 not found"),
        "{output}"
    );
    assert_eq!(due_clients_text(&deployment).await, "1 due");

    let output = run(&deployment, 0, &["tenantless", "delete", &client_ids[1]]).await;
    assert!(output.starts_with("1 deleted"), "{output}");
    assert!(deployment.row(&client_ids[1]).await.is_none());
    assert!(deployment.row(&client_ids[2]).await.is_some());
}

async fn update_tenantless_fails_and_counts_no_attempt_if_the_lookup_service_is_unavailable(
    mode: DeploymentMode,
) {
    let gateway = FakeGateway::start(GatewayReply::NotFound).await;
    let deployment = mode.start_with_gateway(&gateway, &[]).await;
    let (client_ids, _clients) = connect_clients(&deployment, 2).await;
    run(&deployment, 0, &["tenantless", "retry", "--all"]).await;
    gateway.set_default_reply(GatewayReply::Overloaded);
    let output = run(&deployment, 1, &["update-tenantless"]).await;
    assert!(output.contains("2 unavailable"), "{output}");
    assert!(
        output.contains("the lookup service is unavailable"),
        "{output}"
    );
    for client_id in &client_ids {
        assert_eq!(
            deployment
                .row(client_id)
                .await
                .unwrap()
                .tenant_lookup_failure_count,
            0
        );
    }
    assert_eq!(due_clients_text(&deployment).await, "2 due");
}

async fn update_inventory_that_would_remove_many_tenants_requires_force(mode: DeploymentMode) {
    let gateway = FakeGateway::start(GatewayReply::Found("10000")).await;
    let deployment = mode.start_with_gateway(&gateway, &[]).await;
    let (client_ids, _clients) = connect_clients(&deployment, 60).await;
    for client_id in &client_ids {
        deployment.wait_until_reported_to_inventory(client_id).await;
    }
    let make_all_stale = if deployment.has_external_broker() {
        "UPDATE connections SET stale_timestamp = 'epoch'"
    } else {
        "UPDATE connections SET stale_timestamp = 0"
    };
    deployment.execute(make_all_stale).await;
    gateway.set_default_reply(GatewayReply::NotFound);
    let output = run(&deployment, 1, &["update-inventory"]).await;
    assert!(output.contains("--force"), "{output}");
    let listed_count = deployment.list_client_ids().await.len();
    assert_eq!(listed_count, 60, "a tenant was removed without --force");
    let output = run(&deployment, 0, &["update-inventory", "--force"]).await;
    assert!(output.contains("60 not found"), "{output}");
    assert!(deployment.list_client_ids().await.is_empty());
    assert_eq!(
        deployment
            .row(&client_ids[0])
            .await
            .unwrap()
            .tenant_lookup_failure_count,
        1
    );
}

async fn report_counts_connections_by_organization(mode: DeploymentMode) {
    let gateway = FakeGateway::start(GatewayReply::NotFound).await;
    let deployment = mode.start_with_gateway(&gateway, &[]).await;
    let (client_ids, mut clients) = connect_clients(&deployment, 4).await;
    for (client_id, org_id) in client_ids.iter().zip(["7", "10000", "10000"]) {
        gateway.set_reply(client_id, GatewayReply::Found(org_id));
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
    // The only client of organization 7 disconnects, so the report does not list the organization.
    let offline = test_support::mqtt::offline_message();
    clients[0]
        .must_publish(&control_out_topic(&client_ids[0]), &offline)
        .await;
    eventually("the report without organization 7", || async {
        let table = run(&deployment, 0, &["report", "connections-by-org"]).await;
        (table.lines().count() == 3).then_some(())
    })
    .await;
}
