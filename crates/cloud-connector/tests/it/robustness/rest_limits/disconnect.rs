//! A disconnect request and messages of the same client that are recorded while the request runs.

use std::sync::Arc;
use std::time::Duration;

use api::{ApiDeps, ApiState, Keys, LookupRetries, ProbeState, Scope};
use async_trait::async_trait;
use cloud_connector::config::{Overrides, load_with_environment};
use delivery::{
    ClientPublisher, Delivery, PendingResponses, PublishError, Subscription, TrackedDelivery,
};
use domain::{
    ClientId, ClientInfo, ClientKind, Clock as _, MessageId, OrgId, SystemClock, Tenant, Timestamp,
};
use futures::future::BoxFuture;
use protocol::{DialectSettings, TopicScheme};
use serde_json::{Value, json};
use service::settings::SecretString;
use service::{Health, Supervisor, TaskGroup};
use store::{
    ConnectionUpsert, HeartbeatUpdate, LookupOutcome, LookupReason, LookupResult, PresenceBatch,
    PresenceColumns, ReceivedAt, ReplacedRow, TenantChange,
};
use tenant::{AccountTranslator, TranslationOutcome};
use test_support::stores::{TestStore, open_sqlite};

const CLIENT: &str = "my-machine";
const ORG: &str = "10000";
const ACCOUNT: &str = "111000";
const SECRET: &str = "caller-secret-caller-secret";

/// Messages and jobs that change the database between the read and the write of a request.
type Interleaved = fn(Arc<TestStore>) -> BoxFuture<'static, ()>;

/// A broker that acknowledges each message after other components have changed the database.
struct SlowBroker {
    store: Arc<TestStore>,
    interleaved: Interleaved,
}

#[async_trait]
impl ClientPublisher for SlowBroker {
    async fn publish(
        &self,
        _: &ClientId,
        _: String,
        _: Vec<u8>,
        _: Duration,
    ) -> Result<(), PublishError> {
        (self.interleaved)(self.store.clone()).await;
        Ok(())
    }

    async fn subscribe(&self, _: String, _: Duration) -> Result<Subscription, PublishError> {
        Ok(Box::new(()))
    }
}

/// Translates every account number to [`ORG`].
struct OneTenant;

#[async_trait]
impl AccountTranslator for OneTenant {
    async fn org_of_account(&self, _: &str) -> TranslationOutcome<OrgId> {
        TranslationOutcome::Found(OrgId::new(ORG).unwrap())
    }

    async fn account_of_org(&self, _: &OrgId) -> TranslationOutcome<String> {
        TranslationOutcome::Found(ACCOUNT.to_owned())
    }
}

fn client() -> ClientId {
    ClientId::new(CLIENT).unwrap()
}

fn tenant() -> Tenant {
    Tenant {
        org_id: OrgId::new(ORG).unwrap(),
        account: ACCOUNT.to_owned(),
    }
}

fn now() -> Timestamp {
    SystemClock.now()
}

async fn record(store: &TestStore, batch: PresenceBatch) {
    let written = store.presence.record_batch(&batch, &[], now()).await;
    written.unwrap();
}

async fn record_online(store: &TestStore, message_id: &str, received_at: Timestamp) {
    let upsert = ConnectionUpsert {
        client_id: client(),
        dialect: protocol::status::NAME,
        kind: ClientKind::Host,
        topic_prefix: "redhat/insights".to_owned(),
        info: ClientInfo::default(),
        message_id: Some(MessageId::new(message_id).unwrap()),
        message_sent_at: received_at,
        received_at: ReceivedAt::from_time(received_at),
        last_heartbeat_at: None,
        tenant: TenantChange::Found(tenant()),
        inventory_eligible: true,
        reported_to_inventory_at: None,
        replaced: ReplacedRow::Any,
        presence: PresenceColumns::default(),
    };
    let batch = PresenceBatch {
        upserts: vec![upsert],
        ..PresenceBatch::default()
    };
    record(store, batch).await;
}

