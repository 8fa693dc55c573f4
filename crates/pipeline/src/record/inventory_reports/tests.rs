use std::collections::VecDeque;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::json;

use super::*;
use domain::{ClientInfo, ClientKind, Identity, OrgId, Tenant};
use integrations::inventory::message::ReportPolicy;
use integrations::inventory::sink::InventorySink;
use store::{PresenceColumns, ReceivedAt, ReplacedRow, TenantChange};

const DELIVERY_TIMEOUT: Duration = Duration::from_secs(1);

/// A sink whose requests have these results, in this order. After that, it confirms all messages.
#[derive(Default)]
struct FakeSink {
    results: Mutex<VecDeque<SinkResult>>,
    /// Number of messages of each request.
    requests: Mutex<Vec<usize>>,
}

#[derive(Clone, Copy)]
enum SinkResult {
    Fail,
    /// No response until the deadline.
    TimeOut,
}

#[async_trait]
impl InventorySink for FakeSink {
    async fn send(&self, messages: Vec<InventoryMessage>, deadline: Instant) -> Vec<bool> {
        self.requests.lock().push(messages.len());
        let result = self.results.lock().pop_front();
        if let Some(SinkResult::TimeOut) = result {
            tokio::time::sleep_until(deadline).await;
        }
        vec![result.is_none(); messages.len()]
    }
}

struct Fixture {
    sink: Arc<FakeSink>,
    queue: Option<ReportQueue>,
    delivered: DeliveredReports,
    tasks: TaskGroup,
}

impl DeliveredReports {
    /// Returns the delivered reports, also if they are not due.
    fn take_now(&mut self) -> Vec<DeliveredReport> {
        while let Ok(report) = self.receiver.try_recv() {
            self.add(report);
        }
        self.take()
    }
}

impl Fixture {
    fn new(results: impl IntoIterator<Item = SinkResult>) -> Self {
        let sink = Arc::new(FakeSink::default());
        sink.results.lock().extend(results);
        let reporter = InventoryReporter {
            sink: sink.clone(),
            policy: ReportPolicy {
                stale_after: Duration::from_hours(26),
                include_handshake_hosts: true,
            },
            delivery_timeout: DELIVERY_TIMEOUT,
        };
        let (queue, task, delivered) = InventoryReporting::new(reporter).for_writer();
        let tasks = TaskGroup::new();
        tasks.spawn_essential("reports", task.run(tasks.clone()));
        Self {
            sink,
            queue: Some(queue),
            delivered,
            tasks,
        }
    }

    /// Queues the report of a host with `fact_bytes` bytes of facts.
    fn add(&self, client_id: &str, fact_bytes: usize) {
        let upsert = upsert(client_id, fact_bytes);
        let TenantChange::Found(tenant) = &upsert.tenant else {
            unreachable!("the tenant is found");
        };
        let host = Host {
            client_id: &upsert.client_id,
            tenant,
            identity: &Identity::for_tenant(tenant),
            dialect: &upsert.dialect,
            kind: upsert.kind,
            info: &upsert.info,
        };
        let queue = self.queue.as_ref().unwrap();
        queue.add(&host, &upsert, row_version());
    }

    /// Queues a report, and waits until the task has processed it.
    async fn add_and_wait(&self, client_id: &str) {
        self.add(client_id, 0);
        tokio::time::sleep(DELIVERY_TIMEOUT).await;
    }

    fn delivered_clients(&mut self) -> Vec<String> {
        let reports = self.delivered.take_now().into_iter();
        reports.map(|report| report.client_id.to_string()).collect()
    }

    fn request_count(&self) -> usize {
        self.sink.requests.lock().len()
    }
}

fn row_version() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn upsert(client_id: &str, fact_bytes: usize) -> ConnectionUpsert {
    ConnectionUpsert {
        client_id: ClientId::new(client_id).unwrap(),
        dialect: protocol::status::NAME,
        kind: ClientKind::Host,
        topic_prefix: "p".into(),
        info: ClientInfo {
            canonical_facts: json!({
                "insights_id": "cabb61b6-e61d-4d70-b475-01f5c009e93c",
                "ip_addresses": vec!["192.0.2.1"; fact_bytes / "192.0.2.1".len()],
            }),
            dispatchers: json!({"rhc-worker-playbook": {}}),
            ..ClientInfo::default()
        },
        message_id: None,
        message_sent_at: row_version(),
        received_at: ReceivedAt::from_time(row_version()),
        last_heartbeat_at: None,
        tenant: TenantChange::Found(Tenant {
            org_id: OrgId::new("1").unwrap(),
            account: String::new(),
        }),
        inventory_eligible: true,
        reported_to_inventory_at: None,
        replaced: ReplacedRow::Any,
        presence: PresenceColumns::default(),
    }
}

