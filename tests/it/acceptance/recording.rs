//! K, O, A: what recording does to a row, with a real broker and, where there is one, a real queue.

use serde_json::{Value, json};

use crate::support::deployment::Row;
use crate::support::gateway::{Gateway, GatewayReply};
use crate::support::mqtt::{Connect, RawClient, control_out, offline, online};
use crate::support::{Deployment, eventually, unique};

/// Makes a test of each case for either set-up, with a gateway.
macro_rules! with_a_gateway {
    ($($case:ident),* $(,)?) => {
        mod embedded {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(super::TenancyFixture::embedded().await).await;
                }
            )*
        }

        #[cfg(feature = "external-services")]
        mod distributed {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(super::TenancyFixture::distributed().await).await;
                }
            )*
        }
    };
}

with_a_gateway!(
    k1_a_tenantless_connection_is_inserted_with_the_time_of_its_lookup,
    k2_no_inventory_message_for_a_tenantless_connection,
    k3_tenantless_becomes_tenant_on_a_later_online,
    k4_tenant_becomes_tenantless_on_a_definite_not_found,
    k5_unavailable_keeps_a_known_tenant_of_the_row_or_of_the_departed,
    k6_unavailable_on_an_unknown_client_gives_a_tenantless_row_that_is_due_at_once,
    k7_tenant_found_sets_the_count_to_zero,
    o1_offline_removes_the_row_tenantless_or_not,
    a1_no_endpoint_shows_or_reaches_a_tenantless_connection,
);

struct TenancyFixture {
    gateway: Gateway,
    subject: Deployment,
}

impl TenancyFixture {
    async fn embedded() -> Self {
        let gateway = Gateway::start(GatewayReply::Found("10000")).await;
        let settings = [
            ("tenant.gateway_url", gateway.url.as_str()),
            FRESH[0],
            FRESH[1],
        ];
        let subject = Deployment::embedded(&settings).await;
        Self { gateway, subject }
    }

    #[cfg(feature = "external-services")]
    async fn distributed() -> Self {
        let gateway = Gateway::start(GatewayReply::Found("10000")).await;
        let settings = [
            ("tenant.gateway_url", gateway.url.as_str()),
            FRESH[0],
            FRESH[1],
        ];
        let subject = Deployment::distributed(&settings).await;
        Self { gateway, subject }
    }

    async fn client(&self, name: &str) -> (String, RawClient) {
        let me = unique(name);
        let client = RawClient::connect(&self.subject.mqtt(), &Connect::new(&me)).await;
        (me, client)
    }

    /// GatewayReply online, and waits until the row is as wanted.
    async fn online(&self, me: &str, client: &mut RawClient, wanted: impl Fn(&Row) -> bool) -> Row {
        client.must_publish(&control_out(me), &host()).await;
        eventually("the row", || async {
            self.subject.row(me).await.filter(|row| wanted(row))
        })
        .await
    }
}

/// Every online asks anew.
const FRESH: [(&str, &str); 2] = [
    ("tenant.cache_ttl", "1ms"),
    ("tenant.negative_cache_ttl", "1ms"),
];

fn host() -> Value {
    let mut online = online();
    online["content"]["canonical_facts"] =
        json!({"insights_id": "cabb61b6-e61d-4d70-b475-01f5c009e93c"});
    online["content"]["dispatchers"] = json!({"rhc-worker-playbook": {}});
    online
}

fn seconds_ago(at: i64) -> i64 {
    jiff::Timestamp::now().as_second() - at
}

async fn k1_a_tenantless_connection_is_inserted_with_the_time_of_its_lookup(stage: TenancyFixture) {
    let (me, mut client) = stage.client("k1").await;
    stage.gateway.says_of(&me, GatewayReply::NotFound);
    let row = stage.online(&me, &mut client, |_| true).await;
    assert_eq!((row.org_id.as_str(), row.account.as_str()), ("", ""));
    let ago = seconds_ago(row.looked_up.expect("a time"));
    assert!((0..60).contains(&ago), "{ago}");
}

async fn k2_no_inventory_message_for_a_tenantless_connection(stage: TenancyFixture) {
    let (me, mut client) = stage.client("k2").await;
    stage.gateway.says_of(&me, GatewayReply::NotFound);
    stage.online(&me, &mut client, |_| true).await;
    assert!(stage.subject.inventory().await.is_empty());
    // For one with a tenant there is.
    let (other, mut client) = stage.client("k2-other").await;
    stage.online(&other, &mut client, |_| true).await;
    eventually("inventory hears of the other", || async {
        (stage.subject.inventory().await.len() == 1).then_some(())
    })
    .await;
}

