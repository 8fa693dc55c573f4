//! Contract tests of the store methods that read connections for API callers.

use std::sync::Arc;

use serde_json::json;
use store::{Store, TenantChange};

use super::{client, org, record_online, tenant, upsert, upsert_for_org};

pub async fn find_connections_for_org_returns_only_connections_of_the_organization(
    store: Arc<dyn Store>,
) {
    record_online(
        &store,
        vec![
            upsert_for_org("a", "1"),
            upsert_for_org("b", "2"),
            upsert("c", TenantChange::PendingLookup),
            upsert_for_org("d", "1"),
        ],
    )
    .await;
    let requested_ids = ["a", "b", "c", "d", "a", "x"].map(client);
    let found = store
        .find_connections_for_org(&org("1"), &requested_ids)
        .await
        .unwrap();
    let mut names: Vec<&str> = found.iter().map(|found| found.client_id.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "d"]);
    let found = store
        .find_connections_for_org(&org("1"), &[])
        .await
        .unwrap();
    assert!(found.is_empty());
}

pub async fn satellite_is_found_for_every_organization(store: Arc<dyn Store>) {
    let satellite = |name, tenant| {
        let mut satellite = upsert(name, tenant);
        satellite.info.dispatchers = json!({"foreman-rh-cloud": {}});
        satellite
    };
    record_online(
        &store,
        vec![
            upsert_for_org("own-host", "1"),
            upsert_for_org("other-host", "2"),
            satellite("other-satellite", TenantChange::Found(tenant("2"))),
            satellite("tenantless-satellite", TenantChange::PendingLookup),
        ],
    )
    .await;
    for (name, org_id) in [
        ("own-host", Some("1")),
        ("other-satellite", Some("2")),
        ("other-host", None),
        ("tenantless-satellite", None),
    ] {
        let found = store
            .find_org_or_satellite_connection(&org("1"), &client(name))
            .await
            .unwrap();
        let expected = org_id.map(tenant);
        assert_eq!(found.map(|found| found.tenant), expected, "{name}");
    }
}

pub async fn list_all_clients_returns_pages_of_clients_with_a_tenant(store: Arc<dyn Store>) {
    record_online(
        &store,
        vec![
            upsert_for_org("b", "2"),
            upsert_for_org("c", "1"),
            upsert("a", TenantChange::PendingLookup),
            upsert_for_org("d", "1"),
        ],
    )
    .await;
    let all_clients =
        [("1", "c"), ("1", "d"), ("2", "b")].map(|(org, name)| (tenant(org), client(name)));
    let page = store.list_all_clients(0, 10).await.unwrap();
    assert_eq!(
        (page.total_count, page.clients.as_slice()),
        (3, &all_clients[..])
    );
    let page = store.list_all_clients(1, 1).await.unwrap();
    assert_eq!(
        (page.total_count, page.clients.as_slice()),
        (3, &all_clients[1..2])
    );
    assert_eq!(store.list_all_clients(9, 1).await.unwrap().total_count, 3);
}
