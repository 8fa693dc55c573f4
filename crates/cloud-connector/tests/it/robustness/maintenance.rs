//! Dead letter limits, job claims and maintenance statements.

use serde_json::json;

use test_support::each_deployment;
use test_support::gateway::{FakeGateway, GatewayReply};
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{Deployment, DeploymentMode, eventually, unique_id};

each_deployment!(
    one_client_does_not_evict_the_dead_letters_of_other_clients
        with &[("dead_letters.max_per_client", "5"), ("dead_letters.max_total", "20"),
               ("updaters.interval", "500ms")],
    the_total_limit_deletes_dead_letters_of_the_clients_with_the_most
        with &[("dead_letters.max_per_client", "5"), ("dead_letters.max_total", "20"),
               ("updaters.interval", "500ms")],
    a_tenant_retry_interval_of_one_second_repeats_lookups_within_seconds,
    clients_whose_lookup_always_fails_do_not_delay_the_lookups_of_other_clients,
);

async fn connect(deployment: &Deployment, client_id: &str) -> RawClient {
    RawClient::connect(&deployment.mqtt_address(), &Connect::new(client_id)).await
}

/// Publishes messages that are not JSON, each with a different payload.
async fn publish_garbage(client: &mut RawClient, client_id: &str, count: usize) {
    for number in 0..count {
        let payload = format!("not JSON {number}");
        let puback = client
            .publish(&control_out_topic(client_id), payload.as_bytes())
            .await;
        puback.expect("the broker closed the connection");
    }
}

/// Five clients publish one message each that is not JSON. Waits until the dead letters are stored.
async fn store_dead_letters_of_occasional_clients(deployment: &Deployment) {
    for _ in 0..5 {
        let client_id = unique_id("occasional");
        let mut client = connect(deployment, &client_id).await;
        publish_garbage(&mut client, &client_id, 1).await;
    }
    eventually("the dead letters of the occasional clients", || async {
        (count_occasional(deployment).await == 5).then_some(())
    })
    .await;
}

async fn count_occasional(deployment: &Deployment) -> i64 {
    let sql = "SELECT count(*) FROM dead_letters WHERE client_id LIKE 'occasional%'";
    deployment.count_rows(sql).await
}

async fn one_client_does_not_evict_the_dead_letters_of_other_clients(deployment: Deployment) {
    store_dead_letters_of_occasional_clients(&deployment).await;
    let noisy = unique_id("noisy");
    let mut client = connect(&deployment, &noisy).await;
    publish_garbage(&mut client, &noisy, 100).await;
    deployment.wait_until_processed(&noisy, &mut client).await;
    let sql = "SELECT count(*) FROM dead_letters WHERE client_id LIKE 'noisy%'";
    assert_eq!(deployment.count_rows(sql).await, 5, "the limit per client");
    assert_eq!(count_occasional(&deployment).await, 5, "of other clients");
}

async fn the_total_limit_deletes_dead_letters_of_the_clients_with_the_most(deployment: Deployment) {
    store_dead_letters_of_occasional_clients(&deployment).await;
    for _ in 0..10 {
        let client_id = unique_id("noisy");
        let mut client = connect(&deployment, &client_id).await;
        publish_garbage(&mut client, &client_id, 3).await;
        deployment
            .wait_until_processed(&client_id, &mut client)
            .await;
    }
    let count = eventually("at most 20 dead letters", || async {
        let sql = "SELECT count(*) FROM dead_letters";
        let count = deployment.count_rows(sql).await;
        (count <= 20).then_some(count)
    })
    .await;
    assert_eq!(count, 20, "more were deleted than necessary");
    assert_eq!(count_occasional(&deployment).await, 5, "of other clients");
    let sql = "SELECT count(*) FROM (SELECT client_id FROM dead_letters
                WHERE client_id LIKE 'noisy%' GROUP BY client_id
               HAVING count(*) BETWEEN 1 AND 2) AS noisy";
    assert_eq!(deployment.count_rows(sql).await, 10);
}

