//! The memory of each role stays bounded while clients send many large responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use test_support::cluster::{Cluster, ConnectorProcess};
use test_support::mqtt::{Connect, RawClient, control_out_topic, data_out_topic, online_message};
use test_support::services::Service;
use test_support::{eventually, resident_memory_mib};

/// Number of clients that send responses at the same time.
const ATTACKERS: usize = 4;
/// Number of responses of each attacker.
const RESPONSES_PER_ATTACKER: usize = 150;
/// Size of a response: slightly less than Mosquitto's limit.
const RESPONSE_BYTES: usize = 1_000_000;
/// Maximum resident memory of a process during the attack.
const MAX_MIB_DURING_ATTACK: u64 = 300;
/// Maximum resident memory of a process one minute after the attack.
const MAX_MIB_AFTER_ATTACK: u64 = 150;

/// The processes under attack.
struct RoleProcesses {
    ingest: ConnectorProcess,
    record: ConnectorProcess,
    api: ConnectorProcess,
}

impl RoleProcesses {
    async fn start(cluster: &Cluster) -> Self {
        Self {
            ingest: cluster.start(&["ingest"]).await,
            record: cluster.start(&["record"]).await,
            api: cluster.start(&["api"]).await,
        }
    }

    fn pids(&self) -> [i32; 3] {
        [self.ingest.pid(), self.record.pid(), self.api.pid()]
    }

    fn resident_mib(&self) -> [u64; 3] {
        self.pids().map(resident_memory_mib)
    }
}

/// Samples the resident memory of processes until [`stop`](Self::stop) is called.
struct MemorySampler {
    peaks: Arc<[AtomicU64; 3]>,
    is_stopped: Arc<AtomicBool>,
}

impl MemorySampler {
    fn start(pids: [i32; 3]) -> Self {
        let (peaks, is_stopped) = (
            Arc::<[AtomicU64; 3]>::default(),
            Arc::<AtomicBool>::default(),
        );
        std::thread::spawn({
            let (peaks, is_stopped) = (peaks.clone(), is_stopped.clone());
            move || {
                while !is_stopped.load(Ordering::Relaxed) {
                    for (pid, peak) in pids.into_iter().zip(&*peaks) {
                        peak.fetch_max(resident_memory_mib(pid), Ordering::Relaxed);
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        Self { peaks, is_stopped }
    }

    /// Stops sampling. Returns the peaks of `ingest`, `record` and `api` in MiB.
    fn stop(self) -> [u64; 3] {
        self.is_stopped.store(true, Ordering::Relaxed);
        [0, 1, 2].map(|n| self.peaks[n].load(Ordering::Relaxed))
    }
}

/// Several clients send large responses at the same time.
async fn attack(cluster: &Cluster) {
    let content = "x".repeat(RESPONSE_BYTES);
    let payload = format!(r#"{{"type":"data","directive":"echo","content":"{content}"}}"#);
    let payload: Arc<[u8]> = payload.into_bytes().into();
    let mut attackers = Vec::new();
    for n in 0..ATTACKERS {
        let client_id = format!("attacker-{n}");
        let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
        let payload = payload.clone();
        attackers.push(tokio::spawn(async move {
            let connect = Connect::new(&client_id).without_keep_alive();
            let mut client = RawClient::connect(&address, &connect).await;
            for _ in 0..RESPONSES_PER_ATTACKER {
                let puback = client.publish(&data_out_topic(&client_id), &payload).await;
                puback.expect("the broker closed the connection");
            }
        }));
    }
    for attacker in attackers {
        attacker.await.unwrap();
    }
}

async fn wait_for_in_flight(process: &ConnectorProcess, is_expected: impl Fn(f64) -> bool) {
    eventually("the expected number of messages in flight", || async {
        let in_flight = process
            .read_metric("cloud_connector_record_in_flight_messages", "")
            .await;
        is_expected(in_flight).then_some(())
    })
    .await;
}

/// Waits until every response was recorded.
async fn wait_until_recorded(roles: &RoleProcesses) {
    let responses = (ATTACKERS * RESPONSES_PER_ATTACKER) as f64;
    eventually("every response to be recorded", || async {
        let recorded = roles
            .record
            .read_metric("cloud_connector_record_batch_messages_sum", "")
            .await;
        (recorded >= responses).then_some(())
    })
    .await;
}

async fn assert_memory(roles: &RoleProcesses, sampler: MemorySampler) {
    let peaks = sampler.stop();
    println!("peak resident memory of ingest, record and api in MiB: {peaks:?}");
    assert!(
        peaks.iter().all(|peak| *peak <= MAX_MIB_DURING_ATTACK),
        "ingest, record and api used up to {peaks:?} MiB"
    );
    eventually("the memory to be returned", || async {
        let resident = roles.resident_mib();
        let is_returned = resident.iter().all(|mib| *mib <= MAX_MIB_AFTER_ATTACK);
        is_returned.then(|| println!("resident memory after the attack in MiB: {resident:?}"))
    })
    .await;
}

/// A client can still come online after the attack.
async fn assert_online_messages_are_recorded(cluster: &Cluster, roles: &RoleProcesses) {
    let address = format!("127.0.0.1:{}", cluster.mosquitto.port);
    let client_id = "after-the-attack";
    let mut client = RawClient::connect(&address, &Connect::new(client_id)).await;
    client
        .must_publish(&control_out_topic(client_id), &online_message())
        .await;
    roles.api.wait_until_connected(client_id).await;
}

#[tokio::test]
async fn memory_is_bounded_while_clients_send_large_responses() {
    let cluster = Cluster::new().await;
    let roles = RoleProcesses::start(&cluster).await;
    let sampler = MemorySampler::start(roles.pids());
    attack(&cluster).await;
    wait_until_recorded(&roles).await;
    assert_memory(&roles, sampler).await;
    assert_online_messages_are_recorded(&cluster, &roles).await;
}

#[tokio::test]
async fn memory_is_bounded_while_clients_send_large_responses_and_the_database_is_down() {
    let (mosquitto, postgres) = tokio::join!(Service::start_mosquitto(), Service::start_postgres());
    // Without budgets, so that all responses go to the topic with the higher limits.
    let cluster = Cluster::with_services(mosquitto, Some(postgres), None)
        .await
        .set("client_budget.message_burst", 1_000_000_000)
        .set("client_budget.byte_burst", 1_000_000_000);
    let roles = RoleProcesses::start(&cluster).await;
    let postgres = cluster.postgres.as_ref().unwrap();
    postgres.stop().await;
    let sampler = MemorySampler::start(roles.pids());
    attack(&cluster).await;
    let responses = (ATTACKERS * RESPONSES_PER_ATTACKER) as f64;
    wait_for_in_flight(&roles.record, |in_flight| in_flight >= responses).await;
    postgres.start_process().await;
    wait_for_in_flight(&roles.record, |in_flight| in_flight < 0.5).await;
    assert_memory(&roles, sampler).await;
    assert_online_messages_are_recorded(&cluster, &roles).await;
}
