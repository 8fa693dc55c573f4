//! Tests that the recorder writes a row before it reports the host to inventory, and stores the
//! delivery only for the content that was reported. Each test runs on SQLite and on PostgreSQL.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use domain::{ClientId, Identity, OrgId, SystemClock, Tenant, Timestamp};
use integrations::inventory::message::{InventoryMessage, ReportPolicy};
use integrations::inventory::reporter::InventoryReporter;
use integrations::inventory::sink::InventorySink;
use parking_lot::Mutex;
use pipeline::record::{
    DeadLetterLimits, HandshakeErrorSender, Receipt, Recorder, RecorderConfig, RecorderDeps,
    RecorderInput,
};
use protocol::{DialectSettings, InboundMessage, TopicScheme};
use serde_json::{Value, json};
use service::{ByteBudget, TaskGroup};
use tenant::{MassLossDetector, TenantLookup, TenantLookupOutcome};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use test_support::eventually;
use test_support::stores::TestStore;

macro_rules! each_store {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(super::Fixture::new(test_support::stores::open_sqlite().await)).await;
                }
            )*
        }

        mod postgres {
            $(
                #[tokio::test]
                async fn $test() {
                    super::$test(super::Fixture::new(test_support::stores::open_postgres().await)).await;
                }
            )*
        }
    };
}

each_store!(
    messages_are_recorded_while_inventory_does_not_respond,
    a_delivered_report_is_stored_without_further_messages,
    a_failed_delivery_leaves_the_host_pending,
    the_delivery_of_an_older_online_message_does_not_count_for_a_newer_one,
    a_client_that_disconnects_during_its_report_stays_disconnected,
    a_database_that_rejects_delivered_reports_does_not_stop_recording,
    reports_are_sent_and_stored_at_shutdown,
    a_blocked_inventory_does_not_prevent_the_shutdown,
);

const DELIVERY_TIMEOUT: Duration = Duration::from_millis(200);

/// An inventory that responds to a request when the test permits it. It ignores the deadline.
struct ControlledInventory {
    permits: Semaphore,
    is_unavailable: Mutex<bool>,
    /// The messages of all requests, in the order of the requests.
    requests: Mutex<Vec<Vec<Value>>>,
}

impl ControlledInventory {
    /// Permits all requests.
    fn respond(&self) {
        self.permits.add_permits(Semaphore::MAX_PERMITS / 2);
    }

    fn respond_once(&self) {
        self.permits.add_permits(1);
    }

    async fn wait_for_requests(&self, count: usize) {
        eventually(&format!("{count} requests to inventory"), || async {
            (self.requests.lock().len() >= count).then_some(())
        })
        .await;
    }
}

#[async_trait]
impl InventorySink for ControlledInventory {
    async fn send(&self, messages: Vec<InventoryMessage>, _: Instant) -> Vec<bool> {
        let parse = |message: &InventoryMessage| serde_json::from_slice(&message.json).unwrap();
        let request = messages.iter().map(parse).collect();
        self.requests.lock().push(request);
        self.permits.acquire().await.unwrap().forget();
        vec![!*self.is_unavailable.lock(); messages.len()]
    }
}

struct SingleTenantLookup;

#[async_trait]
impl TenantLookup for SingleTenantLookup {
    async fn lookup(&self, _: &ClientId, _: Instant) -> TenantLookupOutcome {
        TenantLookupOutcome::from_identity(Identity::for_tenant(&Tenant {
            org_id: OrgId::new("10000").unwrap(),
            account: String::new(),
        }))
    }

    async fn check_availability(&self) -> Result<String, String> {
        Ok(String::new())
    }
}

struct Fixture {
    store: TestStore,
    inventory: Arc<ControlledInventory>,
    recorder: Recorder,
    topics: TopicScheme,
    tasks: TaskGroup,
}