async fn a_tenant_retry_interval_of_one_second_repeats_lookups_within_seconds(
    mode: DeploymentMode,
) {
    let gateway = FakeGateway::start(GatewayReply::NotFound).await;
    let settings = [
        ("updaters.interval", "500ms"),
        ("updaters.tenant_retry_interval", "1s"),
        ("tenant.negative_cache_ttl", "1ms"),
    ];
    let deployment = mode.start_with_gateway(&gateway, &settings).await;
    let client_id = unique_id("tenantless");
    let mut client = connect(&deployment, &client_id).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    // The first lookup belongs to the online message. The job makes the others.
    eventually("four lookups of the client", || async {
        let requested = gateway.requested_client_ids();
        let lookups = requested.iter().filter(|id| **id == client_id).count();
        (lookups >= 4).then_some(())
    })
    .await;
    gateway.set_default_reply(GatewayReply::Found("10000"));
    deployment.wait_until_connected(&client_id).await;
}

async fn clients_whose_lookup_always_fails_do_not_delay_the_lookups_of_other_clients(
    mode: DeploymentMode,
) {
    let gateway = FakeGateway::start(GatewayReply::NotFound).await;
    let deployment = mode.start_with_gateway(&gateway, &[]).await;
    let client_ids = ["failing-1", "failing-2", "working"].map(unique_id);
    let mut clients = Vec::new();
    for client_id in &client_ids {
        let mut client = connect(&deployment, client_id).await;
        client
            .must_publish(&control_out_topic(client_id), &online_message())
            .await;
        eventually("the client's row", || deployment.row(client_id)).await;
        clients.push(client);
    }
    deployment
        .execute(if deployment.has_external_broker() {
            "UPDATE connections SET tenant_lookup_timestamp =
                 CASE WHEN client_id LIKE 'failing%' THEN '2001-01-01'::timestamptz
                 ELSE '2002-02-02' END"
        } else {
            "UPDATE connections SET tenant_lookup_timestamp =
                 CASE WHEN client_id LIKE 'failing%' THEN 1 ELSE 2 END"
        })
        .await;
    gateway.set_default_reply(GatewayReply::Found("10000"));
    for client_id in &client_ids[..2] {
        gateway.set_reply(client_id, GatewayReply::Overloaded);
    }
    let command = ["update-tenantless", "--limit", "2"];
    let (code, output) = deployment.run_command(&command).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("2 unavailable"), "{output}");
    let (code, output) = deployment.run_command(&command).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(output.contains("1 found"), "{output}");
    assert_eq!(
        deployment.row(&client_ids[2]).await.unwrap().org_id,
        "10000"
    );
}

/// The inventory file cannot be opened while a directory has its name.
#[tokio::test]
async fn update_inventory_fails_while_inventory_is_unavailable_and_then_delivers_at_once() {
    let deployment = Deployment::embedded(&[]).await;
    let mut online = online_message();
    online["content"]["canonical_facts"] = json!({"insights_id": uuid::Uuid::new_v4()});
    online["content"]["dispatchers"] = json!({"rhc-worker-playbook": {}});
    let mut clients = Vec::new();
    for name in ["a", "b"].map(unique_id) {
        let mut client = connect(&deployment, &name).await;
        client
            .must_publish(&control_out_topic(&name), &online)
            .await;
        deployment.wait_until_reported_to_inventory(&name).await;
        clients.push(client);
    }
    deployment
        .execute("UPDATE connections SET stale_timestamp = 0")
        .await;
    let Deployment::Embedded(connector) = &deployment else {
        unreachable!("the test starts an embedded deployment");
    };
    let file = connector.data_dir().join("inventory.ndjson");
    std::fs::rename(&file, connector.data_dir().join("moved")).unwrap();
    std::fs::create_dir(&file).unwrap();
    let run = async |expected_code, args: &[&str]| {
        let (code, output) = deployment.run_command(args).await;
        assert_eq!(code, Some(expected_code), "{args:?}: {output}");
        output
    };
    let output = run(1, &["update-inventory"]).await;
    assert!(
        output.contains("0 reported to inventory, 2 pending"),
        "{output}"
    );
    let output = run(0, &["update-inventory", "--dry-run"]).await;
    assert_eq!(output.trim(), "2 due");
    std::fs::remove_dir(&file).unwrap();
    let output = run(0, &["update-inventory"]).await;
    assert!(
        output.contains("2 reported to inventory, 0 pending"),
        "{output}"
    );
    let output = run(0, &["update-inventory", "--dry-run"]).await;
    assert_eq!(output.trim(), "0 due");
}

