//! Tests of the items K, O and A of the acceptance list: how the recorder changes a row of the
//! table `connections`, and what the API returns for a tenantless connection. The tests use real
//! brokers and real databases. In distributed mode they also use a real Kafka.

use serde_json::{Value, json};

use test_support::deployment::ConnectionRow;
use test_support::gateway::{FakeGateway, GatewayReply};
use test_support::mqtt::{Connect, RawClient, control_out_topic, offline_message, online_message};
use test_support::{Deployment, eventually, unique_id};

/// Creates two tests from each test function: `embedded::<name>` and `distributed::<name>`. A test
/// function takes a [`TenancyFixture`].
macro_rules! each_deployment_with_gateway {
    ($($test:ident),* $(,)?) => {
        mod embedded {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(super::TenancyFixture::embedded().await).await;
                }
            )*
        }

        mod distributed {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(super::TenancyFixture::distributed().await).await;
                }
            )*
        }
    };
}

each_deployment_with_gateway!(
    k1_tenantless_connection_is_inserted_with_the_current_time_as_lookup_timestamp,
    k2_tenantless_connection_is_not_reported_to_inventory,
    k3_tenantless_connection_gets_its_tenant_on_a_later_online_message,
    k4_connection_becomes_tenantless_if_a_later_lookup_finds_no_tenant,
    k5_unavailable_lookup_keeps_the_tenant_of_a_connected_or_disconnected_client,
    k6_unavailable_lookup_of_a_new_client_inserts_a_tenantless_row_that_is_due_for_lookup,
    k7_successful_lookup_resets_the_lookup_failure_count,
    o1_offline_message_deletes_the_row_with_or_without_a_tenant,
    a1_tenant_scoped_endpoints_neither_list_nor_reach_a_tenantless_connection,
);

/// A deployment that looks up tenants at a fake gateway.
struct TenancyFixture {
    gateway: FakeGateway,
    deployment: Deployment,
}

impl TenancyFixture {
    async fn embedded() -> Self {
        let gateway = FakeGateway::start(GatewayReply::Found("10000")).await;
        let settings = [
            ("tenant.gateway_url", gateway.url.as_str()),
            MINIMAL_CACHE_TTLS[0],
            MINIMAL_CACHE_TTLS[1],
        ];
        let deployment = Deployment::embedded(&settings).await;
        Self {
            gateway,
            deployment,
        }
    }

    async fn distributed() -> Self {
        let gateway = FakeGateway::start(GatewayReply::Found("10000")).await;
        let settings = [
            ("tenant.gateway_url", gateway.url.as_str()),
            MINIMAL_CACHE_TTLS[0],
            MINIMAL_CACHE_TTLS[1],
        ];
        let deployment = Deployment::distributed(&settings).await;
        Self {
            gateway,
            deployment,
        }
    }

    /// Connects a client with a unique client id to the broker. Returns the client id and the
    /// client.
    async fn connect_client(&self, client_id_prefix: &str) -> (String, RawClient) {
        let client_id = unique_id(client_id_prefix);
        let connect = Connect::new(&client_id);
        let client = RawClient::connect(&self.deployment.mqtt_address(), &connect).await;
        (client_id, client)
    }

    /// Publishes an online message, and waits until the client's row satisfies the condition.
    /// Returns the row.
    async fn publish_online_and_wait(
        &self,
        client_id: &str,
        client: &mut RawClient,
        condition: impl Fn(&ConnectionRow) -> bool,
    ) -> ConnectionRow {
        client
            .must_publish(&control_out_topic(client_id), &host_online_message())
            .await;
        eventually("the row", || async {
            self.deployment
                .row(client_id)
                .await
                .filter(|row| condition(row))
        })
        .await
    }

    /// Publishes an offline message, and waits until the client's row is deleted.
    async fn publish_offline_and_wait(&self, client_id: &str, client: &mut RawClient) {
        client
            .must_publish(&control_out_topic(client_id), &offline_message())
            .await;
        eventually("the row to be deleted", || async {
            self.deployment.row(client_id).await.is_none().then_some(())
        })
        .await;
    }
}

/// Settings with minimal cache TTLs. With these settings, each online message causes a tenant
/// lookup.
const MINIMAL_CACHE_TTLS: [(&str, &str); 2] = [
    ("tenant.cache_ttl", "1ms"),
    ("tenant.negative_cache_ttl", "1ms"),
];

