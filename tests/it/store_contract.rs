//! What every store promises. The suite is written once; `contract!` runs it on each of them.

mod api_reads;
mod dead_letters;
mod search;

use std::sync::Arc;

use cloud_connector::domain::{
    ClientId, ClientInfo, ClientKind, Connection, Dialect, MessageId, OrgId, Tenant, Timestamp,
};
use cloud_connector::store::sqlite::SqliteStore;
use cloud_connector::store::{
    ConnectionEnd, ConnectionUpsert, HeartbeatUpdate, PageRequest, PartitionLease, PresenceBatch,
    QueuePosition, QueueTopic, ReceivedAt, Store, StoreError, TenantChange, WriteOutcome,
};
use serde_json::json;
use tempfile::TempDir;

use api_reads::*;
use dead_letters::*;
use search::*;

/// A store of a test's own, and what must outlive it.
pub struct Deployment {
    pub store: Arc<dyn Store>,
    kept: Kept,
}

/// What must outlive the store, and where it is.
enum Kept {
    File(TempDir),
    #[cfg(feature = "external-services")]
    Url(String),
}

impl Deployment {
    /// A client's row, past the store.
    pub async fn row(&self, client: &str) -> Option<crate::support::deployment::Row> {
        use crate::support::deployment;
        match &self.kept {
            Kept::File(folder) => {
                deployment::sqlite_row(&folder.path().join("test.db"), client).await
            }
            #[cfg(feature = "external-services")]
            Kept::Url(url) => {
                use sqlx::Connection as _;
                let mut database = sqlx::PgConnection::connect(url).await.unwrap();
                deployment::postgres_row(&mut database, client).await
            }
        }
    }

    /// Changes something past the store.
    pub async fn execute(&self, sql: &'static str) {
        use sqlx::Connection as _;
        match &self.kept {
            Kept::File(folder) => {
                let url = format!("sqlite://{}", folder.path().join("test.db").display());
                let mut database = sqlx::SqliteConnection::connect(&url).await.unwrap();
                sqlx::query(sql).execute(&mut database).await.unwrap();
            }
            #[cfg(feature = "external-services")]
            Kept::Url(url) => {
                let mut database = sqlx::PgConnection::connect(url).await.unwrap();
                sqlx::query(sql).execute(&mut database).await.unwrap();
            }
        }
    }
}

pub async fn sqlite() -> Deployment {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.db");
    Deployment {
        store: Arc::new(SqliteStore::open(&path).await.unwrap()),
        kept: Kept::File(folder),
    }
}

/// A database of its own on the server that `make test` runs.
#[cfg(feature = "external-services")]
pub async fn postgres() -> Deployment {
    use cloud_connector::store::postgres::{PostgresStore, migrate};
    let port = crate::support::services::shared().await.postgres;
    let name = crate::support::services::database(port).await;
    let url = format!("postgres://cc:cc-secret@127.0.0.1:{port}/{name}?sslmode=disable");
    let settings = crate::support::services::postgres_settings(port, &name);
    migrate(&settings).await.unwrap();
    Deployment {
        store: Arc::new(PostgresStore::new(&settings)),
        kept: Kept::Url(url),
    }
}

/// The suite: makes a test of each case, for each store.
macro_rules! contract {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $case() {
                    let subject = super::sqlite().await;
                    super::$case(subject.store.clone()).await;
                    subject.store.close().await;
                }
            )*
        }

        #[cfg(feature = "external-services")]
        mod postgres {
            $(
                #[tokio::test]
                async fn $case() {
                    let subject = super::postgres().await;
                    super::$case(subject.store.clone()).await;
                    subject.store.close().await;
                }
            )*
        }
    };
}