#[tokio::test(start_paused = true)]
async fn only_delivered_reports_are_returned_to_the_writer() {
    let mut fixture = Fixture::new([SinkResult::Fail, SinkResult::TimeOut]);
    for client in ["failed", "timed-out", "delivered"] {
        fixture.add_and_wait(client).await;
    }
    let reports = fixture.delivered.take_now();
    let upsert = upsert("delivered", 0);
    let expected = DeliveredReport {
        client_id: upsert.client_id,
        row_version: row_version(),
        online_received_at: upsert.received_at.time,
        reported_at: row_version(),
    };
    assert_eq!(reports, [expected]);
}

#[tokio::test(start_paused = true)]
async fn host_that_inventory_does_not_accept_is_not_reported() {
    let fixture = Fixture::new([]);
    let mut ineligible = upsert("a", 0);
    ineligible.info.canonical_facts = json!({});
    let tenant = Tenant {
        org_id: OrgId::new("1").unwrap(),
        account: String::new(),
    };
    let host = Host {
        client_id: &ineligible.client_id,
        tenant: &tenant,
        identity: &Identity::for_tenant(&tenant),
        dialect: &ineligible.dialect,
        kind: ineligible.kind,
        info: &ineligible.info,
    };
    let queue = fixture.queue.as_ref().unwrap();
    queue.add(&host, &ineligible, row_version());
    tokio::time::sleep(DELIVERY_TIMEOUT).await;
    assert_eq!(fixture.request_count(), 0);
}

#[tokio::test(start_paused = true)]
async fn breaker_stops_the_attempts_and_a_successful_probe_resumes_them() {
    let failures = vec![SinkResult::Fail; 21];
    let mut fixture = Fixture::new(failures);
    for n in 0..20 {
        fixture.add_and_wait(&format!("c{n}")).await;
    }
    assert_eq!(fixture.request_count(), 20);
    for n in 20..23 {
        fixture.add_and_wait(&format!("c{n}")).await;
    }
    assert_eq!(fixture.request_count(), 20, "the breaker is open");
    // The probe fails. Only one of the reports is sent.
    tokio::time::sleep(BREAKER_PROBE_INTERVAL).await;
    fixture.add("probe", 0);
    fixture.add_and_wait("after-failed-probe").await;
    assert_eq!(fixture.request_count(), 21);
    fixture.add_and_wait("rejected").await;
    assert_eq!(fixture.request_count(), 21);
    assert_eq!(fixture.delivered_clients(), [""; 0]);
    // The next probe succeeds, so the reports that wait with it are sent, too.
    tokio::time::sleep(BREAKER_PROBE_INTERVAL * 2).await;
    fixture.add("probe", 0);
    fixture.add_and_wait("after-probe").await;
    fixture.add_and_wait("later").await;
    assert_eq!(
        fixture.delivered_clients(),
        ["probe", "after-probe", "later"]
    );
}

