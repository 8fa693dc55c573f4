//! The embedded set-up, where every acknowledged message is in the database, beside Mosquitto, which
//! hands the same messages to a subscriber.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::process::{Child, Command};

use super::client::Client;
use super::process::Process;
use super::support::report::{Bar, Figure, median};
use super::support::{Services, root, variables};
use super::{ROUNDS, rows};

const CLIENTS: usize = 1000;
const LASTS: Duration = Duration::from_secs(5);

/// A connector with everything in one process, in a folder that is removed at the end.
pub struct Embedded {
    pub process: Process,
    pub key: String,
    folder: PathBuf,
}

impl Embedded {
    pub async fn start() -> Result<Self> {
        let name = uuid::Uuid::new_v4().simple().to_string();
        // Beside the program, on the same disk as everything else here: not in memory.
        let folder = root().join("target/bench").join(name);
        let data = folder.join("data");
        let settings = variables(&[
            // All of them come from one address, at once.
            ("broker.connect_limit.burst", "100000"),
            ("broker.max_connections_per_address", "20000"),
            ("data.dir", &data.display().to_string()),
        ]);
        let args = ["--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"];
        let process = Process::start(&args, &settings).await?;
        let key = std::fs::read_to_string(data.join("local.key"))?;
        Ok(Self {
            process,
            key: key.trim().to_owned(),
            folder,
        })
    }

    /// A request that the local caller makes.
    pub fn get(&self, http: &reqwest::Client, path: &str) -> reqwest::RequestBuilder {
        http.get(format!("{}/api/cloud-connector{path}", self.process.http))
            .header("x-rh-cloud-connector-client-id", "local")
            .header("x-rh-cloud-connector-psk", &self.key)
            .header("x-rh-cloud-connector-org-id", "10000")
    }

    /// How many are connected.
    pub async fn count(&self, http: &reqwest::Client) -> Result<u64> {
        let page: serde_json::Value = self
            .get(http, "/v2/connections?limit=1")
            .send()
            .await?
            .json()
            .await?;
        page["meta"]["count"].as_u64().context("no count")
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub async fn measure(services: &Services) -> Result<Vec<Figure>> {
    let mosquitto = format!("127.0.0.1:{}", services.mosquitto);
    let (mut ours, mut theirs) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        let embedded = Embedded::start().await?;
        let (rate, clients) = publish(&embedded.process.mqtt).await?;
        ours.push(rate);
        let http = reqwest::Client::new();
        let recorded = embedded.count(&http).await?;
        ensure!(recorded == CLIENTS as u64, "{recorded} are connected");
        drop(clients);
        drop(embedded);
        let reader = subscribe(services.mosquitto)?;
        theirs.push(publish(&mosquitto).await?.0);
        drop(reader);
    }
    let (ours, theirs) = (median(&ours), median(&theirs));
    Ok(vec![Figure {
        name: "embedded, publish to commit".to_owned(),
        measured: format!("{ours:.0} messages/s ÷ {theirs:.0} into Mosquitto with a mosquitto_sub"),
        value: ours / theirs,
        unit: "",
        bar: Bar::AtLeast(0.4),
    }])
}

/// Acknowledged messages a second of all clients together, each with one under way. They are still
/// connected then.
async fn publish(address: &str) -> Result<(f64, Vec<Client>)> {
    let mut clients = Vec::new();
    for name in rows::clients(CLIENTS) {
        clients.push((Client::connect(address, &name).await?, name));
    }
    let count = Arc::new(AtomicU64::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let started = Instant::now();
    let publishers: Vec<_> = clients
        .into_iter()
        .map(|(mut client, name)| {
            let (count, is_over) = (count.clone(), is_over.clone());
            tokio::spawn(async move {
                let mut round = 0;
                while !is_over.load(Ordering::Relaxed) {
                    round += 1;
                    let payload = rows::message(&name, round);
                    let id = u16::try_from(round % 60_000)? + 1;
                    client.publish(id, payload.as_bytes()).await?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, anyhow::Error>(client)
            })
        })
        .collect();
    tokio::time::sleep(LASTS).await;
    let rate = count.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    let mut clients = Vec::new();
    for publisher in publishers {
        clients.push(publisher.await??);
    }
    Ok((rate, clients))
}

fn subscribe(port: u16) -> Result<Child> {
    Command::new("mosquitto_sub")
        .args(["-h", "127.0.0.1", "-p", &port.to_string()])
        .args(["-u", "cloud-connector", "-P", "cc-secret", "-q", "1"])
        .args(["-i", &uuid::Uuid::new_v4().to_string()])
        .args(["-t", "redhat/insights/+/control/out"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("mosquitto_sub")
}