async fn record_heartbeat(store: &TestStore, received_at: Timestamp) {
    let heartbeat = HeartbeatUpdate {
        client_id: client(),
        received_at: ReceivedAt::from_time(received_at),
        tenant: None,
    };
    let batch = PresenceBatch {
        heartbeats: vec![heartbeat],
        ..PresenceBatch::default()
    };
    record(store, batch).await;
}

async fn save_inventory_refresh(store: &TestStore) {
    let reason = LookupReason::InventoryRefresh {
        reported_before: now(),
    };
    let until = now() + Duration::from_mins(1);
    let claimed = store
        .lookup_queue
        .claim_for_lookup(reason, 10, now(), until)
        .await;
    let claimed = claimed.unwrap();
    assert_eq!(claimed.len(), 1, "the client is due for a refresh");
    let result = LookupResult {
        client_id: client(),
        row_version: claimed[0].row_version,
        outcome: LookupOutcome::Found {
            tenant: tenant(),
            reported_to_inventory_at: Some(now()),
            inventory_eligible: true,
            report_failed: false,
        },
    };
    let saved = store
        .lookup_queue
        .save_lookup_results(&[result], now())
        .await;
    assert_eq!(saved.unwrap(), 1);
}

/// Serves the API on a free port. Returns the base URL.
async fn serve_api(store: &Arc<TestStore>, interleaved: Interleaved) -> String {
    let config = load_with_environment(&Overrides::default(), [])
        .unwrap()
        .config;
    let mut keys = Keys::default();
    let scopes = vec![Scope::Tenant, Scope::Management];
    keys.add("caller", vec![SecretString::from(SECRET)], scopes);
    let topics = TopicScheme::new(
        vec!["redhat/insights".to_owned()],
        &DialectSettings::default(),
    );
    let publisher = Arc::new(SlowBroker {
        store: store.clone(),
        interleaved,
    });
    let tasks = TaskGroup::new();
    let delivery = Delivery::new(
        publisher,
        PendingResponses::new(topics.clone()),
        topics,
        Arc::new(SystemClock),
    );
    let deps = ApiDeps {
        connections: store.connections.clone(),
        clients: store.clients.clone(),
        broker_rejections: None,
        lookup_retries: LookupRetries {
            max_attempts: 30,
            retry_interval: Duration::from_mins(30),
        },
        clock: Arc::new(SystemClock),
        tracked_delivery: TrackedDelivery::new(
            delivery.clone(),
            store.messages.clone(),
            Duration::from_secs(15),
            tasks.clone(),
        ),
        messages: store.messages.clone(),
        idempotency: store.idempotency.clone(),
        request_timeout: config.http.request_timeout.get(),
        delivery,
        ack_timeout: Duration::from_secs(2),
        keys,
        account_translator: Arc::new(OneTenant),
        events: None,
        tasks: tasks.clone(),
    };
    let probes = ProbeState {
        health: Health::new(&Supervisor::new()),
        render_metrics: String::new,
    };
    let state = ApiState::new(deps, &config.api);
    let router = api::router(state, probes, &config.http);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(api::serve(listener, None, router, tasks));
    format!("http://{address}{}", config.http.base_path)
}

fn v2_disconnect() -> (String, Value) {
    (format!("/v2/connections/{CLIENT}/disconnect"), json!({}))
}

fn v1_disconnect() -> (String, Value) {
    let body = json!({"account": ACCOUNT, "node_id": CLIENT});
    ("/v1/connection/disconnect".to_owned(), body)
}

