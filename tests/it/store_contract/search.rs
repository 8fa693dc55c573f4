//! Lists: of those who are wanted, in pages, and how many there are.

use std::sync::Arc;

use cloud_connector::store::{
    ConnectionEnd, Filter, LookupOutcome, LookupReason, LookupResult, PageRequest, PageStart,
    PresenceBatch, Store, TenantChange,
};
use serde_json::{Value, json};

use super::{ConnectionUpsert, arrival, arrive, at, heard, org, tenant};

fn with(
    name: &str,
    owner: &str,
    facts: Value,
    dispatchers: Value,
    tags: Value,
) -> ConnectionUpsert {
    let mut arrival = arrival(name, TenantChange::Found(tenant(owner)));
    arrival.reported.canonical_facts = facts;
    arrival.reported.dispatchers = dispatchers;
    arrival.reported.tags = tags;
    arrival
}

async fn depart(store: &Arc<dyn Store>, names: &[&str], second: i64) {
    let departures = names.iter().map(|name| ConnectionEnd {
        client_id: super::client(name),
        heard: heard(second),
    });
    let batch = PresenceBatch {
        departures: departures.collect(),
        ..PresenceBatch::default()
    };
    store.record_batch(&batch, &[], at(second)).await.unwrap();
}

async fn found(store: &Arc<dyn Store>, by: impl Fn(&mut Filter)) -> Vec<String> {
    let mut wanted = PageRequest::page(0, 100);
    by(&mut wanted.filter);
    let listing = store.list_for_org(&org("1"), &wanted).await.unwrap();
    let names = names(&listing.connections);
    assert_eq!(listing.count, names.len() as u64);
    wanted.start = PageStart::After(String::new());
    let listing = store.list_for_org(&org("1"), &wanted).await.unwrap();
    assert_eq!(self::names(&listing.connections), names, "after a cursor");
    names
}

fn names(connections: &[cloud_connector::domain::Connection]) -> Vec<String> {
    let names = connections.iter().map(|found| found.client_id.to_string());
    names.collect()
}

pub async fn clients_are_found_by_what_they_said(store: Arc<dyn Store>) {
    let uuid = "0A5D2B9E-5163-47EE-9E57-3BB6D90BDFFF";
    let facts = json!({"insights_id": uuid, "fqdn": "Web1.Example.com", "rack": 7, "none": null,
        "ip_addresses": ["10.0.0.1", "10.0.0.2"], "odd": {"a": ["b"]}, "is_vm": true,
        "serial": "0123456789abcdef-0123456789ABCDEF"});
    let workers = json!({"rhc_worker-playbook": {"a": "b"}, "echo": null});
    let tags = json!({"region": "us1", "size": 5, "a:b": "c", "teams": ["red", "blue"],
        "sizes": [1, true]});
    arrive(
        &store,
        vec![
            with("a", "1", facts.clone(), workers.clone(), tags.clone()),
            with(
                "b",
                "1",
                json!({"fqdn": "web10.example.com"}),
                json!(null),
                json!({"region": "us2"}),
            ),
            with(
                "c",
                "1",
                json!({}),
                json!({"echo": {}}),
                json!(["region", "us1"]),
            ),
            with("d", "2", facts, workers, tags),
        ],
    )
    .await;
    let by_dispatcher = |name: &'static str| found(&store, move |filter| filter.dispatcher(name));
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
        let found = found(&store, |filter| filter.tag(key, value)).await;
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
        let found = found(&store, |filter| filter.fact(key, value)).await;
        assert_eq!(found, names, "fact {key}:{value}");
    }
    let several = found(&store, |filter| {
        filter.dispatcher("echo");
        filter.tag("region", "us1");
        filter.beginning("web");
    });
    assert_eq!(several.await, ["a"]);
}

pub async fn clients_are_found_by_how_their_names_begin(store: Arc<dyn Store>) {
    let named =
        |name: &str, fqdn: &str| with(name, "1", json!({"fqdn": fqdn}), json!({}), json!({}));
    arrive(
        &store,
        vec![
            named("abc", "x.example.com"),
            named("abd", "ABC.example.com"),
            named("b", "%_.example.com"),
            with("abe", "2", json!({}), json!({}), json!({})),
            arrival("abf", TenantChange::PendingLookup),
        ],
    )
    .await;
    for (beginning, names) in [
        ("ab", &["abc", "abd"][..]),
        ("abc", &["abc", "abd"]),
        ("AbC", &["abd"]),
        ("x.example.com", &["abc"]),
        ("%", &["b"]),
        ("_", &[]),
        ("\u{10ffff}", &[]),
    ] {
        let found = found(&store, |filter| filter.beginning(beginning)).await;
        assert_eq!(found, names, "{beginning}");
    }
}