async fn k3_tenantless_becomes_tenant_on_a_later_online(stage: TenancyFixture) {
    let (me, mut client) = stage.client("k3").await;
    stage.gateway.says_of(&me, GatewayReply::NotFound);
    stage.online(&me, &mut client, |_| true).await;
    stage.gateway.says_of(&me, GatewayReply::Found("20000"));
    let row = stage
        .online(&me, &mut client, |row| row.org_id == "20000")
        .await;
    assert_eq!(row.account, "42");
    assert_eq!(row.looked_up, None);
}

async fn k4_tenant_becomes_tenantless_on_a_definite_not_found(stage: TenancyFixture) {
    let (me, mut client) = stage.client("k4").await;
    stage
        .online(&me, &mut client, |row| row.org_id == "10000")
        .await;
    stage.gateway.says_of(&me, GatewayReply::NotFound);
    let row = stage
        .online(&me, &mut client, |row| row.org_id.is_empty())
        .await;
    assert!(row.looked_up.is_some());
}

async fn k5_unavailable_keeps_a_known_tenant_of_the_row_or_of_the_departed(stage: TenancyFixture) {
    let (me, mut client) = stage.client("k5").await;
    let known = stage
        .online(&me, &mut client, |row| row.org_id == "10000")
        .await;
    for silence in [
        GatewayReply::Busy,
        GatewayReply::Page(200),
        GatewayReply::Page(404),
    ] {
        stage.gateway.says_of(&me, silence);
        // Of the row.
        let row = stage
            .online(&me, &mut client, |row| row.updated != known.updated)
            .await;
        assert_eq!((row.org_id.as_str(), row.account.as_str()), ("10000", "42"));
        assert_eq!((row.looked_up, row.failures), (None, 0));
        // Of the departed.
        client.must_publish(&control_out(&me), &offline()).await;
        eventually("it is gone", || async {
            stage.subject.row(&me).await.is_none().then_some(())
        })
        .await;
        let row = stage.online(&me, &mut client, |_| true).await;
        assert_eq!((row.org_id.as_str(), row.account.as_str()), ("10000", "42"));
        assert_eq!(row.stale, 0, "inventory is owed");
    }
}

async fn k6_unavailable_on_an_unknown_client_gives_a_tenantless_row_that_is_due_at_once(
    stage: TenancyFixture,
) {
    let (me, mut client) = stage.client("k6").await;
    stage.gateway.says_of(&me, GatewayReply::Busy);
    let row = stage.online(&me, &mut client, |_| true).await;
    assert_eq!(row.org_id, "");
    assert_eq!(row.looked_up, Some(0));
    let (code, said) = stage
        .subject
        .command(&["update-tenantless", "--dry-run"])
        .await;
    assert_eq!((code, said.trim()), (Some(0), "1 due"));
}

async fn k7_tenant_found_sets_the_count_to_zero(stage: TenancyFixture) {
    let (me, mut client) = stage.client("k7").await;
    stage.gateway.says_of(&me, GatewayReply::NotFound);
    stage.online(&me, &mut client, |_| true).await;
    stage
        .subject
        .execute("UPDATE connections SET tenant_lookup_failure_count = 7")
        .await;
    let row = stage.online(&me, &mut client, |_| true).await;
    assert_eq!(row.failures, 7, "the updaters keep the count");
    stage.gateway.says_of(&me, GatewayReply::Found("10000"));
    let row = stage
        .online(&me, &mut client, |row| row.org_id == "10000")
        .await;
    assert_eq!(row.failures, 0);
}

async fn o1_offline_removes_the_row_tenantless_or_not(stage: TenancyFixture) {
    for says in [GatewayReply::NotFound, GatewayReply::Found("10000")] {
        let (me, mut client) = stage.client("o1").await;
        stage.gateway.says_of(&me, says);
        stage.online(&me, &mut client, |_| true).await;
        client.must_publish(&control_out(&me), &offline()).await;
        eventually("it is gone", || async {
            stage.subject.row(&me).await.is_none().then_some(())
        })
        .await;
    }
}

async fn a1_no_endpoint_shows_or_reaches_a_tenantless_connection(stage: TenancyFixture) {
    let (me, mut client) = stage.client("a1").await;
    stage.gateway.says_of(&me, GatewayReply::NotFound);
    stage.online(&me, &mut client, |_| true).await;
    assert_eq!(stage.subject.status(&me).await["status"], "disconnected");
    assert!(stage.subject.listed().await.is_empty());
    let (status, _) = stage.subject.send(&me, json!({"directive": "x"})).await;
    assert_eq!(status, 404);
    // Operators do see it.
    let (code, said) = stage.subject.command(&["tenantless", "list"]).await;
    assert_eq!(code, Some(0));
    assert!(said.contains(&me), "{said}");
    let (_, said) = stage
        .subject
        .command(&["report", "connections-by-org", "--output", "json"])
        .await;
    let report: Value = serde_json::from_str(said.trim()).unwrap();
    assert_eq!(report["without_organisation"], 1);
}