#[tokio::test(start_paused = true)]
async fn failures_of_one_client_do_not_stop_the_reports_of_others() {
    let mut fixture = Fixture::new(vec![SinkResult::Fail; 100]);
    for _ in 0..100 {
        fixture.add_and_wait("failing").await;
    }
    fixture.add_and_wait("other").await;
    assert_eq!(fixture.delivered_clients(), ["other"]);
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_in_reports_and_in_bytes() {
    let mut fixture = Fixture::new([SinkResult::TimeOut]);
    fixture.add("first", 0);
    // The task takes the first report and waits for the sink.
    tokio::task::yield_now().await;
    for n in 0..MAX_QUEUED_REPORTS + 100 {
        fixture.add(&format!("c{n}"), 0);
    }
    assert_eq!(fixture.queue.as_ref().unwrap().sender.capacity(), 0);
    tokio::time::sleep(DELIVERY_TIMEOUT * 2).await;
    let mut delivered = 0;
    loop {
        // The task waits until the writer has taken the delivered reports.
        let reports = fixture.delivered_clients().len();
        if reports == 0 {
            break;
        }
        delivered += reports;
        tokio::time::sleep(DELIVERY_TIMEOUT).await;
    }
    assert_eq!(delivered, MAX_QUEUED_REPORTS);

    let mut fixture = Fixture::new([SinkResult::TimeOut]);
    fixture.add("first", 0);
    tokio::task::yield_now().await;
    for n in 0..20 {
        fixture.add(&format!("c{n}"), 1024 * 1024);
    }
    let queued_bytes = &fixture.queue.as_ref().unwrap().queued_bytes;
    assert!(queued_bytes.used() <= MAX_QUEUED_BYTES);
    tokio::time::sleep(DELIVERY_TIMEOUT * 2).await;
    let delivered = fixture.delivered_clients().len();
    assert!((4..=7).contains(&delivered), "{delivered} reports of 1 MiB");
    let queued_bytes = &fixture.queue.as_ref().unwrap().queued_bytes;
    assert_eq!(queued_bytes.used(), 0, "the memory is released");
}

#[tokio::test(start_paused = true)]
async fn queued_reports_are_sent_at_shutdown_if_inventory_responds() {
    let mut fixture = Fixture::new([]);
    fixture.add("a", 0);
    fixture.tasks.cancel();
    fixture.add("b", 0);
    fixture.queue = None;
    let started_at = Instant::now();
    assert!(fixture.delivered.wait_until_due().await);
    assert_eq!(fixture.delivered_clients(), ["a", "b"]);
    assert_eq!(started_at.elapsed(), Duration::ZERO);
    assert!(fixture.tasks.stop(Duration::from_secs(1)).await);
}

#[tokio::test(start_paused = true)]
async fn an_inventory_that_does_not_respond_delays_the_shutdown_for_a_limited_time() {
    let mut fixture = Fixture::new(vec![SinkResult::TimeOut; 1000]);
    for n in 0..MAX_REPORTS_PER_REQUEST * 5 {
        fixture.add(&format!("c{n}"), 0);
    }
    fixture.tasks.cancel();
    fixture.queue = None;
    let started_at = Instant::now();
    assert!(!fixture.delivered.wait_until_due().await);
    assert!(started_at.elapsed() <= MAX_SHUTDOWN_TIME);
    assert!(fixture.tasks.stop(Duration::from_secs(1)).await);
}

#[tokio::test]
async fn reports_of_a_failed_transaction_are_returned_again_within_the_limit() {
    let (sender, receiver) = mpsc::channel(MAX_WAITING_DELIVERED);
    let mut delivered = DeliveredReports::new(receiver);
    let report = |n: usize| DeliveredReport {
        client_id: ClientId::new(&format!("c{n}")).unwrap(),
        row_version: row_version(),
        online_received_at: row_version(),
        reported_at: row_version(),
    };
    for n in 0..=MAX_DELIVERED_PER_BATCH {
        sender.send(report(n)).await.unwrap();
    }
    let first = delivered.take_due();
    assert_eq!(first.len(), MAX_DELIVERED_PER_BATCH);
    delivered.restore(first.clone());
    assert_eq!(delivered.take_due(), first);
    delivered.restore(first[1..].to_vec());
    assert!(delivered.wait_until_due().await);
    assert_eq!(delivered.take_due().len(), MAX_DELIVERED_PER_BATCH);
}

#[tokio::test(start_paused = true)]
async fn delivered_reports_are_stored_together_after_at_most_a_second() {
    let mut fixture = Fixture::new([]);
    fixture.add("a", 0);
    fixture.add("b", 0);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(fixture.delivered.take_due(), []);
    let received_at = Instant::now();
    assert!(fixture.delivered.wait_until_due().await);
    assert_eq!(received_at.elapsed(), MAX_STORE_DELAY);
    assert_eq!(fixture.delivered.take_due().len(), 2);
    fixture.queue = None;
    assert!(!fixture.delivered.wait_until_due().await);
}
