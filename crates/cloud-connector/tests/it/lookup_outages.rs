//! Tests that clients keep their tenants during outages and faults of the tenant lookup service.
//! Only the lookup service is a fake. Normal test runs use few clients. `make outage-tests` runs
//! the tests with many clients, and checks how long the tests take.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use test_support::each_deployment;
use test_support::gateway::{FakeGateway, GatewayReply};
use test_support::mqtt::{
    Connect, PINGRESP, PUBACK, RawClient, control_out_topic, offline_message, online_message,
};
use test_support::{CONDITION_TIMEOUT, Deployment, DeploymentMode, eventually, unique_id};

each_deployment!(
    clients_that_reconnect_during_a_lookup_outage_keep_their_tenants,
    a_reconnect_loop_of_tenantless_clients_causes_one_lookup_per_client,
    clients_keep_their_tenants_if_the_lookup_service_suddenly_finds_no_tenants,
);

/// Default value of the setting `record.tenant_lookup_timeout`.
const TENANT_LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns whether the tests run with the full number of clients. Normal runs do not check
/// durations, because other tests use the machine at the same time.
#[expect(
    clippy::disallowed_methods,
    reason = "the make target selects the size"
)]
fn is_full_size_run() -> bool {
    std::env::var_os("FULL_SIZE_OUTAGE_TESTS").is_some()
}

/// Returns unique client ids. The number of ids is `full_size_count` in a full-size run, and
/// `normal_count` in a normal run.
fn unique_client_ids(prefix: &str, normal_count: usize, full_size_count: usize) -> Vec<String> {
    let count = if is_full_size_run() {
        full_size_count
    } else {
        normal_count
    };
    (0..count)
        .map(|n| unique_id(&format!("{prefix}{n}")))
        .collect()
}

/// A group of connected clients.
struct Fleet {
    client_ids: Vec<String>,
    clients: Vec<RawClient>,
}

impl Fleet {
    /// Connects all clients and publishes their online messages. Waits until the broker has
    /// acknowledged all messages.
    async fn connect(address: &str, client_ids: Vec<String>) -> Self {
        const MAX_CONCURRENT_CONNECTS: usize = 500;
        let mut tasks = Vec::new();
        let permits = Arc::new(tokio::sync::Semaphore::new(MAX_CONCURRENT_CONNECTS));
        for client_id in client_ids.clone() {
            let address = address.to_owned();
            let permit = permits.clone().acquire_owned().await.unwrap();
            tasks.push(tokio::spawn(async move {
                let connect = Connect::new(&client_id).offline_will().without_keep_alive();
                let mut client = RawClient::connect(&address, &connect).await;
                client
                    .must_publish(&control_out_topic(&client_id), &online_message())
                    .await;
                drop(permit);
                client
            }));
        }
        let mut clients = Vec::new();
        for task in tasks {
            clients.push(task.await.unwrap());
        }
        Self {
            client_ids,
            clients,
        }
    }

    /// Waits until all clients have a tenant. On a busy machine, the recorder cannot look up many
    /// new clients before the lookup timeout. Therefore this function also runs the command
    /// `update-tenantless`.
    async fn wait_for_initial_tenants(&self, deployment: &Deployment) {
        eventually("all clients to have a tenant", || async {
            deployment.run_command(&["update-tenantless"]).await;
            let found_count = count_clients_with_tenant(deployment).await;
            (found_count == self.client_ids.len()).then_some(())
        })
        .await;
    }

    /// Drops all connections and reconnects all clients. Returns the reconnected fleet, and the
    /// time until all clients were recorded with a tenant.
    async fn reconnect(self, deployment: &Deployment) -> (Self, Duration) {
        let start = Instant::now();
        drop(self.clients);
        wait_for_clients_with_tenant(deployment, 0).await;
        let fleet = Self::connect(&deployment.mqtt_address(), self.client_ids).await;
        wait_for_clients_with_tenant(deployment, fleet.client_ids.len()).await;
        (fleet, start.elapsed())
    }

    /// Checks that the API lists exactly the clients of the fleet.
    async fn assert_api_lists_exactly_this_fleet(&self, deployment: &Deployment) {
        let client_ids: HashSet<String> = self.client_ids.iter().cloned().collect();
        assert_eq!(deployment.list_client_ids().await, client_ids);
    }
}

async fn count_clients_with_tenant(deployment: &Deployment) -> usize {
    let sql = "SELECT count(*) FROM connections WHERE org_id <> ''";
    usize::try_from(deployment.count_rows(sql).await).unwrap()
}