/// Returns an online message of a host that is eligible for inventory.
fn host_online_message() -> Value {
    let mut online = online_message();
    online["content"]["canonical_facts"] =
        json!({"insights_id": "cabb61b6-e61d-4d70-b475-01f5c009e93c"});
    online["content"]["dispatchers"] = json!({"rhc-worker-playbook": {}});
    online
}

fn seconds_since(unix_seconds: i64) -> i64 {
    jiff::Timestamp::now().as_second() - unix_seconds
}

async fn k1_tenantless_connection_is_inserted_with_the_current_time_as_lookup_timestamp(
    fixture: TenancyFixture,
) {
    let (client_id, mut client) = fixture.connect_client("k1").await;
    fixture
        .gateway
        .set_reply(&client_id, GatewayReply::NotFound);
    let row = fixture
        .publish_online_and_wait(&client_id, &mut client, |_| true)
        .await;
    assert_eq!((row.org_id.as_str(), row.account.as_str()), ("", ""));
    let age = seconds_since(row.tenant_lookup_timestamp.expect("no lookup timestamp"));
    assert!((0..60).contains(&age), "{age}");
}

async fn k2_tenantless_connection_is_not_reported_to_inventory(fixture: TenancyFixture) {
    let (client_id, mut client) = fixture.connect_client("k2").await;
    fixture
        .gateway
        .set_reply(&client_id, GatewayReply::NotFound);
    fixture
        .publish_online_and_wait(&client_id, &mut client, |_| true)
        .await;
    assert!(fixture.deployment.inventory_messages().await.is_empty());
    // A client with a tenant is reported to inventory, twice if the refresh job runs before the first
    // report is stored as delivered. All inventory messages are of this client, so they have its
    // organization.
    let (other_org_client_id, mut client) = fixture.connect_client("k2-other").await;
    fixture
        .publish_online_and_wait(&other_org_client_id, &mut client, |_| true)
        .await;
    let messages = eventually("an inventory message", || async {
        let messages = fixture.deployment.inventory_messages().await;
        (!messages.is_empty()).then_some(messages)
    })
    .await;
    for message in messages {
        let org_id = message["data"]["org_id"].as_str().unwrap();
        assert!(!org_id.is_empty(), "{message}");
    }
}

async fn k3_tenantless_connection_gets_its_tenant_on_a_later_online_message(
    fixture: TenancyFixture,
) {
    let (client_id, mut client) = fixture.connect_client("k3").await;
    fixture
        .gateway
        .set_reply(&client_id, GatewayReply::NotFound);
    fixture
        .publish_online_and_wait(&client_id, &mut client, |_| true)
        .await;
    fixture
        .gateway
        .set_reply(&client_id, GatewayReply::Found("20000"));
    let row = fixture
        .publish_online_and_wait(&client_id, &mut client, |row| row.org_id == "20000")
        .await;
    assert_eq!(row.account, "42");
    assert_eq!(row.tenant_lookup_timestamp, None);
}

async fn k4_connection_becomes_tenantless_if_a_later_lookup_finds_no_tenant(
    fixture: TenancyFixture,
) {
    let (client_id, mut client) = fixture.connect_client("k4").await;
    fixture
        .publish_online_and_wait(&client_id, &mut client, |row| row.org_id == "10000")
        .await;
    fixture
        .gateway
        .set_reply(&client_id, GatewayReply::NotFound);
    let row = fixture
        .publish_online_and_wait(&client_id, &mut client, |row| row.org_id.is_empty())
        .await;
    assert!(row.tenant_lookup_timestamp.is_some());
}