impl Fixture {
    fn new(store: TestStore) -> Self {
        let inventory = Arc::new(ControlledInventory {
            permits: Semaphore::new(0),
            is_unavailable: Mutex::default(),
            requests: Mutex::default(),
        });
        let deps = RecorderDeps {
            presence: store.presence.clone(),
            tenant_lookup: Arc::new(SingleTenantLookup),
            inventory_reporter: Some(InventoryReporter {
                sink: inventory.clone(),
                policy: ReportPolicy {
                    stale_after: Duration::from_hours(26),
                    include_handshake_hosts: true,
                },
                delivery_timeout: DELIVERY_TIMEOUT,
            }),
            mass_loss_detector: MassLossDetector::default(),
            source_registrar: None,
            handshake_error_sender: HandshakeErrorSender::channel().0,
            clock: Arc::new(SystemClock),
            message_budget: ByteBudget::new(128 * 1024 * 1024),
            config: RecorderConfig {
                max_batch_size: 1000,
                tenant_lookup_timeout: Duration::from_secs(5),
                last_seen_interval: Duration::from_mins(5),
                stale_online_window: Duration::from_mins(10),
                writers: 1,
                dead_letter_limits: DeadLetterLimits {
                    max_dead_letters_per_client: 20,
                },
            },
        };
        let tasks = TaskGroup::new();
        Self {
            recorder: Recorder::start(deps, &tasks),
            topics: TopicScheme::new(vec!["p".into()], &DialectSettings::default()),
            store,
            inventory,
            tasks,
        }
    }

    fn submit(&self, client_id: &str, content: &Value) -> Receipt {
        let topic = format!("p/{client_id}/control/out");
        let message = json!({"type": "connection-status", "message_id": uuid::Uuid::new_v4(),
            "sent": Timestamp::now().to_string(), "content": content});
        let input = RecorderInput::non_kafka_message(
            self.topics.parse(&topic).unwrap(),
            InboundMessage {
                topic,
                payload: Bytes::from(message.to_string()),
                retained: false,
                is_operator_replay: false,
                is_last_will: None,
                is_takeover: false,
                received_at: Timestamp::now(),
                ingest_stamp: None,
                truncated_from: None,
            },
        );
        self.recorder.submit(input)
    }

    /// Records an online message of an eligible host. Returns when the message is durable.
    async fn record_online(&self, client_id: &str, fqdn: &str) {
        let content = json!({"state": "online", "canonical_facts": {
                "insights_id": "cabb61b6-e61d-4d70-b475-01f5c009e93c", "fqdn": fqdn},
            "dispatchers": {"rhc-worker-playbook": {}}});
        let receipt = self.submit(client_id, &content);
        receipt.wait_until_durable().await.unwrap();
    }

    async fn record_offline(&self, client_id: &str) {
        let receipt = self.submit(client_id, &json!({"state": "offline"}));
        receipt.wait_until_durable().await.unwrap();
    }

    async fn is_pending(&self, client_id: &str) -> bool {
        let row = self.store.row(client_id).await.expect("a connection");
        row.stale_timestamp == 0
    }

    async fn wait_until_reported(&self, client_id: &str) {
        eventually(&format!("the stored delivery of {client_id}"), || async {
            (!self.is_pending(client_id).await).then_some(())
        })
        .await;
    }
}

async fn messages_are_recorded_while_inventory_does_not_respond(fixture: Fixture) {
    for n in 0..10 {
        fixture.record_online(&format!("c{n}"), "a.example").await;
        // The receipt is the acknowledgement. Inventory has not responded to any request.
        assert!(fixture.is_pending(&format!("c{n}")).await);
    }
    fixture.inventory.wait_for_requests(1).await;
    assert_eq!(fixture.recorder.health(), Ok(()));
    fixture.inventory.respond();
    for n in 0..10 {
        fixture.wait_until_reported(&format!("c{n}")).await;
    }
    let requests = fixture.inventory.requests.lock();
    assert_eq!(requests.iter().map(Vec::len).sum::<usize>(), 10);
}

async fn a_delivered_report_is_stored_without_further_messages(fixture: Fixture) {
    fixture.inventory.respond();
    let before = Timestamp::now().as_second();
    fixture.record_online("a", "a.example").await;
    fixture.wait_until_reported("a").await;
    let row = fixture.store.row("a").await.unwrap();
    let age = row.stale_timestamp - before;
    assert!((0..60).contains(&age), "{age}");
}