contract!(
    what_is_recorded_is_found_by_its_organisation_only,
    an_online_again_replaces_what_was_said,
    a_departure_removes_the_row_and_remembers_the_tenant,
    a_return_ends_the_remembrance,
    a_tenantless_client_is_known_and_never_shown,
    no_answer_keeps_the_tenant_that_was_known,
    a_listing_is_ordered_counted_and_cut_into_pages,
    a_batch_of_many_is_written_at_once,
    odd_but_legal_values_come_back_as_they_were,
    all_clients_are_found_in_order,
    those_who_left_long_ago_are_forgotten,
    only_the_present_owner_of_a_partition_may_write,
    nothing_of_a_failed_batch_is_kept,
    a_proxy_comes_back_as_it_was,
    a_sign_of_life_brings_back_who_left_as_it_was,
    a_sign_of_life_from_before_the_farewell_says_nothing,
    a_farewell_that_was_overtaken_does_not_end_the_connection,
    places_in_the_queue_are_remembered,
    a_row_that_the_database_refuses_is_told_from_a_database_that_is_away,
    dead_letters_are_kept_once_per_client_and_content,
    dead_letters_are_capped_per_client,
    dead_letters_are_found_shown_and_purged,
    a_replay_ends_a_dead_letter_unless_it_was_refused_again,
    an_empty_batch_is_fine,
    many_are_found_at_once_and_only_the_organisations_own,
    a_satellite_server_is_found_for_anybody_and_nobody_else_is,
    everybody_with_an_organisation_is_listed_in_pages,
    clients_are_found_by_what_they_said,
    clients_are_found_by_how_their_names_begin,
    a_client_is_found_by_what_it_says_now,
    pages_follow_a_cursor,
    the_count_is_right_whatever_happens,
);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn client(name: &str) -> ClientId {
    ClientId::new(name).unwrap()
}

fn org(name: &str) -> OrgId {
    OrgId::new(name).unwrap()
}

fn tenant(name: &str) -> Tenant {
    Tenant {
        org_id: org(name),
        account: "42".into(),
    }
}

fn heard(second: i64) -> ReceivedAt {
    ReceivedAt {
        at: at(second),
        place: None,
    }
}

fn departure(name: &str, second: i64) -> ConnectionEnd {
    ConnectionEnd {
        client_id: client(name),
        heard: heard(second),
    }
}

fn arrival(name: &str, tenant: TenantChange) -> ConnectionUpsert {
    ConnectionUpsert {
        client_id: client(name),
        dialect: Dialect::Status,
        kind: ClientKind::Host,
        topic_prefix: "redhat/insights".into(),
        reported: ClientInfo {
            canonical_facts: json!({"fqdn": name}),
            catalog_service_facts: json!(null),
            dispatchers: json!({"echo": {}}),
            tags: json!(null),
            client_name: "c".into(),
            client_version: "1".into(),
        },
        message_id: Some(MessageId::new("m1").unwrap()),
        message_sent: at(0),
        heard: heard(0),
        last_heartbeat_at: None,
        tenant,
        inventory_eligible: true,
        reported_to_inventory_at: None,
    }
}

async fn arrive(store: &Arc<dyn Store>, arrivals: Vec<ConnectionUpsert>) {
    let batch = PresenceBatch {
        arrivals,
        ..PresenceBatch::default()
    };
    store.record_batch(&batch, &[], at(1)).await.unwrap();
}

async fn depart(store: &Arc<dyn Store>, names: &[&str]) {
    let batch = PresenceBatch {
        departures: names.iter().map(|name| departure(name, 2)).collect(),
        ..PresenceBatch::default()
    };
    store.record_batch(&batch, &[], at(2)).await.unwrap();
}