/// The gateway never responds, so the command waits for a lookup when it receives the signal.
#[tokio::test]
async fn an_interrupted_update_tenantless_leaves_its_clients_due() {
    let gateway = FakeGateway::start(GatewayReply::NotFound).await;
    let settings = [("tenant.gateway_timeout", "50s")];
    let mode = DeploymentMode::Embedded;
    let deployment = mode.start_with_gateway(&gateway, &settings).await;
    let client_id = unique_id("tenantless");
    let mut client = connect(&deployment, &client_id).await;
    client
        .must_publish(&control_out_topic(&client_id), &online_message())
        .await;
    let (code, output) = deployment
        .run_command(&["tenantless", "retry", &client_id])
        .await;
    assert_eq!(code, Some(0), "{output}");
    gateway.set_default_reply(GatewayReply::NoReply);
    let lookups = gateway.requested_client_ids().len();
    let Deployment::Embedded(connector) = &deployment else {
        unreachable!("the test starts an embedded deployment");
    };
    let mut command = connector.connector_command();
    let mut child = command.arg("update-tenantless").spawn().unwrap();
    eventually("the lookup of the command", || async {
        (gateway.requested_client_ids().len() > lookups).then_some(())
    })
    .await;
    let pid = child.id().unwrap().to_string();
    let kill = std::process::Command::new("kill")
        .args(["-TERM", &pid])
        .status();
    assert!(kill.unwrap().success());
    let status = child.wait().await.unwrap();
    assert_eq!(status.code(), Some(1));
    let dry_run = ["update-tenantless", "--dry-run"];
    let (code, output) = deployment.run_command(&dry_run).await;
    assert_eq!((code, output.trim()), (Some(0), "1 due"));
}

/// Inserts hosts with 120 kB of facts each that are due for an inventory refresh. The facts consist of
/// many small values, which use the most memory for their size.
async fn insert_due_hosts_with_large_facts(deployment: &Deployment, count: usize) {
    let sql = "WITH RECURSIVE numbers (i) AS (
             SELECT 0 UNION ALL SELECT i + 1 FROM numbers WHERE i < {count} - 1)
         INSERT INTO connections (client_id, org_id, account, dialect, kind, topic_prefix,
                canonical_facts, dispatchers, tags, client_name, client_version, message_id,
                message_sent, online_received_at, created_at, updated_at, inventory_eligible,
                stale_timestamp)
         SELECT printf('large-%04d', i), '10000', '111000', 'status', 'host', 'redhat/insights',
                '{\"insights_id\":\"' || printf('00000000-0000-4000-8000-%012d', i)
                    || '\",\"values\":{\"list\":[' || replace(hex(zeroblob(40000)), '00', '10,')
                    || '10]}}',
                '{\"rhc-worker-playbook\":{}}', '{}', '', '', 'm' || i, 1, 1, 1, 1, 1, 0
           FROM numbers";
    deployment
        .execute(sql.replace("{count}", &count.to_string()).leak())
        .await;
}

/// Returns the largest resident memory of a process so far. `None` if the process has exited.
fn peak_memory_mib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let peak_kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(peak_kib / 1024)
}

#[tokio::test]
async fn update_inventory_of_hosts_with_large_facts_uses_a_bounded_amount_of_memory() {
    let mut deployment = Deployment::embedded(&[]).await;
    let Deployment::Embedded(connector) = &mut deployment else {
        unreachable!("the test starts an embedded deployment");
    };
    // The job of a running connector could claim the hosts first.
    connector.send_signal("TERM");
    connector.wait_for_exit().await;
    insert_due_hosts_with_large_facts(&deployment, 500).await;
    let Deployment::Embedded(connector) = &deployment else {
        unreachable!("the test starts an embedded deployment");
    };
    let mut command = connector.connector_command();
    command
        .arg("update-inventory")
        .stdout(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    let pid = child.id().unwrap();
    let mut peak_mib = 0;
    let read_peak_memory = async {
        loop {
            peak_mib = peak_memory_mib(pid).unwrap_or(peak_mib);
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let output = tokio::select! {
        output = child.wait_with_output() => output.unwrap(),
        () = read_peak_memory => unreachable!("the loop does not end"),
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("500 reported to inventory, 0 pending"),
        "{text}"
    );
    println!("{peak_mib} MiB were resident");
    assert!(
        (1..=200).contains(&peak_mib),
        "{peak_mib} MiB were resident; at most 200 MiB are expected"
    );
}