/// Records an online message, sends a disconnect request, and runs `interleaved` after the request
/// has read the connection. Returns the message id of the connection after the request. `None`
/// means that the client is disconnected.
async fn message_id_after_disconnect(
    store: TestStore,
    (path, body): (String, Value),
    interleaved: Interleaved,
) -> Option<String> {
    let store = Arc::new(store);
    record_online(&store, "first", now() - Duration::from_mins(1)).await;
    let url = serve_api(&store, interleaved).await;
    let request = test_support::http_client()
        .post(format!("{url}{path}"))
        .header("x-rh-cloud-connector-client-id", "caller")
        .header("x-rh-cloud-connector-psk", SECRET)
        .header("x-rh-cloud-connector-org-id", ORG)
        .json(&body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200, "{:?}", response.text().await);
    let org = OrgId::new(ORG).unwrap();
    let found = store
        .connections
        .find_connection_for_org(&org, &client())
        .await;
    found.unwrap().map(|connection| {
        let message_id = connection.message_id.expect("a message id");
        message_id.as_str().to_owned()
    })
}

async fn disconnect_keeps_a_connection_that_was_recorded_after_the_request_started(
    open: impl AsyncFn() -> TestStore,
) {
    for request in [v2_disconnect(), v1_disconnect()] {
        let reconnect: Interleaved =
            |store| Box::pin(async move { record_online(&store, "second", now()).await });
        let message_id = message_id_after_disconnect(open().await, request, reconnect).await;
        assert_eq!(
            message_id.as_deref(),
            Some("second"),
            "the newer connection"
        );
    }
}

/// The clock of another host can differ from the clock of this host.
async fn disconnect_keeps_a_newer_connection_if_clocks_differ(open: impl AsyncFn() -> TestStore) {
    for request in [v2_disconnect(), v1_disconnect()] {
        let reconnect: Interleaved = |store| {
            Box::pin(async move {
                record_online(&store, "second", now() - Duration::from_secs(30)).await;
            })
        };
        let message_id = message_id_after_disconnect(open().await, request, reconnect).await;
        assert_eq!(
            message_id.as_deref(),
            Some("second"),
            "the newer connection"
        );
    }
}

async fn disconnect_ends_the_connection_despite_heartbeats_lookups_and_inventory_reports(
    open: impl AsyncFn() -> TestStore,
) {
    let updates: [Interleaved; 4] = [
        |_| Box::pin(async {}),
        |store| Box::pin(async move { record_heartbeat(&store, now()).await }),
        // A heartbeat that was received by a host whose clock is ahead.
        |store| {
            Box::pin(async move {
                record_heartbeat(&store, now() + Duration::from_secs(30)).await;
            })
        },
        |store| Box::pin(async move { save_inventory_refresh(&store).await }),
    ];
    for request in [v2_disconnect(), v1_disconnect()] {
        for (index, update) in updates.iter().enumerate() {
            let message_id = message_id_after_disconnect(open().await, request.clone(), *update);
            assert_eq!(message_id.await, None, "update {index} of {request:?}");
        }
    }
}

#[tokio::test]
async fn newer_connection_stays() {
    disconnect_keeps_a_connection_that_was_recorded_after_the_request_started(open_sqlite).await;
}

#[tokio::test]
async fn newer_connection_stays_if_clocks_differ() {
    disconnect_keeps_a_newer_connection_if_clocks_differ(open_sqlite).await;
}

#[tokio::test]
async fn heartbeats_lookups_and_inventory_reports_do_not_prevent_the_disconnect() {
    disconnect_ends_the_connection_despite_heartbeats_lookups_and_inventory_reports(open_sqlite)
        .await;
}

mod postgres {
    use test_support::stores::open_postgres;

    #[tokio::test]
    async fn newer_connection_stays() {
        super::disconnect_keeps_a_connection_that_was_recorded_after_the_request_started(
            open_postgres,
        )
        .await;
    }

    #[tokio::test]
    async fn newer_connection_stays_if_clocks_differ() {
        super::disconnect_keeps_a_newer_connection_if_clocks_differ(open_postgres).await;
    }

    #[tokio::test]
    async fn heartbeats_lookups_and_inventory_reports_do_not_prevent_the_disconnect() {
        super::disconnect_ends_the_connection_despite_heartbeats_lookups_and_inventory_reports(
            open_postgres,
        )
        .await;
    }
}
