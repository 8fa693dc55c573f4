//! Connections as the API reads them.

use std::ops::ControlFlow;

use domain::{ClientId, ClientKind, Connection, MessageId};
use serde_json::json;
use store::{ConnectionUpsert, PageRequest, PageStart, TenantChange};
use test_support::stores::TestStore;

use crate::fixtures::{
    client, count_for_org, find_for_org_1, org, record_online, tenant, timestamp_at, upsert,
    upsert_for_org,
};

pub async fn connection_is_visible_only_to_its_organization(store: &TestStore) {
    record_online(store, vec![upsert_for_org("a", "1")]).await;
    let found = find_for_org_1(store, "a").await.unwrap();
    assert_eq!(found.client_id, client("a"));
    assert_eq!(found.tenant, tenant("1"));
    assert_eq!(found.dialect, protocol::status::NAME);
    assert_eq!(found.topic_prefix, "redhat/insights");
    assert_eq!(found.info, upsert_for_org("a", "1").info);
    assert_eq!(found.message_id.unwrap().as_str(), "m1");
    assert_eq!(found.message_sent_at, timestamp_at(0));
    assert_eq!(
        store
            .connections
            .find_connection_for_org(&org("2"), &client("a"))
            .await
            .unwrap(),
        None
    );
    assert_eq!(
        find_for_org_1(store, "A").await,
        None,
        "client ids are case-sensitive"
    );
    assert_eq!(count_for_org(store, "2").await, 0);
}

pub async fn list_of_connections_is_ordered_counted_and_paged(store: &TestStore) {
    let mut upserts: Vec<_> = ["b", "a", "C", "c", "_"]
        .iter()
        .map(|name| upsert_for_org(name, "1"))
        .collect();
    upserts.push(upsert_for_org("z", "2"));
    upserts.push(upsert("y", TenantChange::PendingLookup));
    record_online(store, upserts).await;
    let list_names = async |offset, limit| {
        let page = store
            .connections
            .list_connections_for_org(&org("1"), &PageRequest::at_offset(offset, limit))
            .await
            .unwrap();
        assert_eq!(page.total_count, 5);
        let names = page.connections.iter().map(|c| c.client_id.to_string());
        names.collect::<Vec<_>>()
    };
    // Both databases must sort client ids by bytes.
    assert_eq!(list_names(0, 10).await, ["C", "_", "a", "b", "c"]);
    assert_eq!(list_names(1, 2).await, ["_", "a"]);
    assert!(list_names(5, 10).await.is_empty());
    assert!(list_names(0, 0).await.is_empty());
    assert!(list_names(u64::MAX, u64::MAX).await.is_empty());
}

pub async fn unusual_values_are_read_back_unchanged(store: &TestStore) {
    let name = "ünï %_'\";-- \u{1F600} \\";
    let mut unusual = upsert_for_org(name, "o'rg \u{1F600}");
    unusual.info.canonical_facts = json!({
        "": null, "deep": [[{"a": [1.5, -7, true]}]], "quote": "\"'\\",
        "big": 9_007_199_254_740_993_i64, "text": "a\tb\n\u{7f}\u{2028}",
    });
    unusual.message_id = Some(MessageId::new(&"é".repeat(255)).unwrap());
    unusual.info.client_name = "n".repeat(255);
    record_online(store, vec![unusual.clone()]).await;
    let found = store
        .connections
        .find_connection_for_org(&org("o'rg \u{1F600}"), &client(name))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.info, unusual.info);
    assert_eq!(found.message_id, unusual.message_id);
    assert_eq!(
        store
            .presence
            .load_client_states(&[client(name)])
            .await
            .unwrap()
            .len(),
        1
    );
}

pub async fn proxy_is_read_back_unchanged(store: &TestStore) {
    let mut proxy = upsert_for_org("p", "1");
    proxy.dialect = protocol::handshake::NAME;
    proxy.kind = ClientKind::Proxy;
    proxy.info.catalog_service_facts = json!({"source_type": "s", "application_type": "a"});
    record_online(store, vec![proxy.clone()]).await;
    let found = find_for_org_1(store, "p").await.unwrap();
    assert_eq!(
        (found.dialect, found.kind),
        (protocol::handshake::NAME, ClientKind::Proxy)
    );
    assert_eq!(found.info, proxy.info);
}

async fn connections_of_clients(store: &TestStore, clients: &[ClientId]) -> Vec<Connection> {
    let mut connections = Vec::new();
    let mut collect = |connection| {
        connections.push(connection);
        ControlFlow::Continue(())
    };
    store
        .connections
        .visit_connections_of_clients(&org("1"), clients, &mut collect)
        .await
        .unwrap();
    connections
}