async fn k5_unavailable_lookup_keeps_the_tenant_of_a_connected_or_disconnected_client(
    fixture: TenancyFixture,
) {
    let (client_id, mut client) = fixture.connect_client("k5").await;
    let initial_row = fixture
        .publish_online_and_wait(&client_id, &mut client, |row| row.org_id == "10000")
        .await;
    for unavailable_reply in [
        GatewayReply::Overloaded,
        GatewayReply::HtmlPage(200),
        GatewayReply::HtmlPage(404),
    ] {
        fixture.gateway.set_reply(&client_id, unavailable_reply);
        // The client is connected. The recorder reads the tenant from the client's row.
        let row = fixture
            .publish_online_and_wait(&client_id, &mut client, |row| {
                row.updated_at != initial_row.updated_at
            })
            .await;
        assert_eq!((row.org_id.as_str(), row.account.as_str()), ("10000", "42"));
        assert_eq!(
            (row.tenant_lookup_timestamp, row.tenant_lookup_failure_count),
            (None, 0)
        );
        // The client is disconnected. The recorder reads the tenant from the table
        // `disconnected_clients`.
        fixture
            .publish_offline_and_wait(&client_id, &mut client)
            .await;
        let row = fixture
            .publish_online_and_wait(&client_id, &mut client, |_| true)
            .await;
        assert_eq!((row.org_id.as_str(), row.account.as_str()), ("10000", "42"));
        assert_eq!(
            row.stale_timestamp, 0,
            "the inventory update is not pending"
        );
    }
}

async fn k6_unavailable_lookup_of_a_new_client_inserts_a_tenantless_row_that_is_due_for_lookup(
    fixture: TenancyFixture,
) {
    let (client_id, mut client) = fixture.connect_client("k6").await;
    fixture
        .gateway
        .set_reply(&client_id, GatewayReply::Overloaded);
    let row = fixture
        .publish_online_and_wait(&client_id, &mut client, |_| true)
        .await;
    assert_eq!(row.org_id, "");
    assert_eq!(row.tenant_lookup_timestamp, Some(0));
    let (exit_code, output) = fixture
        .deployment
        .run_command(&["update-tenantless", "--dry-run"])
        .await;
    assert_eq!((exit_code, output.trim()), (Some(0), "1 due"));
}

async fn k7_successful_lookup_resets_the_lookup_failure_count(fixture: TenancyFixture) {
    let (client_id, mut client) = fixture.connect_client("k7").await;
    fixture
        .gateway
        .set_reply(&client_id, GatewayReply::NotFound);
    fixture
        .publish_online_and_wait(&client_id, &mut client, |_| true)
        .await;
    fixture
        .deployment
        .execute("UPDATE connections SET tenant_lookup_failure_count = 7")
        .await;
    let row = fixture
        .publish_online_and_wait(&client_id, &mut client, |_| true)
        .await;
    assert_eq!(
        row.tenant_lookup_failure_count, 7,
        "the recorder changed the failure count"
    );
    fixture
        .gateway
        .set_reply(&client_id, GatewayReply::Found("10000"));
    let row = fixture
        .publish_online_and_wait(&client_id, &mut client, |row| row.org_id == "10000")
        .await;
    assert_eq!(row.tenant_lookup_failure_count, 0);
}

async fn o1_offline_message_deletes_the_row_with_or_without_a_tenant(fixture: TenancyFixture) {
    for reply in [GatewayReply::NotFound, GatewayReply::Found("10000")] {
        let (client_id, mut client) = fixture.connect_client("o1").await;
        fixture.gateway.set_reply(&client_id, reply);
        fixture
            .publish_online_and_wait(&client_id, &mut client, |_| true)
            .await;
        fixture
            .publish_offline_and_wait(&client_id, &mut client)
            .await;
    }
}

async fn a1_tenant_scoped_endpoints_neither_list_nor_reach_a_tenantless_connection(
    fixture: TenancyFixture,
) {
    let (client_id, mut client) = fixture.connect_client("a1").await;
    fixture
        .gateway
        .set_reply(&client_id, GatewayReply::NotFound);
    fixture
        .publish_online_and_wait(&client_id, &mut client, |_| true)
        .await;
    assert_eq!(
        fixture.deployment.client_status(&client_id).await["status"],
        "disconnected"
    );
    assert!(fixture.deployment.list_client_ids().await.is_empty());
    let (status, _) = fixture
        .deployment
        .send_message(&client_id, json!({"directive": "x"}))
        .await;
    assert_eq!(status, 404);
    // The operator commands include the tenantless connection.
    let (exit_code, output) = fixture
        .deployment
        .run_command(&["tenantless", "list"])
        .await;
    assert_eq!(exit_code, Some(0));
    assert!(output.contains(&client_id), "{output}");
    let (_, output) = fixture
        .deployment
        .run_command(&["report", "connections-by-org", "--output", "json"])
        .await;
    let report: Value = serde_json::from_str(output.trim()).unwrap();
    assert_eq!(report["tenantless"], 1);
}
