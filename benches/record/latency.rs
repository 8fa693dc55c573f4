//! From a client's publish until the API shows it, at a steady rate, beside the barest way from a
//! publish over an INSERT to a SELECT.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::sync::Mutex;

use super::bare::Bare;
use super::client::Client;
use super::embedded::Embedded;
use super::pipeline::settings;
use super::process::{Process, eventually, run};
use super::rows;
use super::support::figures::{Bar, Figure, quantile};
use super::support::{Services, variables};

/// A message every 10 ms, each of another client; the bare loop's half-way between two of ours, so
/// that what stalls the machine for a moment stalls both.
const EVERY: Duration = Duration::from_millis(10);
const HALF_WAY: Duration = Duration::from_millis(5);
const CLIENTS: usize = 500;
const MESSAGES: u16 = 3000;
const WARM_UP: u16 = 300;
/// How often it is looked whether a message is shown: more often would be most of the load.
const LOOK_EVERY: Duration = Duration::from_millis(2);
const LATE: Duration = Duration::from_millis(30);
const KEY: &str = "0123456789abcdef0123";

pub async fn measure(services: &Services) -> Result<Vec<Figure>> {
    let mut figures = embedded().await?;
    figures.extend(distributed(services).await?);
    Ok(figures)
}

async fn embedded() -> Result<Vec<Figure>> {
    let connector = Embedded::start().await?;
    let api = Api {
        http: reqwest::Client::new(),
        base: connector.process.http.clone(),
        caller: "local",
        key: connector.key.clone(),
    };
    let bare = Bare::sqlite().await?;
    let ours = Where::Ours(api, connector.process.mqtt.clone());
    compare("embedded", 10.0, ours, bare).await
}

async fn distributed(services: &Services) -> Result<Vec<Figure>> {
    let own = uuid::Uuid::new_v4().simple().to_string();
    let database = services.database().await?;
    let mut variables_of_all = settings(services, &own);
    variables_of_all.extend(services.postgres_settings(&database));
    variables_of_all.extend(variables(&[
        ("kafka.group", &format!("group-{own}")),
        ("kafka.answers_group", &format!("answers-{own}")),
        ("api.keys.bench", KEY),
    ]));
    run(&["migrate", "--topics"], &variables_of_all).await?;
    let mut processes = Vec::new();
    for role in ["ingest", "record", "api"] {
        processes.push(Process::start(&["--role", role], &variables_of_all).await?);
    }
    let http = reqwest::Client::new();
    for process in &processes {
        let ready = format!("{}/readiness", process.http);
        eventually("readiness", Duration::from_millis(50), || async {
            let answer = http.get(&ready).send().await?;
            Ok(answer.status().is_success().then_some(()))
        })
        .await?;
    }
    let api = Api {
        http,
        base: processes.last().context("api")?.http.clone(),
        caller: "bench",
        key: KEY.to_owned(),
    };
    let bare = Bare::postgres(services, &database).await?;
    let ours = Where::Ours(api, format!("127.0.0.1:{}", services.mosquitto));
    let figures = compare("distributed", 25.0, ours, bare).await?;
    for process in processes {
        process.kill().await?;
    }
    Client::end_session(services.mosquitto, &format!("ingest-{own}")).await?;
    Ok(figures)
}

async fn compare(name: &str, most: f64, ours: Where, bare: Bare) -> Result<Vec<Figure>> {
    let bare = Where::Bare(bare);
    warm_up(&ours).await?;
    warm_up(&bare).await?;
    let (of_ours, of_bare) =
        tokio::try_join!(sample(&ours, Duration::ZERO), sample(&bare, HALF_WAY))?;
    let (p50, p99) = (quantile(&of_ours, 0.5), quantile(&of_ours, 0.99));
    let (bare_p50, bare_p99) = (quantile(&of_bare, 0.5), quantile(&of_bare, 0.99));
    Ok(vec![
        Figure {
            name: format!("{name}, publish to API, p50"),
            measured: format!("at 100 messages/s; bare loop {bare_p50:.1} ms"),
            value: p50,
            unit: "ms",
            bar: Bar::AtMost(most),
        },
        Figure {
            name: format!("{name}, publish to API, p99"),
            measured: format!("{p99:.1} ms ÷ {bare_p99:.1} ms of the bare loop"),
            value: p99 / bare_p99,
            unit: "",
            bar: Bar::AtMost(3.0),
        },
    ])
}

enum Where {
    Ours(Api, String),
    Bare(Bare),
}

impl Where {
    fn mqtt(&self) -> &str {
        match self {
            Self::Ours(_, address) => address,
            Self::Bare(bare) => bare.mqtt(),
        }
    }

    async fn shows(&self, client: &str, round: &str) -> Result<bool> {
        match self {
            Self::Ours(api, _) => api.shows(client, round).await,
            Self::Bare(bare) => Ok(bare.shows(client, round)),
        }
    }
}

/// Some messages all the way, one after the other: groups have formed, connections are open, and what
/// compiles itself while it runs has done so.
async fn warm_up(to: &Where) -> Result<()> {
    let name = uuid::Uuid::new_v4().to_string();
    let mut client = Client::connect(to.mqtt(), &name).await?;
    for n in 1..=WARM_UP {
        let payload = rows::message(&name, n.into());
        client.publish(n, payload.as_bytes()).await?;
        let round = n.to_string();
        eventually("a first message", LOOK_EVERY, || async {
            Ok(to.shows(&name, &round).await?.then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Milliseconds from each publish until it is shown.
async fn sample(to: &Where, offset: Duration) -> Result<Vec<f64>> {
    let mut clients = Vec::new();
    for name in rows::clients(CLIENTS) {
        let client = Client::connect(to.mqtt(), &name).await?;
        clients.push((name, Mutex::new(client)));
    }
    let begin = tokio::time::Instant::now() + offset;
    let samples = (1..=MESSAGES).map(|n| {
        let (name, client) = &clients[usize::from(n) % CLIENTS];
        async move {
            tokio::time::sleep_until(begin + EVERY * u32::from(n)).await;
            let payload = rows::message(name, usize::from(n));
            let round = n.to_string();
            let mut client = client.lock().await;
            let started = Instant::now();
            client.send(n, payload.as_bytes()).await?;
            let mut pause = LOOK_EVERY;
            while !to.shows(name, &round).await? {
                tokio::time::sleep(pause).await;
                // Late already: looking often would only make everybody later.
                if started.elapsed() > LATE {
                    pause = (2 * pause).min(LATE);
                }
            }
            let took = started.elapsed().as_secs_f64() * 1000.0;
            client.acknowledged().await?;
            Ok::<_, anyhow::Error>(took)
        }
    });
    futures::future::try_join_all(samples).await
}

struct Api {
    http: reqwest::Client,
    base: String,
    caller: &'static str,
    key: String,
}

impl Api {
    async fn shows(&self, client: &str, round: &str) -> Result<bool> {
        let url = format!(
            "{}/api/cloud-connector/v2/connections/{client}/status",
            self.base
        );
        let answer = self
            .http
            .get(url)
            .header("x-rh-cloud-connector-client-id", self.caller)
            .header("x-rh-cloud-connector-psk", &self.key)
            .header("x-rh-cloud-connector-org-id", "10000")
            .send()
            .await?;
        let status: serde_json::Value = answer.json().await?;
        Ok(status["tags"]["round"] == round)
    }
}
