//! Outages of the lookup service, with everything else real: what must not be lost is not lost. Small
//! in every test run; `make drills` runs them at full size, and holds them to their times.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::each_deployment;
use crate::support::gateway::{FakeGateway, GatewayReply};
use crate::support::mqtt::{Connect, RawClient, control_out, offline, online};
use crate::support::{Deployment, TIMEOUT, eventually, unique_id};

each_deployment!(
    the_gateway_goes_away_while_everybody_reconnects,
    tenantless_clients_that_reconnect_as_fast_as_they_can,
    the_gateway_forgets_everybody_at_once,
);

/// `record.tenant_lookup_timeout` as it is by default.
const BATCH_DEADLINE: Duration = Duration::from_secs(1);

/// `make drills`: times are held to there only, for a test run shares its machine with other tests.
fn is_full_size() -> bool {
    std::env::var_os("FULL_SIZE_OUTAGE_TESTS").is_some()
}

fn size(small: usize, full: usize) -> usize {
    if is_full_size() { full } else { small }
}

struct Fleet {
    names: Vec<String>,
    clients: Vec<RawClient>,
}

impl Fleet {
    /// Everybody connects and says online; returns when the broker has acknowledged it.
    async fn connect(address: &str, names: Vec<String>) -> Self {
        let mut connecting = Vec::new();
        let at_once = Arc::new(tokio::sync::Semaphore::new(500));
        for name in names.clone() {
            let address = address.to_owned();
            let turn = at_once.clone().acquire_owned().await.unwrap();
            connecting.push(tokio::spawn(async move {
                let connect = Connect::new(&name).offline_will().without_keep_alive();
                let mut client = RawClient::connect(&address, &connect).await;
                client.must_publish(&control_out(&name), &online()).await;
                drop(turn);
                client
            }));
        }
        let mut clients = Vec::new();
        for client in connecting {
            clients.push(client.await.unwrap());
        }
        Self { names, clients }
    }

    /// Everybody has a tenant. So many new ones at once may be more than a busy machine looks up within
    /// a batch's time; the updater finds the rest.
    async fn settle(&self, subject: &Deployment) {
        eventually("all have a tenant", || async {
            subject.run_command(&["update-tenantless"]).await;
            let sql = "SELECT count(*) FROM connections WHERE org_id <> ''";
            let found = subject.count(sql).await;
            (usize::try_from(found).unwrap() == self.names.len()).then_some(())
        })
        .await;
    }

    /// Everybody is cut off, and comes back; returns how long it took until all were recorded.
    async fn reconnect(self, subject: &Deployment) -> (Self, Duration) {
        let started = Instant::now();
        drop(self.clients);
        wait_for_tenants(subject, 0).await;
        let fleet = Self::connect(&subject.mqtt_address(), self.names).await;
        wait_for_tenants(subject, fleet.names.len()).await;
        (fleet, started.elapsed())
    }

    /// Each of them, and nobody else.
    async fn must_be_listed(&self, subject: &Deployment) {
        let names: HashSet<String> = self.names.iter().cloned().collect();
        assert_eq!(subject.list_client_ids().await, names);
    }
}

