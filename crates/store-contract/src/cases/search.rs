//! Lists of connections: filters, pages and counts.

use domain::Connection;
use serde_json::{Value, json};
use store::{
    ConnectionFilter, ConnectionUpsert, LookupOutcome, LookupReason, LookupResult,
    MAX_FILTERED_COUNT, PageRequest, PageStart, TenantChange,
};
use test_support::stores::TestStore;

use crate::fixtures::{
    client, count_for_org, org, received_at, record_heartbeat, record_offline, record_online,
    tenant, timestamp_at, upsert, upsert_for_org,
};

fn upsert_with_info(
    name: &str,
    org_id: &str,
    facts: Value,
    dispatchers: Value,
    tags: Value,
) -> ConnectionUpsert {
    let mut upsert = upsert_for_org(name, org_id);
    upsert.info.canonical_facts = facts;
    upsert.info.dispatchers = dispatchers;
    upsert.info.tags = tags;
    upsert
}

/// Returns the client ids of organization 1 that match a filter. Checks that both variants of
/// [`PageStart`] return the same clients.
async fn search_client_ids(
    store: &TestStore,
    set_filter: impl Fn(&mut ConnectionFilter),
) -> Vec<String> {
    let mut request = PageRequest::at_offset(0, 100);
    set_filter(&mut request.filter);
    let page = store
        .connections
        .list_connections_for_org(&org("1"), &request)
        .await
        .unwrap();
    let names = client_names(&page.connections);
    assert_eq!(page.total_count, names.len() as u64);
    request.start = PageStart::After(String::new());
    let page = store
        .connections
        .list_connections_for_org(&org("1"), &request)
        .await
        .unwrap();
    assert_eq!(client_names(&page.connections), names, "PageStart::After");
    names
}

fn client_names(connections: &[Connection]) -> Vec<String> {
    let names = connections.iter().map(|found| found.client_id.to_string());
    names.collect()
}

pub async fn filters_match_dispatchers_tags_and_facts(store: &TestStore) {
    let uuid = "0A5D2B9E-5163-47EE-9E57-3BB6D90BDFFF";
    let facts = json!({"insights_id": uuid, "fqdn": "Web1.Example.com", "rack": 7, "none": null,
        "ip_addresses": ["10.0.0.1", "10.0.0.2"], "odd": {"a": ["b"]}, "is_vm": true,
        "serial": "0123456789abcdef-0123456789ABCDEF"});
    let dispatchers = json!({"rhc_worker-playbook": {"a": "b"}, "echo": null});
    let tags = json!({"region": "us1", "size": 5, "a:b": "c", "teams": ["red", "blue"],
        "sizes": [1, true]});
    record_online(
        store,
        vec![
            upsert_with_info("a", "1", facts.clone(), dispatchers.clone(), tags.clone()),
            upsert_with_info(
                "b",
                "1",
                json!({"fqdn": "web10.example.com"}),
                json!(null),
                json!({"region": "us2"}),
            ),
            upsert_with_info(
                "c",
                "1",
                json!({}),
                json!({"echo": {}}),
                json!(["region", "us1"]),
            ),
            upsert_with_info("d", "2", facts, dispatchers, tags),
        ],
    )
    .await;
    let by_dispatcher = |name: &'static str| {
        search_client_ids(store, move |filter: &mut ConnectionFilter| {
            filter.require_dispatcher(name);
        })
    };
    assert_eq!(by_dispatcher("rhc-worker_playbook").await, ["a"]);
    assert_eq!(by_dispatcher("echo").await, ["a", "c"]);
    assert_eq!(by_dispatcher("ech").await, [""; 0]);
    assert_eq!(by_dispatcher("Echo").await, [""; 0]);
    for (key, value, names) in [
        ("region", "us1", &["a"][..]),
        ("region", "us2", &["b"]),
        ("region", "US1", &[]),
        ("region", "", &[]),
        ("size", "5", &["a"]),
        ("a:b", "c", &["a"]),
        ("teams", "blue", &["a"]),
        ("sizes", "1", &["a"]),
        ("sizes", "true", &["a"]),
        ("a", "b:c", &[]),
    ] {
        let found = search_client_ids(store, |filter| filter.require_tag(key, value)).await;
        assert_eq!(found, names, "tag {key}:{value}");
    }
    for (key, value, names) in [
        ("insights_id", uuid, &["a"][..]),
        ("insights_id", "0a5d2b9e516347ee9e573bb6d90bdfff", &["a"]),
        ("insights_id", "0a5d2b9e", &[]),
        ("fqdn", "web1.EXAMPLE.com", &["a"]),
        ("fqdn", "web1", &[]),
        ("ip_addresses", "10.0.0.2", &["a"]),
        ("rack", "7", &["a"]),
        ("is_vm", "true", &["a"]),
        ("serial", "0123456789ABCDEF-0123456789abcdef", &["a"]),
        ("serial", "0123456789abcdef0123456789abcdef", &[]),
        ("none", "null", &[]),
        ("missing", "", &[]),
    ] {
        let found = search_client_ids(store, |filter| filter.require_fact(key, value)).await;
        assert_eq!(found, names, "fact {key}:{value}");
    }
    let by_several = search_client_ids(store, |filter| {
        filter.require_dispatcher("echo");
        filter.require_tag("region", "us1");
        filter.require_prefix("web");
    });
    assert_eq!(by_several.await, ["a"]);
}