pub async fn connections_of_clients_are_only_connections_of_the_organization(store: &TestStore) {
    record_online(
        store,
        vec![
            upsert_for_org("a", "1"),
            upsert_for_org("b", "2"),
            upsert("c", TenantChange::PendingLookup),
            upsert_for_org("d", "1"),
        ],
    )
    .await;
    let requested_ids = ["a", "b", "c", "d", "a", "x"].map(client);
    let found = connections_of_clients(store, &requested_ids).await;
    let mut names: Vec<&str> = found.iter().map(|found| found.client_id.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["a", "d"]);
    assert_eq!(connections_of_clients(store, &[]).await, []);
}

/// Rows that are too large to be sent at once: a query ends when its visitor has enough of them,
/// and the next query works.
pub async fn query_ends_when_its_visitor_stops(store: &TestStore) {
    let upserts: Vec<ConnectionUpsert> = (0..300)
        .map(|i| {
            let mut upsert = upsert_for_org(&format!("client-{i:03}"), "1");
            let facts = json!({"fqdn": format!("host-{i:03}"), "large": "x".repeat(100_000)});
            upsert.info.canonical_facts = facts;
            upsert
        })
        .collect();
    for chunk in upserts.chunks(100) {
        record_online(store, chunk.to_vec()).await;
    }
    let all_ids: Vec<ClientId> = upserts.iter().map(|row| row.client_id.clone()).collect();
    let mut filtered = PageRequest::at_offset(0, 1000);
    filtered.filter.require_fact("fqdn", "host-007");
    let mut by_prefix = PageRequest::at_offset(10, 1000);
    by_prefix.filter.require_prefix("client");
    let mut after = PageRequest::at_offset(0, 1000);
    after.start = PageStart::After("client-100".to_owned());
    for (request, first, total_count) in [
        (PageRequest::at_offset(20, 1000), "client-020", 300),
        (filtered, "client-007", 1),
        (by_prefix, "client-010", 300),
        (after, "client-101", 0),
    ] {
        for max_rows in [1, 2] {
            let mut visited = Vec::new();
            let mut visit = |connection: Connection| {
                visited.push(connection.client_id.as_str().to_owned());
                if visited.len() == max_rows {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let count = store
                .connections
                .visit_connections_for_org(&org("1"), &request, &mut visit)
                .await;
            assert_eq!(count.unwrap(), total_count, "{request:?}");
            assert_eq!(visited[0], first, "{request:?}");
            assert!(visited.len() <= max_rows, "{request:?}");
        }
        let mut visited = 0;
        let mut visit = |_| {
            visited += 1;
            ControlFlow::Break(())
        };
        store
            .connections
            .visit_connections_of_clients(&org("1"), &all_ids, &mut visit)
            .await
            .unwrap();
        assert_eq!(visited, 1);
    }
}

pub async fn list_of_clients_of_an_organization_is_ordered_counted_and_paged(store: &TestStore) {
    let clients = ["c", "a", "b"].map(|name| upsert_for_org(name, "1"));
    record_online(store, clients.to_vec()).await;
    record_online(store, vec![upsert_for_org("d", "2")]).await;
    for (offset, limit, expected) in [
        (0, 10, &["a", "b", "c"][..]),
        (1, 1, &["b"]),
        (3, 10, &[]),
        (0, 0, &[]),
    ] {
        let page = store
            .connections
            .list_clients_for_org(&org("1"), offset, limit)
            .await
            .unwrap();
        assert_eq!(page.total_count, 3);
        let names = page.clients.iter().map(|(_, client)| client.as_str());
        assert_eq!(names.collect::<Vec<_>>(), expected, "{offset} {limit}");
        assert!(page.clients.iter().all(|(owner, _)| *owner == tenant("1")));
    }
}

pub async fn satellite_is_found_for_every_organization(store: &TestStore) {
    let satellite = |name, tenant| {
        let mut satellite = upsert(name, tenant);
        satellite.info.dispatchers = json!({"foreman-rh-cloud": {}});
        satellite
    };
    record_online(
        store,
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
            .connections
            .find_org_or_satellite_connection(&org("1"), &client(name))
            .await
            .unwrap();
        let expected = org_id.map(tenant);
        assert_eq!(found.map(|found| found.tenant), expected, "{name}");
    }
}

pub async fn list_all_clients_returns_pages_of_clients_with_a_tenant(store: &TestStore) {
    record_online(
        store,
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
    let page = store.connections.list_all_clients(0, 10).await.unwrap();
    assert_eq!(
        (page.total_count, page.clients.as_slice()),
        (3, &all_clients[..])
    );
    let page = store.connections.list_all_clients(1, 1).await.unwrap();
    assert_eq!(
        (page.total_count, page.clients.as_slice()),
        (3, &all_clients[1..2])
    );
    assert_eq!(
        store
            .connections
            .list_all_clients(9, 1)
            .await
            .unwrap()
            .total_count,
        3
    );
}