/// Waits until exactly `count` clients have a tenant. The function queries the database, because
/// repeated API requests for the list of all clients would cause much load.
async fn wait_for_clients_with_tenant(deployment: &Deployment, count: usize) {
    let deadline = Instant::now() + 2 * CONDITION_TIMEOUT;
    loop {
        let found_count = count_clients_with_tenant(deployment).await;
        if found_count == count {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "timed out waiting for {count} clients with a tenant; found {found_count}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn clients_that_reconnect_during_a_lookup_outage_keep_their_tenants(mode: DeploymentMode) {
    let gateway = FakeGateway::start(GatewayReply::Found("10000")).await;
    let deployment = mode.start_with_gateway(&gateway, &[]).await;
    let client_ids = unique_client_ids("d", 300, 5000);
    let mut fleet = Fleet::connect(&deployment.mqtt_address(), client_ids).await;
    fleet.wait_for_initial_tenants(&deployment).await;
    let mut duration_without_outage = Duration::ZERO;
    for _ in 0..2 {
        let duration;
        (fleet, duration) = fleet.reconnect(&deployment).await;
        duration_without_outage = duration_without_outage.max(duration);
    }
    println!("no outage: all clients recorded after {duration_without_outage:.1?}");
    for outage in [
        GatewayReply::Overloaded,
        GatewayReply::NoReply,
        GatewayReply::HtmlPage(200),
        GatewayReply::HtmlPage(404),
    ] {
        gateway.set_default_reply(outage.clone());
        let requests_before = gateway.requested_client_ids().len();
        let duration;
        (fleet, duration) = fleet.reconnect(&deployment).await;
        let requests = gateway.requested_client_ids().len() - requests_before;
        println!("{outage:?}: all clients recorded after {duration:.1?}; {requests} lookups");
        if is_full_size_run() {
            assert!(
                duration <= duration_without_outage + 2 * TENANT_LOOKUP_TIMEOUT,
                "{duration:?}"
            );
        }
        // 20 failed lookups open the circuit breaker. At that time, up to 64 more lookups are in
        // flight. After that, the connector sends only probes. The test allows 30 probes.
        let max_requests = 20 + 64 + 30;
        assert!(requests <= max_requests, "{outage:?}: {requests} lookups");
        fleet.assert_api_lists_exactly_this_fleet(&deployment).await;
        // Failed lookups during an outage do not count as attempts.
        let sql = "SELECT count(*) FROM connections WHERE tenant_lookup_failure_count > 0";
        assert_eq!(deployment.count_rows(sql).await, 0);
        check_that_a_new_client_gets_its_tenant_after_the_outage(&deployment, &gateway).await;
        wait_for_clients_with_tenant(&deployment, fleet.client_ids.len()).await;
    }
    assert!(deployment.is_ready().await);
}

/// Connects a new client during an outage, and checks that the client is tenantless. Then ends the
/// outage, and waits until the updater has found the tenant and the circuit breaker is closed.
async fn check_that_a_new_client_gets_its_tenant_after_the_outage(
    deployment: &Deployment,
    gateway: &FakeGateway,
) {
    let client_id = unique_id("new");
    let topic = control_out_topic(&client_id);
    let connect = Connect::new(&client_id);
    let mut client = RawClient::connect(&deployment.mqtt_address(), &connect).await;
    client.must_publish(&topic, &online_message()).await;
    let row = eventually("the row of the new client", || deployment.row(&client_id)).await;
    assert_eq!(
        (row.org_id.as_str(), row.tenant_lookup_failure_count),
        ("", 0)
    );
    gateway.set_default_reply(GatewayReply::Found("10000"));
    eventually("the updater to find the tenant", || async {
        deployment.run_command(&["update-tenantless"]).await;
        let row = deployment.row(&client_id).await.unwrap();
        (row.org_id == "10000").then_some(())
    })
    .await;
    // The updater ran in another process, so the circuit breaker of the connector is still open.
    // The breaker closes after a successful probe, and only an online message causes a probe.
    let deadline = Instant::now() + CONDITION_TIMEOUT;
    let metric_name = "cloud_connector_tenant_breaker_open";
    while deployment.read_metric(metric_name, "").await > 0.5 {
        assert!(
            Instant::now() < deadline,
            "timed out waiting for the breaker to close"
        );
        client.must_publish(&topic, &online_message()).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    client.must_publish(&topic, &offline_message()).await;
}

async fn a_reconnect_loop_of_tenantless_clients_causes_one_lookup_per_client(mode: DeploymentMode) {
    let gateway = FakeGateway::start(GatewayReply::NotFound).await;
    let deployment = mode
        .start_with_gateway(&gateway, &[("tenant.negative_cache_ttl", "60s")])
        .await;
    let test_duration = Duration::from_secs(if is_full_size_run() { 30 } else { 5 });
    let deadline = Instant::now() + test_duration;
    let tasks: Vec<_> = unique_client_ids("s", 50, 500)
        .into_iter()
        .map(|client_id| {
            tokio::spawn(reconnect_until(
                deadline,
                deployment.mqtt_address(),
                client_id,
            ))
        })
        .collect();
    // After the first third of the test, the memory usage must not increase by more than 25 % plus
    // 16 MiB.
    tokio::time::sleep(test_duration / 3).await;
    let early_mib = deployment.resident_memory_mib();
    let mut reconnect_count = 0;
    for task in tasks {
        reconnect_count += task.await.unwrap();
    }
    let final_mib = deployment.resident_memory_mib();
    let requested_client_ids = gateway.requested_client_ids();
    println!(
        "{reconnect_count} reconnects, {} lookups, {early_mib} MiB after a third of the time, \
         {final_mib} MiB at the end",
        requested_client_ids.len()
    );
    assert!(
        final_mib <= early_mib + early_mib / 4 + 16,
        "memory usage increased from {early_mib} MiB to {final_mib} MiB"
    );
    let different_clients: HashSet<&String> = requested_client_ids.iter().collect();
    assert_eq!(
        requested_client_ids.len(),
        different_clients.len(),
        "a client was looked up more than once"
    );
    assert!(deployment.list_client_ids().await.is_empty());
    assert!(reconnect_count > 100, "only {reconnect_count} reconnects");
}

/// Repeatedly connects the client and publishes an online message, until the deadline. Returns the
/// number of connections.
async fn reconnect_until(deadline: Instant, address: String, client_id: String) -> u32 {
    let mut connection_count = 0;
    let control_in = format!("redhat/insights/{client_id}/control/in");
    while Instant::now() < deadline {
        let connect = Connect::new(&client_id).offline_will();
        let mut client = RawClient::connect(&address, &connect).await;
        client.subscribe(&control_in).await;
        let online = online_message().to_string();
        client
            .send_publish(&control_out_topic(&client_id), online.as_bytes(), false)
            .await;
        client.send_pingreq().await;
        // The client receives only PUBACK and PINGRESP from the broker, because the connector sends
        // no message to a tenantless client.
        assert_eq!(client.read_packet().await.unwrap().packet_type(), PUBACK);
        assert_eq!(client.read_packet().await.unwrap().packet_type(), PINGRESP);
        connection_count += 1;
    }
    connection_count
}

async fn clients_keep_their_tenants_if_the_lookup_service_suddenly_finds_no_tenants(
    mode: DeploymentMode,
) {
    let gateway = FakeGateway::start(GatewayReply::Found("10000")).await;
    let deployment = mode
        .start_with_gateway(&gateway, &[("tenant.negative_cache_ttl", "1ms")])
        .await;
    let client_ids = unique_client_ids("g", 120, 1000);
    let mut fleet = Fleet::connect(&deployment.mqtt_address(), client_ids).await;
    fleet.wait_for_initial_tenants(&deployment).await;
    let requests_before = gateway.requested_client_ids().len();
    gateway.set_default_reply(GatewayReply::NotFound);
    for (client_id, client) in fleet.client_ids.iter().zip(&mut fleet.clients) {
        client
            .must_publish(&control_out_topic(client_id), &online_message())
            .await;
    }
    eventually("the mass-loss guard to trigger", || async {
        let metric_name = "cloud_connector_tenant_mass_loss_suppressed_total";
        (deployment.read_metric(metric_name, "").await > 0.5).then_some(())
    })
    .await;
    // Each client has sent a second online message. The number of clients with a tenant is final
    // only after the lookups for all these messages.
    eventually("all lookups", || async {
        let requests = gateway.requested_client_ids().len() - requests_before;
        (requests >= fleet.client_ids.len()).then_some(())
    })
    .await;
    wait_for_clients_with_tenant(&deployment, fleet.client_ids.len()).await;
    fleet.assert_api_lists_exactly_this_fleet(&deployment).await;
    // A client that disconnects and reconnects keeps its tenant, too.
    let (client_id, client) = (&fleet.client_ids[0], &mut fleet.clients[0]);
    client
        .must_publish(&control_out_topic(client_id), &offline_message())
        .await;
    deployment.wait_until_disconnected(client_id).await;
    client
        .must_publish(&control_out_topic(client_id), &online_message())
        .await;
    deployment.wait_until_connected(client_id).await;
}