pub async fn prefix_filter_matches_client_id_and_fqdn(store: &TestStore) {
    let with_fqdn = |name: &str, fqdn: &str| {
        upsert_with_info(name, "1", json!({"fqdn": fqdn}), json!({}), json!({}))
    };
    record_online(
        store,
        vec![
            with_fqdn("abc", "x.example.com"),
            with_fqdn("abd", "ABC.example.com"),
            with_fqdn("b", "%_.example.com"),
            upsert_with_info("abe", "2", json!({}), json!({}), json!({})),
            upsert("abf", TenantChange::PendingLookup),
        ],
    )
    .await;
    for (prefix, names) in [
        ("ab", &["abc", "abd"][..]),
        ("abc", &["abc", "abd"]),
        ("AbC", &["abd"]),
        ("x.example.com", &["abc"]),
        ("%", &["b"]),
        ("_", &[]),
        ("\u{10ffff}", &[]),
    ] {
        let found = search_client_ids(store, |filter| filter.require_prefix(prefix)).await;
        assert_eq!(found, names, "{prefix}");
    }
}

pub async fn search_uses_the_latest_online_message(store: &TestStore) {
    let online = |region: &str, second: i64| {
        let mut upsert =
            upsert_with_info("a", "1", json!({}), json!({}), json!({"region": region}));
        upsert.received_at = received_at(second);
        upsert
    };
    let by_region = |region: &'static str| {
        search_client_ids(store, move |filter: &mut ConnectionFilter| {
            filter.require_tag("region", region);
        })
    };
    record_online(store, vec![online("us1", 1)]).await;
    record_online(store, vec![online("us2", 2)]).await;
    assert_eq!(by_region("us1").await, [""; 0]);
    assert_eq!(by_region("us2").await, ["a"]);
    record_offline(store, &["a"], 3).await;
    assert_eq!(by_region("us2").await, [""; 0]);
    record_online(store, vec![online("us2", 4)]).await;
    assert_eq!(by_region("us2").await, ["a"]);
    // The store also deletes the search row of a deleted client. A later online message creates a
    // new search row.
    record_offline(store, &["a"], 5).await;
    store
        .maintenance
        .delete_clients_disconnected_before(timestamp_at(9), 10)
        .await
        .unwrap();
    assert_eq!(by_region("us2").await, [""; 0]);
    record_online(store, vec![online("us2", 10)]).await;
    assert_eq!(by_region("us2").await, ["a"]);
}

pub async fn a_batch_can_contain_unchanged_changed_and_new_clients(store: &TestStore) {
    let online = |name: &str, org_id: &str, region: &str, second: i64| {
        let tags = json!({"region": region, "half": 0.5, "nested": [["a"]]});
        let mut upsert = upsert_with_info(name, org_id, json!({}), json!({}), tags);
        upsert.received_at = received_at(second);
        upsert
    };
    let first = ["a", "b", "c"].map(|name| online(name, "1", "us1", 1));
    record_online(store, first.to_vec()).await;
    let second = vec![
        online("a", "1", "us1", 2),
        online("b", "1", "us2", 2),
        online("c", "2", "us1", 2),
        online("d", "1", "us1", 2),
    ];
    record_online(store, second).await;
    for (key, value, names) in [
        ("region", "us1", &["a", "d"][..]),
        ("region", "us2", &["b"]),
        ("half", "0.5", &["a", "b", "d"]),
    ] {
        let found = search_client_ids(store, |filter| filter.require_tag(key, value)).await;
        assert_eq!(found, names, "tag {key}:{value}");
    }
    assert_eq!(count_for_org(store, "2").await, 1);
    record_offline(store, &["b"], 3).await;
    record_heartbeat(store, "b", 4, None).await;
    let found = search_client_ids(store, |filter| filter.require_tag("region", "us2"));
    assert_eq!(found.await, ["b"]);
}

pub async fn page_starts_after_the_given_client_id(store: &TestStore) {
    let upserts = ["a", "b", "c", "d"].map(|name| upsert_for_org(name, "1"));
    record_online(store, upserts.to_vec()).await;
    let page_after = async |client_id: &str| {
        let request = PageRequest {
            filter: ConnectionFilter::default(),
            start: PageStart::After(client_id.to_owned()),
            limit: 2,
        };
        let page = store
            .connections
            .list_connections_for_org(&org("1"), &request)
            .await
            .unwrap();
        client_names(&page.connections)
    };
    assert_eq!(page_after("").await, ["a", "b"]);
    assert_eq!(page_after("b").await, ["c", "d"]);
    assert_eq!(page_after("bb").await, ["c", "d"]);
    assert_eq!(page_after("d").await, [""; 0]);
}