async fn what_is_recorded_is_found_by_its_organisation_only(store: Arc<dyn Store>) {
    arrive(&store, vec![arrival("a", TenantChange::Found(tenant("1")))]).await;
    let found = store
        .find_for_org(&org("1"), &client("a"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.client_id, client("a"));
    assert_eq!(found.tenant, tenant("1"));
    assert_eq!(found.dialect, Dialect::Status);
    assert_eq!(found.topic_prefix, "redhat/insights");
    assert_eq!(
        found.reported,
        arrival("a", TenantChange::PendingLookup).reported
    );
    assert_eq!(found.message_id.unwrap().as_str(), "m1");
    assert_eq!(found.message_sent, at(0));
    assert_eq!(
        store.find_for_org(&org("2"), &client("a")).await.unwrap(),
        None
    );
    assert_eq!(
        store.find_for_org(&org("1"), &client("A")).await.unwrap(),
        None
    );
    assert_eq!(
        store
            .list_for_org(&org("2"), &PageRequest::page(0, 10))
            .await
            .unwrap()
            .count,
        0
    );
}

async fn an_online_again_replaces_what_was_said(store: Arc<dyn Store>) {
    arrive(&store, vec![arrival("a", TenantChange::Found(tenant("1")))]).await;
    let mut again = arrival("a", TenantChange::Found(tenant("2")));
    again.reported.tags = json!({"new": "yes"});
    again.reported.client_version = "2".into();
    again.topic_prefix = "qa/insights".into();
    again.message_id = None;
    again.message_sent = at(5);
    arrive(&store, vec![again.clone()]).await;
    assert_eq!(
        store.find_for_org(&org("1"), &client("a")).await.unwrap(),
        None
    );
    let found = store
        .find_for_org(&org("2"), &client("a"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.reported, again.reported);
    assert_eq!(found.topic_prefix, "qa/insights");
    assert_eq!(found.message_id, None);
    assert_eq!(found.message_sent, at(5));
}

async fn a_departure_removes_the_row_and_remembers_the_tenant(store: Arc<dyn Store>) {
    arrive(&store, vec![arrival("a", TenantChange::Found(tenant("1")))]).await;
    depart(&store, &["a", "never-was"]).await;
    assert_eq!(
        store.find_for_org(&org("1"), &client("a")).await.unwrap(),
        None
    );
    assert_eq!(
        store
            .list_for_org(&org("1"), &PageRequest::page(0, 10))
            .await
            .unwrap()
            .count,
        0
    );
    let known = store
        .load_states(&[client("a"), client("never-was")])
        .await
        .unwrap();
    assert_eq!(known.len(), 1);
    assert_eq!(known[&client("a")].connected, None);
    let left = known[&client("a")].departed.as_ref().unwrap();
    assert_eq!(left.tenant, Some(tenant("1")));
    assert_eq!(left.message_id.as_ref().unwrap().as_str(), "m1");
    assert_eq!(left.heard, heard(2));
}

async fn a_return_ends_the_remembrance(store: Arc<dyn Store>) {
    arrive(&store, vec![arrival("a", TenantChange::Found(tenant("1")))]).await;
    depart(&store, &["a"]).await;
    arrive(&store, vec![arrival("a", TenantChange::NotFound(at(3)))]).await;
    let known = store.load_states(&[client("a")]).await.unwrap();
    let known = &known[&client("a")];
    assert_eq!(known.departed, None);
    assert_eq!(known.connected.as_ref().unwrap().tenant, None);
}

async fn a_tenantless_client_is_known_and_never_shown(store: Arc<dyn Store>) {
    let arrivals = vec![
        arrival("gone", TenantChange::NotFound(at(1))),
        arrival("unknown", TenantChange::PendingLookup),
    ];
    arrive(&store, arrivals).await;
    let known = store
        .load_states(&[client("gone"), client("unknown")])
        .await
        .unwrap();
    assert_eq!(known.len(), 2);
    for name in ["gone", "unknown"] {
        let row = known[&client(name)].connected.as_ref().unwrap();
        assert_eq!(row.tenant, None);
        assert_eq!(row.message_id.as_ref().unwrap().as_str(), "m1");
        // There is no name for "no organisation" to ask with.
        assert!(OrgId::new("").is_err());
        assert_eq!(
            store.find_for_org(&org("1"), &client(name)).await.unwrap(),
            None
        );
    }
}

async fn no_answer_keeps_the_tenant_that_was_known(store: Arc<dyn Store>) {
    arrive(&store, vec![arrival("a", TenantChange::Found(tenant("1")))]).await;
    arrive(&store, vec![arrival("a", TenantChange::Keep(tenant("1")))]).await;
    let found = store.find_for_org(&org("1"), &client("a")).await.unwrap();
    assert_eq!(found.unwrap().tenant, tenant("1"));
}

async fn a_listing_is_ordered_counted_and_cut_into_pages(store: Arc<dyn Store>) {
    let mut arrivals: Vec<_> = ["b", "a", "C", "c", "_"]
        .iter()
        .map(|name| arrival(name, TenantChange::Found(tenant("1"))))
        .collect();
    arrivals.push(arrival("z", TenantChange::Found(tenant("2"))));
    arrivals.push(arrival("y", TenantChange::PendingLookup));
    arrive(&store, arrivals).await;
    let list = async |offset, limit| {
        let listing = store
            .list_for_org(&org("1"), &PageRequest::page(offset, limit))
            .await
            .unwrap();
        assert_eq!(listing.count, 5);
        let names = listing.connections.iter().map(|c| c.client_id.to_string());
        names.collect::<Vec<_>>()
    };
    // By bytes, in every database.
    assert_eq!(list(0, 10).await, ["C", "_", "a", "b", "c"]);
    assert_eq!(list(1, 2).await, ["_", "a"]);
    assert!(list(5, 10).await.is_empty());
    assert!(list(0, 0).await.is_empty());
    assert!(list(u64::MAX, u64::MAX).await.is_empty());
}

async fn a_batch_of_many_is_written_at_once(store: Arc<dyn Store>) {
    let names: Vec<String> = (0..1000).map(|n| format!("many-{n:04}")).collect();
    let batch = |tag: &str| {
        names
            .iter()
            .map(|name| {
                let mut arrival = arrival(name, TenantChange::Found(tenant("1")));
                arrival.reported.tags = json!({ "tag": tag });
                arrival
            })
            .collect::<Vec<_>>()
    };
    arrive(&store, batch("one")).await;
    arrive(&store, batch("two")).await;
    let listing = store
        .list_for_org(&org("1"), &PageRequest::page(0, 5000))
        .await
        .unwrap();
    assert_eq!(listing.count, 1000);
    assert!(
        listing
            .connections
            .iter()
            .all(|c| c.reported.tags == json!({"tag": "two"}))
    );
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let all: Vec<ClientId> = names.iter().map(|name| client(name)).collect();
    assert_eq!(store.load_states(&all).await.unwrap().len(), 1000);
    depart(&store, &names).await;
    assert_eq!(
        store
            .list_for_org(&org("1"), &PageRequest::page(0, 1))
            .await
            .unwrap()
            .count,
        0
    );
}

async fn odd_but_legal_values_come_back_as_they_were(store: Arc<dyn Store>) {
    let name = "ünï %_'\";-- \u{1F600} \\";
    let mut odd = arrival(name, TenantChange::Found(tenant("o'rg \u{1F600}")));
    odd.reported.canonical_facts = json!({
        "": null, "deep": [[{"a": [1.5, -7, true]}]], "quote": "\"'\\", "big": 9_007_199_254_740_993_i64,
        "text": "a\tb\n\u{7f}\u{2028}",
    });
    odd.message_id = Some(MessageId::new(&"é".repeat(255)).unwrap());
    odd.reported.client_name = "n".repeat(255);
    arrive(&store, vec![odd.clone()]).await;
    let found = store
        .find_for_org(&org("o'rg \u{1F600}"), &client(name))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.reported, odd.reported);
    assert_eq!(found.message_id, odd.message_id);
    assert_eq!(store.load_states(&[client(name)]).await.unwrap().len(), 1);
}

async fn all_clients_are_found_in_order(store: Arc<dyn Store>) {
    let arrivals = ["b", "a", "c"].map(|name| arrival(name, TenantChange::PendingLookup));
    arrive(&store, arrivals.to_vec()).await;
    let first = store.client_ids(None, 2).await.unwrap();
    assert_eq!(first, [client("a"), client("b")]);
    let rest = store.client_ids(first.last(), 2).await.unwrap();
    assert_eq!(rest, [client("c")]);
}

async fn those_who_left_long_ago_are_forgotten(store: Arc<dyn Store>) {
    arrive(&store, vec![arrival("a", TenantChange::Found(tenant("1")))]).await;
    depart(&store, &["a"]).await;
    assert_eq!(store.delete_disconnected_before(at(2)).await.unwrap(), 0);
    assert_eq!(store.load_states(&[client("a")]).await.unwrap().len(), 1);
    assert_eq!(store.delete_disconnected_before(at(3)).await.unwrap(), 1);
    assert!(store.load_states(&[client("a")]).await.unwrap().is_empty());
}

async fn only_the_present_owner_of_a_partition_may_write(store: Arc<dyn Store>) {
    let batch = |name: &str| PresenceBatch {
        arrivals: vec![arrival(name, TenantChange::Found(tenant("1")))],
        ..PresenceBatch::default()
    };
    let first = store
        .acquire_partitions(QueueTopic::Ingress, &[0, 1], "one")
        .await
        .unwrap();
    assert_eq!(first.len(), 2);
    let written = store
        .record_batch(&batch("a"), &first, at(1))
        .await
        .unwrap();
    assert_eq!(written, WriteOutcome::Committed);
    // Another queue has partitions of its own, whatever their numbers.
    let other = store
        .acquire_partitions(QueueTopic::Answers, &[1], "two")
        .await
        .unwrap();
    let both = [first[0], first[1], other[0]];
    let written = store.record_batch(&batch("a"), &both, at(1)).await.unwrap();
    assert_eq!(written, WriteOutcome::Committed);
    let second = store
        .acquire_partitions(QueueTopic::Ingress, &[1], "two")
        .await
        .unwrap();
    assert_ne!(first[1], second[0]);
    let written = store
        .record_batch(&batch("b"), &first, at(2))
        .await
        .unwrap();
    assert_eq!(written, WriteOutcome::Fenced(vec![first[1]]));
    assert_eq!(
        store.find_for_org(&org("1"), &client("b")).await.unwrap(),
        None
    );
    // What was not taken over is still its own, and the new owner writes.
    let written = store
        .record_batch(&batch("c"), &first[..1], at(3))
        .await
        .unwrap();
    assert_eq!(written, WriteOutcome::Committed);
    let written = store
        .record_batch(&batch("d"), &second, at(4))
        .await
        .unwrap();
    assert_eq!(written, WriteOutcome::Committed);
    let stranger = [PartitionLease {
        queue: QueueTopic::Ingress,
        partition: 7,
        epoch: 1,
    }];
    let written = store
        .record_batch(&batch("e"), &stranger, at(5))
        .await
        .unwrap();
    assert_eq!(written, WriteOutcome::Fenced(stranger.to_vec()));
}

async fn nothing_of_a_failed_batch_is_kept(store: Arc<dyn Store>) {
    arrive(&store, vec![arrival("a", TenantChange::Found(tenant("1")))]).await;
    // A key twice in one batch is a caller's mistake; whatever a store makes of it, it is whole.
    let twice = vec![
        arrival("b", TenantChange::Found(tenant("1"))),
        arrival("b", TenantChange::Found(tenant("2"))),
    ];
    let batch = PresenceBatch {
        arrivals: twice,
        departures: vec![departure("a", 2)],
        ..PresenceBatch::default()
    };
    let there = async |name: &str, of: &str| {
        let found = store.find_for_org(&org(of), &client(name)).await.unwrap();
        found.is_some()
    };
    match store.record_batch(&batch, &[], at(3)).await {
        Ok(_) => assert!(!there("a", "1").await && there("b", "2").await),
        Err(_) => assert!(there("a", "1").await && !there("b", "2").await),
    }
}

async fn an_empty_batch_is_fine(store: Arc<dyn Store>) {
    store
        .record_batch(&PresenceBatch::default(), &[], at(0))
        .await
        .unwrap();
    assert!(store.load_states(&[]).await.unwrap().is_empty());
    store.ping().await.unwrap();
}

async fn a_proxy_comes_back_as_it_was(store: Arc<dyn Store>) {
    let mut proxy = arrival("p", TenantChange::Found(tenant("1")));
    proxy.dialect = Dialect::Handshake;
    proxy.kind = ClientKind::Proxy;
    proxy.reported.catalog_service_facts = json!({"source_type": "s", "application_type": "a"});
    arrive(&store, vec![proxy.clone()]).await;
    let found = find(&store, "p").await.unwrap();
    assert_eq!(
        (found.dialect, found.kind),
        (Dialect::Handshake, ClientKind::Proxy)
    );
    assert_eq!(found.reported, proxy.reported);
}

async fn find(store: &Arc<dyn Store>, name: &str) -> Option<Connection> {
    store.find_for_org(&org("1"), &client(name)).await.unwrap()
}

async fn see(store: &Arc<dyn Store>, name: &str, second: i64, tenant: Option<TenantChange>) {
    let batch = PresenceBatch {
        sightings: vec![HeartbeatUpdate {
            client_id: client(name),
            at: at(second),
            tenant,
        }],
        ..PresenceBatch::default()
    };
    store.record_batch(&batch, &[], at(second)).await.unwrap();
}

async fn a_sign_of_life_brings_back_who_left_as_it_was(store: Arc<dyn Store>) {
    let before = arrival("a", TenantChange::Found(tenant("1")));
    arrive(&store, vec![before.clone()]).await;
    arrive(&store, vec![arrival("b", TenantChange::NotFound(at(0)))]).await;
    depart(&store, &["a", "b"]).await;
    see(&store, "a", 3, None).await;
    see(&store, "b", 3, Some(TenantChange::Found(tenant("1")))).await;
    see(&store, "never-was", 3, None).await;
    let found = find(&store, "a").await.unwrap();
    assert_eq!(found.reported, before.reported);
    assert_eq!(found.tenant, tenant("1"));
    assert_eq!(found.message_id, before.message_id);
    assert_eq!(find(&store, "b").await.unwrap().tenant, tenant("1"));
    let all = [client("a"), client("b"), client("never-was")];
    let known = store.load_states(&all).await.unwrap();
    assert_eq!(known.len(), 2);
    let row = known[&client("a")].connected.as_ref().unwrap();
    assert_eq!((row.has_left, row.last_heartbeat_at), (true, Some(at(3))));
    assert_eq!(row.heard, heard(2));
    assert_eq!(known[&client("a")].departed, None);
    // Its next word is all that counts.
    arrive(&store, vec![arrival("a", TenantChange::Found(tenant("1")))]).await;
    let known = store.load_states(&[client("a")]).await.unwrap();
    assert!(!known[&client("a")].connected.as_ref().unwrap().has_left);
}

async fn a_sign_of_life_from_before_the_farewell_says_nothing(store: Arc<dyn Store>) {
    arrive(&store, vec![arrival("a", TenantChange::Found(tenant("1")))]).await;
    depart(&store, &["a"]).await;
    see(&store, "a", 2, None).await;
    assert_eq!(find(&store, "a").await, None);
    // A later farewell of who is gone counts, too.
    let batch = PresenceBatch {
        departures: vec![departure("a", 6)],
        ..PresenceBatch::default()
    };
    store.record_batch(&batch, &[], at(6)).await.unwrap();
    see(&store, "a", 5, None).await;
    assert_eq!(find(&store, "a").await, None);
    see(&store, "a", 7, None).await;
    assert!(find(&store, "a").await.is_some());
}

async fn a_farewell_that_was_overtaken_does_not_end_the_connection(store: Arc<dyn Store>) {
    arrive(&store, vec![arrival("a", TenantChange::Found(tenant("1")))]).await;
    see(&store, "a", 5, None).await;
    depart(&store, &["a"]).await;
    assert!(find(&store, "a").await.is_some());
    let known = store.load_states(&[client("a")]).await.unwrap();
    let row = known[&client("a")].connected.clone().unwrap();
    assert_eq!(
        (row.has_left, row.heard, row.last_heartbeat_at),
        (true, heard(2), Some(at(5)))
    );
    let batch = PresenceBatch {
        departures: vec![departure("a", 5)],
        ..PresenceBatch::default()
    };
    store.record_batch(&batch, &[], at(6)).await.unwrap();
    assert_eq!(find(&store, "a").await, None);
    // An arrival may carry a sign of life that overtook it.
    let mut arrived = arrival("a", TenantChange::Found(tenant("1")));
    arrived.last_heartbeat_at = Some(at(9));
    arrive(&store, vec![arrived]).await;
    depart(&store, &["a"]).await;
    assert!(find(&store, "a").await.is_some());
}

async fn places_in_the_queue_are_remembered(store: Arc<dyn Store>) {
    let place = |offset| {
        Some(QueuePosition {
            partition: 3,
            offset,
        })
    };
    let mut arrived = arrival("a", TenantChange::Found(tenant("1")));
    arrived.heard.place = place(7);
    arrive(&store, vec![arrived]).await;
    let known = store.load_states(&[client("a")]).await.unwrap();
    let row = known[&client("a")].connected.as_ref().unwrap();
    assert_eq!(row.heard.place, place(7));
    let mut gone = departure("a", 2);
    gone.heard.place = place(8);
    let batch = PresenceBatch {
        departures: vec![gone],
        ..PresenceBatch::default()
    };
    store.record_batch(&batch, &[], at(2)).await.unwrap();
    let known = store.load_states(&[client("a")]).await.unwrap();
    let left = known[&client("a")].departed.as_ref().unwrap();
    assert_eq!(left.heard.place, place(8));
    see(&store, "a", 3, None).await;
    let known = store.load_states(&[client("a")]).await.unwrap();
    let row = known[&client("a")].connected.as_ref().unwrap();
    assert_eq!(row.heard.place, place(8));
}

async fn a_row_that_the_database_refuses_is_told_from_a_database_that_is_away(
    store: Arc<dyn Store>,
) {
    let mut refused = arrival("a", TenantChange::Found(tenant("1")));
    // Nothing lets NUL come this far; PostgreSQL refuses it in text, and SQLite keeps it.
    refused.reported.client_name = "a\0b".into();
    let batch = PresenceBatch {
        arrivals: vec![refused],
        ..PresenceBatch::default()
    };
    match store.record_batch(&batch, &[], at(1)).await {
        Ok(_) | Err(StoreError::RowRejected(_)) => {}
        Err(error) => panic!("{error:?}"),
    }
    store.close().await;
    let away = store.record_batch(&batch, &[], at(1)).await;
    assert!(matches!(away, Err(StoreError::Unavailable(_))), "{away:?}");
}
