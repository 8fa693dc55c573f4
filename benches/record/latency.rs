//! From a client's publish until the API shows it, at a steady rate, beside the barest way from a
//! publish over an INSERT to a SELECT.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::sync::Mutex;

use super::baseline::Bare;
use super::client::Client;
use super::embedded::Embedded;
use super::pipeline::settings;
use super::process::{Process, eventually, run};
use super::support::report::{Bar, Figure, median, quantile};
use super::support::{Services, variables};
use super::{ROUNDS, rows};

/// A message every 10 ms, each of another client; the bare loop's half-way between two of ours, so
/// that what stalls the machine for a moment stalls both.
const EVERY: Duration = Duration::from_millis(10);
const HALF_WAY: Duration = Duration::from_millis(5);
const CLIENTS: usize = 500;
/// In each round.
const MESSAGES: u16 = 1000;
const WARM_UP: u16 = 300;
/// How often it is looked whether a message is shown, once it may be: more often, or from the first
/// moment on, would be most of the load.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// From which part of the time that the warm-up took a message may be shown.
const SOONEST: f64 = 0.6;
const LATE: Duration = Duration::from_millis(30);
const LOOK_LATE_EVERY: Duration = Duration::from_millis(8);
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
    let (ours, bare) = (Side::new(ours).await?, Side::new(Where::Bare(bare)).await?);
    let (mut of_ours, mut of_bare) = (Quantiles::default(), Quantiles::default());
    for round in 0..ROUNDS {
        let begin = tokio::time::Instant::now() + EVERY;
        let (took, bare_took) = tokio::try_join!(
            ours.sample(round, begin),
            bare.sample(round, begin + HALF_WAY),
        )?;
        of_ours.add(&took);
        of_bare.add(&bare_took);
    }
    let (p50, p99) = of_ours.medians();
    let (bare_p50, bare_p99) = of_bare.medians();
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

/// Of each round.
#[derive(Default)]
struct Quantiles {
    p50: Vec<f64>,
    p99: Vec<f64>,
}

impl Quantiles {
    fn add(&mut self, round: &[f64]) {
        self.p50.push(quantile(round, 0.5));
        self.p99.push(quantile(round, 0.99));
    }

    fn medians(&self) -> (f64, f64) {
        (median(&self.p50), median(&self.p99))
    }
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
/// compiles itself while it runs has done so. Returns how long one takes at best, nearly.
async fn warm_up(to: &Where) -> Result<Duration> {
    let name = uuid::Uuid::new_v4().to_string();
    let mut client = Client::connect(to.mqtt(), &name).await?;
    let mut took = Vec::new();
    for n in 1..=WARM_UP {
        let payload = rows::message(&name, n.into());
        let started = Instant::now();
        client.publish(n, payload.as_bytes()).await?;
        let round = n.to_string();
        eventually("a first message", LOOK_EVERY, || async {
            Ok(to.shows(&name, &round).await?.then_some(()))
        })
        .await?;
        took.push(started.elapsed().as_secs_f64());
    }
    Ok(Duration::from_secs_f64(quantile(&took, 0.1)))
}

/// One of the ways that are compared, and its clients.
struct Side {
    to: Where,
    clients: Vec<(String, Mutex<Client>)>,
    /// Before that it is not looked whether a message is shown.
    soonest: Duration,
}

impl Side {
    async fn new(to: Where) -> Result<Self> {
        let soonest = warm_up(&to).await?.mul_f64(SOONEST);
        let mut clients = Vec::new();
        for name in rows::clients(CLIENTS) {
            let client = Client::connect(to.mqtt(), &name).await?;
            clients.push((name, Mutex::new(client)));
        }
        Ok(Self {
            to,
            clients,
            soonest,
        })
    }

    /// Milliseconds from each publish until it is shown.
    async fn sample(&self, round: usize, begin: tokio::time::Instant) -> Result<Vec<f64>> {
        let samples = (0..MESSAGES).map(|n| async move {
            tokio::time::sleep_until(begin + EVERY * u32::from(n)).await;
            self.one(round * usize::from(MESSAGES) + usize::from(n))
                .await
        });
        futures::future::try_join_all(samples).await
    }

    async fn one(&self, n: usize) -> Result<f64> {
        let (name, client) = &self.clients[n % CLIENTS];
        let (payload, shown) = (rows::message(name, n), n.to_string());
        let mut client = client.lock().await;
        let started = Instant::now();
        client
            .send(u16::try_from(n + 1)?, payload.as_bytes())
            .await?;
        tokio::time::sleep(self.soonest).await;
        let mut pause = LOOK_EVERY;
        while !self.to.shows(name, &shown).await? {
            tokio::time::sleep(pause).await;
            // Late already: looking often would only make everybody later.
            if started.elapsed() > LATE {
                pause = LOOK_LATE_EVERY;
            }
        }
        let took = started.elapsed().as_secs_f64() * 1000.0;
        client.acknowledged().await?;
        Ok(took)
    }
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
