//! Requests a second with many callers, ours beside the bare server's.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use super::load::{Round, round};
use super::process::{Process, eventually};
use super::support::report::{Bar, Figure, median, quantile};
use super::support::{Services, variables};
use super::{BARE, KEY, ORG, ROUNDS, rows};

const CALLERS: usize = 64;
const CLIENTS: usize = 10_000;
const LASTS: Duration = Duration::from_secs(4);

pub async fn status(services: &Services) -> Result<Vec<Figure>> {
    compare(services, "status", "200").await
}

pub async fn message(services: &Services) -> Result<Vec<Figure>> {
    compare(services, "message", "201").await
}

async fn compare(
    services: &Services,
    what: &'static str,
    expected: &'static str,
) -> Result<Vec<Figure>> {
    let database = services.database().await?;
    rows::make(services, &database, CLIENTS).await?;
    services.settle().await?;
    let ours = api(services, &database).await?;
    let (mut bare, bare_at) = bare(&database).await?;
    let (mut of_ours, mut of_bare) = (Sides::default(), Sides::default());
    // One round each before it counts: pools fill, plans are made.
    for number in 0..=ROUNDS {
        let asked = move |next| our_request(what, next);
        let our_round = round(&ours.http, CALLERS, LASTS, asked, expected).await?;
        let asked = move |next| bare_request(what, next);
        let bare_round = round(&bare_at, CALLERS, LASTS, asked, expected).await?;
        if number > 0 {
            of_ours.add(&our_round);
            of_bare.add(&bare_round);
        }
    }
    bare.kill().await?;
    ours.stop().await?;
    services.drop_database(&database).await?;
    let (rate, p99) = of_ours.medians();
    let (bare_rate, bare_p99) = of_bare.medians();
    Ok(vec![
        Figure {
            name: format!("{what}, {CALLERS} callers"),
            measured: format!("{rate:.0} requests/s ÷ {bare_rate:.0} of the bare server"),
            value: rate / bare_rate,
            unit: "",
            bar: Bar::AtLeast(0.8),
        },
        Figure {
            name: format!("{what}, {CALLERS} callers, p99"),
            measured: format!("the bare server {bare_p99:.1} ms"),
            value: p99,
            unit: "ms",
            bar: Bar::None,
        },
    ])
}

#[derive(Default)]
struct Sides {
    rates: Vec<f64>,
    p99: Vec<f64>,
}

impl Sides {
    fn add(&mut self, round: &Round) {
        self.rates.push(round.rate);
        self.p99.push(quantile(&round.took, 0.99));
    }

    fn medians(&self) -> (f64, f64) {
        (median(&self.rates), median(&self.p99))
    }
}

/// Our `api` on this database, with everything as it is by default.
pub async fn api(services: &Services, database: &str) -> Result<Process> {
    let mut settings = services.postgres_settings(database);
    settings.extend(variables(&[
        (
            "mqtt.url",
            &format!("mqtt://127.0.0.1:{}", services.mosquitto),
        ),
        ("mqtt.username", "cloud-connector"),
        ("mqtt.password", "cc-secret"),
        ("http.listen", "127.0.0.1:0"),
        ("api.keys.bench", KEY),
        // A connector that counts as distributed; nothing of it is used here.
        ("kafka.brokers", &format!("127.0.0.1:{}", services.kafka)),
    ]));
    let process = Process::start(&["--role", "api"], &settings).await?;
    let ready = format!("{}/readiness", process.http);
    eventually("readiness", Duration::from_millis(50), || async {
        let answer = reqwest::get(&ready).await?;
        Ok(answer.status().is_success().then_some(()))
    })
    .await?;
    Ok(process)
}

async fn bare(database: &str) -> Result<(Child, String)> {
    let mut child = Command::new(std::env::current_exe()?)
        .args([BARE, database])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdout = child.stdout.take().context("no output")?;
    let address = BufReader::new(stdout).lines().next_line().await?;
    Ok((child, address.context("the bare server did not start")?))
}

/// Of about 300 bytes.
fn body() -> String {
    let payload = "x".repeat(200);
    format!(r#"{{"directive":"rhc-worker-playbook","metadata":{{"a":"b"}},"payload":"{payload}"}}"#)
}

fn our_request(what: &str, number: usize) -> Vec<u8> {
    let client = rows::name(number % CLIENTS);
    request(
        what,
        &format!("/api/cloud-connector/v2/connections/{client}/{what}"),
    )
}

fn bare_request(what: &str, number: usize) -> Vec<u8> {
    let client = rows::name(number % CLIENTS);
    request(what, &format!("/{what}/{client}"))
}

/// The same headers for both: who does not look at them still has to read them.
fn request(what: &str, path: &str) -> Vec<u8> {
    let head = format!(
        "{path} HTTP/1.1\r\nhost: localhost\r\nx-rh-cloud-connector-client-id: bench\r\n\
         x-rh-cloud-connector-psk: {KEY}\r\nx-rh-cloud-connector-org-id: {ORG}\r\n"
    );
    if what == "status" {
        return format!("GET {head}\r\n").into_bytes();
    }
    let body = body();
    format!(
        "POST {head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
