//! What callers reach.

use std::sync::Arc;

use cloud_connector::store::{Store, TenantChange};
use serde_json::json;

use super::{ConnectionUpsert, arrival, arrive, client, org, tenant};

fn of(name: &str, owner: &str) -> ConnectionUpsert {
    arrival(name, TenantChange::Found(tenant(owner)))
}

pub async fn many_are_found_at_once_and_only_the_organisations_own(store: Arc<dyn Store>) {
    let nobodys = arrival("c", TenantChange::PendingLookup);
    arrive(
        &store,
        vec![of("a", "1"), of("b", "2"), nobodys, of("d", "1")],
    )
    .await;
    let asked = ["a", "b", "c", "d", "a", "x"].map(client);
    let found = store.find_many_for_org(&org("1"), &asked).await.unwrap();
    let mut names: Vec<&str> = found.iter().map(|found| found.client_id.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "d"]);
    assert!(
        store
            .find_many_for_org(&org("1"), &[])
            .await
            .unwrap()
            .is_empty()
    );
}

pub async fn a_satellite_server_is_found_for_anybody_and_nobody_else_is(store: Arc<dyn Store>) {
    let satellite = |name, tenant| {
        let mut satellite = arrival(name, tenant);
        satellite.reported.dispatchers = json!({"foreman-rh-cloud": {}});
        satellite
    };
    let theirs = satellite("s", TenantChange::Found(tenant("2")));
    let nobodys = satellite("t", TenantChange::PendingLookup);
    arrive(&store, vec![of("a", "1"), of("b", "2"), theirs, nobodys]).await;
    for (name, owner) in [("a", Some("1")), ("s", Some("2")), ("b", None), ("t", None)] {
        let found = store
            .find_for_org_or_satellite(&org("1"), &client(name))
            .await
            .unwrap();
        assert_eq!(found.map(|found| found.tenant), owner.map(tenant), "{name}");
    }
}

pub async fn everybody_with_an_organisation_is_listed_in_pages(store: Arc<dyn Store>) {
    let nobodys = arrival("a", TenantChange::PendingLookup);
    arrive(
        &store,
        vec![of("b", "2"), of("c", "1"), nobodys, of("d", "1")],
    )
    .await;
    let all = [("1", "c"), ("1", "d"), ("2", "b")].map(|(org, name)| (tenant(org), client(name)));
    let page = store.list_all(0, 10).await.unwrap();
    assert_eq!((page.count, page.clients.as_slice()), (3, &all[..]));
    let page = store.list_all(1, 1).await.unwrap();
    assert_eq!((page.count, page.clients.as_slice()), (3, &all[1..2]));
    assert_eq!(store.list_all(9, 1).await.unwrap().count, 3);
}