async fn a_failed_delivery_leaves_the_host_pending(fixture: Fixture) {
    *fixture.inventory.is_unavailable.lock() = true;
    fixture.inventory.respond();
    fixture.record_online("a", "a.example").await;
    fixture.inventory.wait_for_requests(1).await;
    // The task sends the second report after it has processed the outcome of the first.
    fixture.record_online("b", "b.example").await;
    fixture.inventory.wait_for_requests(2).await;
    // This batch would store a delivery of the first report.
    fixture.record_online("c", "c.example").await;
    assert!(fixture.is_pending("a").await);
    *fixture.inventory.is_unavailable.lock() = false;
    fixture.record_online("a", "a.example").await;
    fixture.wait_until_reported("a").await;
}

async fn the_delivery_of_an_older_online_message_does_not_count_for_a_newer_one(fixture: Fixture) {
    fixture.record_online("a", "old.example").await;
    fixture.inventory.wait_for_requests(1).await;
    fixture.record_online("a", "new.example").await;
    fixture.inventory.respond_once();
    // The task sends the second report after it has passed the first delivery to the writer.
    fixture.inventory.wait_for_requests(2).await;
    fixture.record_online("b", "b.example").await;
    assert!(
        fixture.is_pending("a").await,
        "the newer content is not reported"
    );
    fixture.inventory.respond();
    fixture.wait_until_reported("a").await;
    let requests = fixture.inventory.requests.lock();
    let fqdns: Vec<_> = requests
        .iter()
        .flatten()
        .map(|message| message["data"]["fqdn"].as_str().unwrap())
        .collect();
    assert_eq!(fqdns, ["old.example", "new.example", "b.example"]);
}

async fn a_client_that_disconnects_during_its_report_stays_disconnected(fixture: Fixture) {
    fixture.record_online("a", "a.example").await;
    fixture.inventory.wait_for_requests(1).await;
    fixture.record_offline("a").await;
    fixture.inventory.respond();
    fixture.record_online("b", "b.example").await;
    fixture.wait_until_reported("b").await;
    assert!(fixture.store.row("a").await.is_none());
}

async fn a_database_that_rejects_delivered_reports_does_not_stop_recording(fixture: Fixture) {
    fixture.store.reject_delivered_reports().await;
    fixture.inventory.respond();
    // More clients than the number of rejected rows that is an outage.
    for n in 0..40 {
        fixture.record_online(&format!("c{n}"), "a.example").await;
    }
    fixture.inventory.wait_for_requests(1).await;
    fixture.record_online("last", "a.example").await;
    assert_eq!(fixture.recorder.health(), Ok(()));
    assert!(fixture.is_pending("c0").await);
    let filter = store::DeadLetterFilter::default();
    let dead_letters = fixture.store.dead_letters.list_dead_letters(&filter, 10);
    assert!(dead_letters.await.unwrap().is_empty());
}

async fn reports_are_sent_and_stored_at_shutdown(fixture: Fixture) {
    fixture.record_online("first", "a.example").await;
    fixture.inventory.wait_for_requests(1).await;
    fixture.record_online("second", "a.example").await;
    fixture.tasks.cancel();
    fixture.inventory.respond();
    assert!(fixture.tasks.stop(Duration::from_secs(30)).await);
    for client_id in ["first", "second"] {
        assert!(!fixture.is_pending(client_id).await, "{client_id}");
    }
}

async fn a_blocked_inventory_does_not_prevent_the_shutdown(fixture: Fixture) {
    fixture.record_online("a", "a.example").await;
    fixture.inventory.wait_for_requests(1).await;
    assert!(fixture.tasks.stop(Duration::from_secs(30)).await);
    assert!(fixture.is_pending("a").await);
}

/// A job or another batch has locked the row. Waiting for the lock could cause a deadlock.
#[tokio::test]
async fn in_postgres_a_delivered_report_does_not_wait_for_a_locked_row() {
    let fixture = Fixture::new(test_support::stores::open_postgres().await);
    fixture.record_online("locked", "a.example").await;
    fixture.inventory.wait_for_requests(1).await;
    let lock = fixture.store.lock_row("locked").await;
    fixture.inventory.respond();
    // The batch of the second host stores the first delivery, or follows the batch that did.
    fixture.record_online("other", "b.example").await;
    fixture.wait_until_reported("other").await;
    drop(lock);
    assert!(
        fixture.is_pending("locked").await,
        "the job reports the host again"
    );
}