pub async fn a_client_is_found_by_what_it_says_now(store: Arc<dyn Store>) {
    let said = |region: &str, second: i64| {
        let mut arrival = with("a", "1", json!({}), json!({}), json!({"region": region}));
        arrival.heard = heard(second);
        arrival
    };
    let by = |region: &'static str| found(&store, move |filter| filter.tag("region", region));
    arrive(&store, vec![said("us1", 1)]).await;
    arrive(&store, vec![said("us2", 2)]).await;
    assert_eq!(
        (by("us1").await, by("us2").await),
        (vec![], vec!["a".to_owned()])
    );
    depart(&store, &["a"], 3).await;
    assert_eq!(by("us2").await, [""; 0]);
    arrive(&store, vec![said("us2", 4)]).await;
    assert_eq!(by("us2").await, ["a"]);
    depart(&store, &["a"], 5).await;
    store.delete_disconnected_before(at(9)).await.unwrap();
    assert_eq!(by("us2").await, [""; 0]);
    arrive(&store, vec![said("us2", 10)]).await;
    assert_eq!(by("us2").await, ["a"]);
}

pub async fn pages_follow_a_cursor(store: Arc<dyn Store>) {
    let named = |name| with(name, "1", json!({}), json!({}), json!({}));
    arrive(&store, ["a", "b", "c", "d"].map(named).to_vec()).await;
    let page = async |after: &str| {
        let wanted = PageRequest {
            filter: Filter::default(),
            start: PageStart::After(after.to_owned()),
            limit: 2,
        };
        names(
            &store
                .list_for_org(&org("1"), &wanted)
                .await
                .unwrap()
                .connections,
        )
    };
    assert_eq!(page("").await, ["a", "b"]);
    assert_eq!(page("b").await, ["c", "d"]);
    assert_eq!(page("bb").await, ["c", "d"]);
    assert_eq!(page("d").await, [""; 0]);
}

pub async fn the_count_is_right_whatever_happens(store: Arc<dyn Store>) {
    let of = |name: &str, owner: &str| arrival(name, TenantChange::Found(tenant(owner)));
    let counts = async || {
        let count = async |owner: &str| {
            let wanted = PageRequest::page(9, 0);
            store
                .list_for_org(&org(owner), &wanted)
                .await
                .unwrap()
                .count
        };
        let (one, two) = (count("1").await, count("2").await);
        let all = store.list_all(0, 0).await.unwrap().count;
        assert_eq!(all, one + two);
        assert_eq!(store.count_connected().await.unwrap(), all);
        (one, two)
    };
    let nobodys = arrival("d", TenantChange::NotFound(at(0)));
    arrive(
        &store,
        vec![of("a", "1"), of("b", "1"), of("c", "2"), nobodys],
    )
    .await;
    assert_eq!(counts().await, (2, 1));
    // One moves, one comes again.
    arrive(&store, vec![of("a", "2"), of("b", "1")]).await;
    assert_eq!(counts().await, (1, 2));
    store.tidy().await.unwrap();
    assert_eq!(counts().await, (1, 2));
    // Somebody finds out to whom the fourth belongs.
    let known = store
        .claim_for_lookup(
            LookupReason::MissingTenant {
                before: at(50),
                max_attempts: 5,
            },
            10,
            at(50),
            at(60),
        )
        .await
        .unwrap();
    let finding = LookupResult {
        client_id: super::client("d"),
        version: known[0].version,
        outcome: LookupOutcome::Found {
            tenant: tenant("1"),
            reported_to_inventory_at: None,
            is_refused: false,
        },
    };
    store.save_lookup_results(&[finding], at(51)).await.unwrap();
    assert_eq!(counts().await, (2, 2));
    depart(&store, &["a", "b"], 60).await;
    store.tidy().await.unwrap();
    assert_eq!(counts().await, (1, 1));
}