pub async fn matches_of_a_filter_are_counted_up_to_a_limit(store: &TestStore) {
    let client_count = MAX_FILTERED_COUNT + 50;
    let upserts: Vec<_> = (0..client_count)
        .map(|number| upsert_for_org(&format!("client-{number}"), "1"))
        .collect();
    for chunk in upserts.chunks(1000) {
        record_online(store, chunk.to_vec()).await;
    }
    let mut request = PageRequest::at_offset(MAX_FILTERED_COUNT + 40, 100);
    let list = async |request: &PageRequest| {
        let page = store
            .connections
            .list_connections_for_org(&org("1"), request)
            .await
            .unwrap();
        (page.total_count, page.connections.len())
    };
    assert_eq!(list(&request).await, (client_count, 10));
    request.filter.require_dispatcher("echo");
    assert_eq!(list(&request).await, (MAX_FILTERED_COUNT + 1, 10));
}

pub async fn connection_counts_are_correct_after_every_change(store: &TestStore) {
    // Returns the number of connections of organization 1 and of organization 2. Checks that all
    // store methods that count connections return the same numbers.
    let count_connections_by_org = async || {
        let org_1_count = count_for_org(store, "1").await;
        let org_2_count = count_for_org(store, "2").await;
        let total_count = store
            .connections
            .list_all_clients(0, 0)
            .await
            .unwrap()
            .total_count;
        assert_eq!(total_count, org_1_count + org_2_count);
        assert_eq!(
            store
                .maintenance
                .count_connections_with_tenant()
                .await
                .unwrap(),
            total_count
        );
        (org_1_count, org_2_count)
    };
    record_online(
        store,
        vec![
            upsert_for_org("a", "1"),
            upsert_for_org("b", "1"),
            upsert_for_org("c", "2"),
            upsert("d", TenantChange::NotFound(timestamp_at(0))),
        ],
    )
    .await;
    assert_eq!(count_connections_by_org().await, (2, 1));
    // Client a is now in organization 2. Client b sends a second online message.
    record_online(
        store,
        vec![upsert_for_org("a", "2"), upsert_for_org("b", "1")],
    )
    .await;
    assert_eq!(count_connections_by_org().await, (1, 2));
    // A tenant lookup assigns client d to organization 1.
    let claimed = store
        .lookup_queue
        .claim_for_lookup(
            LookupReason::MissingTenant {
                looked_up_before: timestamp_at(50),
                max_attempts: 5,
            },
            10,
            timestamp_at(50),
            timestamp_at(60),
        )
        .await
        .unwrap();
    let result = LookupResult {
        client_id: client("d"),
        row_version: claimed[0].row_version,
        outcome: LookupOutcome::Found {
            tenant: tenant("1"),
            reported_to_inventory_at: None,
            inventory_eligible: true,
            report_failed: false,
        },
    };
    store
        .lookup_queue
        .save_lookup_results(&[result], timestamp_at(51))
        .await
        .unwrap();
    assert_eq!(count_connections_by_org().await, (2, 2));
    record_offline(store, &["a", "b"], 60).await;
    assert_eq!(count_connections_by_org().await, (1, 1));
}

pub async fn clients_are_filtered_by_the_time_at_which_they_were_last_seen(store: &TestStore) {
    let seen_at = |name: &str, second: i64| {
        let mut upsert = upsert_for_org(name, "1");
        upsert.presence.last_seen = Some(timestamp_at(second));
        upsert
    };
    let mut other_org = upsert_for_org("other", "2");
    other_org.presence.last_seen = Some(timestamp_at(20));
    // A row of an earlier version: the time of its online message counts.
    let mut without_time = upsert_for_org("old", "1");
    without_time.received_at.time = timestamp_at(40);
    let upserts = vec![
        seen_at("a", 10),
        seen_at("b", 20),
        seen_at("c", 30),
        without_time,
        other_org,
    ];
    record_online(store, upserts).await;
    for (after, before, expected) in [
        (None, None, &["a", "b", "c", "old"][..]),
        (Some(10), None, &["b", "c", "old"]),
        (None, Some(20), &["a"]),
        (Some(10), Some(40), &["b", "c"]),
        (Some(40), None, &[]),
        (Some(30), Some(20), &[]),
    ] {
        let found = search_client_ids(store, |filter| {
            if let Some(second) = after {
                filter.require_seen_after(timestamp_at(second));
            }
            if let Some(second) = before {
                filter.require_seen_before(timestamp_at(second));
            }
        });
        assert_eq!(found.await, expected, "{after:?} {before:?}");
    }
    let with_other_filters = search_client_ids(store, |filter| {
        filter.require_prefix("b");
        filter.require_seen_after(timestamp_at(10));
    });
    assert_eq!(with_other_filters.await, ["b"]);
}