/// Waits until so many have a tenant. The table is asked: the list of all, asked for again and again,
/// would be the larger part of the work.
async fn wait_for_tenants(subject: &Deployment, count: usize) {
    let deadline = Instant::now() + 2 * TIMEOUT;
    loop {
        let sql = "SELECT count(*) FROM connections WHERE org_id <> ''";
        let found = subject.count(sql).await;
        if usize::try_from(found).unwrap() == count {
            return;
        }
        let late = Instant::now() > deadline;
        assert!(!late, "{found} have a tenant, not {count}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn the_gateway_goes_away_while_everybody_reconnects(subject: Deployment) {
    let gateway = FakeGateway::start(GatewayReply::Found("10000")).await;
    let subject = subject.recreate_with_gateway(&gateway, &[]).await;
    let names: Vec<String> = (0..size(300, 5000))
        .map(|n| unique_id(&format!("d{n}")))
        .collect();
    let mut fleet = Fleet::connect(&subject.mqtt_address(), names).await;
    fleet.settle(&subject).await;
    let mut healthy = Duration::ZERO;
    for _ in 0..2 {
        let took;
        (fleet, took) = fleet.reconnect(&subject).await;
        healthy = healthy.max(took);
    }
    println!("healthy: all recorded after {healthy:.1?}");
    for silence in [
        GatewayReply::Overloaded,
        GatewayReply::NoReply,
        GatewayReply::HtmlPage(200),
        GatewayReply::HtmlPage(404),
    ] {
        gateway.set_default_reply(silence.clone());
        let before = gateway.requested_clients().len();
        let took;
        (fleet, took) = fleet.reconnect(&subject).await;
        let asked = gateway.requested_clients().len() - before;
        println!("{silence:?}: all recorded after {took:.1?}; the gateway was asked {asked} times");
        if is_full_size() {
            assert!(took <= healthy + 2 * BATCH_DEADLINE, "{took:?}");
        }
        // What opens the breaker, what was under way by then, and probes.
        assert!(asked <= 20 + 64 + 30, "{silence:?}: asked {asked} times");
        fleet.must_be_listed(&subject).await;
        // No attempt was used up.
        let used = "SELECT count(*) FROM connections WHERE tenant_lookup_failure_count > 0";
        assert_eq!(subject.count(used).await, 0);
        // New clients arrive meanwhile: they belong to nobody yet, and have lost nothing.
        let newcomer = unique_id("new");
        let mut client =
            RawClient::connect(&subject.mqtt_address(), &Connect::new(&newcomer)).await;
        client
            .must_publish(&control_out(&newcomer), &online())
            .await;
        let row = eventually("the newcomer's row", || subject.row(&newcomer)).await;
        assert_eq!(
            (row.org_id.as_str(), row.tenant_lookup_failure_count),
            ("", 0)
        );
        // When it is back, they get their tenants at the next run.
        gateway.set_default_reply(GatewayReply::Found("10000"));
        eventually("the updater finds it", || async {
            subject.run_command(&["update-tenantless"]).await;
            let row = subject.row(&newcomer).await.unwrap();
            (row.org_id == "10000").then_some(())
        })
        .await;
        // The connector itself hears of it by a probe, which somebody's online makes.
        let deadline = Instant::now() + TIMEOUT;
        while subject
            .metric("cloud_connector_tenant_breaker_open", "")
            .await
            > 0.5
        {
            assert!(Instant::now() < deadline, "the breaker stays open");
            client
                .must_publish(&control_out(&newcomer), &online())
                .await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        client
            .must_publish(&control_out(&newcomer), &offline())
            .await;
        wait_for_tenants(&subject, fleet.names.len()).await;
    }
    assert!(subject.is_ready().await);
}

async fn tenantless_clients_that_reconnect_as_fast_as_they_can(subject: Deployment) {
    let gateway = FakeGateway::start(GatewayReply::NotFound).await;
    let subject = subject
        .recreate_with_gateway(&gateway, &[("tenant.negative_cache_ttl", "60s")])
        .await;
    let names: Vec<String> = (0..size(50, 500))
        .map(|n| unique_id(&format!("s{n}")))
        .collect();
    let lasts = Duration::from_secs(if is_full_size() { 30 } else { 5 });
    let until = Instant::now() + lasts;
    let mut storm = Vec::new();
    for name in names.clone() {
        let address = subject.mqtt_address();
        storm.push(tokio::spawn(async move {
            let mut times = 0;
            let heard_on = format!("redhat/insights/{name}/control/in");
            while Instant::now() < until {
                let connect = Connect::new(&name).offline_will();
                let mut client = RawClient::connect(&address, &connect).await;
                client.subscribe(&heard_on).await;
                let online = online().to_string();
                let topic = control_out(&name);
                client.send_publish(&topic, online.as_bytes(), false).await;
                client.ping().await;
                // Nothing is sent to it because of it: these are the broker's own answers.
                assert_eq!(client.read_packet().await.unwrap().kind(), 4, "PUBACK");
                assert_eq!(client.read_packet().await.unwrap().kind(), 13, "PINGRESP");
                times += 1;
            }
            times
        }));
    }
    // The first third warms it up; what it holds then, it holds at the end.
    tokio::time::sleep(lasts / 3).await;
    let early = subject.resident_memory_mib();
    let mut times = 0;
    for client in storm {
        times += client.await.unwrap();
    }
    let late = subject.resident_memory_mib();
    let asked = gateway.requested_clients();
    println!(
        "{times} reconnects, {} lookups, {early} MiB after a third, {late} MiB at the end",
        asked.len()
    );
    assert!(late <= early + early / 4 + 16, "{early} MiB, then {late}");
    let different: HashSet<&String> = asked.iter().collect();
    assert_eq!(asked.len(), different.len(), "one lookup a client");
    assert!(subject.list_client_ids().await.is_empty());
    assert!(times > 100, "{times}");
}

async fn the_gateway_forgets_everybody_at_once(subject: Deployment) {
    let gateway = FakeGateway::start(GatewayReply::Found("10000")).await;
    let subject = subject
        .recreate_with_gateway(&gateway, &[("tenant.negative_cache_ttl", "1ms")])
        .await;
    let names: Vec<String> = (0..size(120, 1000))
        .map(|n| unique_id(&format!("g{n}")))
        .collect();
    let mut fleet = Fleet::connect(&subject.mqtt_address(), names).await;
    fleet.settle(&subject).await;
    let before = gateway.requested_clients().len();
    gateway.set_default_reply(GatewayReply::NotFound);
    for (name, client) in fleet.names.iter().zip(&mut fleet.clients) {
        client.must_publish(&control_out(name), &online()).await;
    }
    eventually("the alert", || async {
        let alerts = "cloud_connector_tenant_mass_loss_suppressed_total";
        (subject.metric(alerts, "").await > 0.5).then_some(())
    })
    .await;
    // All second onlines have been dealt with before anybody is counted.
    eventually("every lookup", || async {
        (gateway.requested_clients().len() >= before + fleet.names.len()).then_some(())
    })
    .await;
    wait_for_tenants(&subject, fleet.names.len()).await;
    fleet.must_be_listed(&subject).await;
    // One that leaves and comes back keeps its own, too.
    let (name, client) = (&fleet.names[0], &mut fleet.clients[0]);
    client.must_publish(&control_out(name), &offline()).await;
    subject.wait_until_disconnected(name).await;
    client.must_publish(&control_out(name), &online()).await;
    subject.wait_until_connected(name).await;
}
