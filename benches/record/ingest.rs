//! From the broker to the queue, beside `mosquitto_sub` on the same backlog; and what a backlog costs
//! in memory.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use super::client::Client;
use super::pipeline::{MEMORY_MOST, backlog, settings};
use super::process::{Process, eventually};
use super::queue::{self, Counter};
use super::support::report::{Bar, Figure, median};
use super::support::{Services, config};
use super::{ROUNDS, rows};

/// Who publishes the backlog, and how many messages each has under way.
const PUBLISHERS: usize = 40;
const WINDOW: usize = 100;
/// How often the queue is counted: each time asks for every partition.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const FILTER: &str = "redhat/insights/+/control/out";

pub async fn measure(services: &Services) -> Result<Vec<Figure>> {
    let own = uuid::Uuid::new_v4().simple().to_string();
    let database = services.database().await?;
    let mut variables = settings(services, &own);
    variables.extend(services.postgres_settings(&database));
    let config = config(variables.clone())?;
    queue::make(&config).await?;
    let counter = Counter::new(&config, &config.kafka.ingress_topic)?;
    let reader = Reader {
        port: services.mosquitto,
        name: format!("reader-{own}"),
    };
    // Both have a session before the first message, and keep it.
    leave_session(&variables).await?;
    reader.leave_session().await?;

    let backlog = backlog()?;
    let (mut ours, mut theirs, mut memory) = (vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        publish(services.mosquitto, backlog).await?;
        // By turns, so that neither always finds the broker warmed up by the other.
        if round % 2 == 0 {
            theirs.push(reader.drain(backlog).await?);
        }
        let (rate, most) = drain(&variables, &counter, backlog).await?;
        ours.push(rate);
        memory.push(most);
        if round % 2 == 1 {
            theirs.push(reader.drain(backlog).await?);
        }
    }
    publish(services.mosquitto, 2 * backlog).await?;
    let (_, twice) = drain(&variables, &counter, 2 * backlog).await?;
    reader.drain(2 * backlog).await?;

    Client::end_session(services.mosquitto, &format!("ingest-{own}")).await?;
    Client::end_session(services.mosquitto, &reader.name).await?;
    services.drop_database(&database).await?;

    let (ours, theirs) = (median(&ours), median(&theirs));
    Ok(vec![
        Figure {
            name: "broker to queue".to_owned(),
            measured: format!("{ours:.0} messages/s ÷ {theirs:.0} by mosquitto_sub"),
            value: ours / theirs,
            unit: "",
            bar: Bar::AtLeast(0.7),
        },
        Figure::memory("ingest, backlog of 200,000", median(&memory), MEMORY_MOST),
        Figure::memory("ingest, backlog of 400,000", twice, MEMORY_MOST),
    ])
}

/// An ingest that was there once.
async fn leave_session(variables: &[(String, String)]) -> Result<()> {
    let process = Process::start(&["--role", "ingest"], variables).await?;
    let ready = format!("{}/readiness", process.http);
    eventually("ingest", Duration::from_millis(50), || async {
        let answer = reqwest::get(&ready).await?;
        Ok(answer.status().is_success().then_some(()))
    })
    .await?;
    process.stop().await
}

/// Messages a second from the start of the process until the last is in the queue, and its memory.
async fn drain(
    variables: &[(String, String)],
    counter: &Counter,
    backlog: usize,
) -> Result<(f64, f64)> {
    let before = counter.count()?;
    let started = Instant::now();
    let process = Process::start(&["--role", "ingest"], variables).await?;
    let took = eventually("the backlog in the queue", LOOK_EVERY, || {
        let done = counter.count().map(|count| count >= before + backlog);
        async { Ok(done?.then(|| started.elapsed())) }
    })
    .await?;
    let memory = process.most_memory()?;
    // What the broker has not heard of yet would come again.
    tokio::time::sleep(Duration::from_secs(2)).await;
    process.stop().await?;
    let found = counter.count()? - before;
    ensure!(found == backlog, "{found} of {backlog} are in the queue");
    Ok((backlog as f64 / took.as_secs_f64(), memory))
}

/// `mosquitto_sub`, with a session that the broker keeps.
struct Reader {
    port: u16,
    name: String,
}

impl Reader {
    fn command(&self) -> Command {
        let mut command = Command::new("mosquitto_sub");
        command
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-u", "cloud-connector", "-P", "cc-secret"])
            .args(["-c", "-i", &self.name, "-q", "1", "-t", FILTER])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn leave_session(&self) -> Result<()> {
        let done = self.command().arg("-E").status().await;
        ensure!(
            done.context("mosquitto_sub")?.success(),
            "mosquitto_sub cannot subscribe"
        );
        Ok(())
    }

    async fn drain(&self, backlog: usize) -> Result<f64> {
        let file = std::env::temp_dir().join(format!("{}.lines", self.name));
        let lines = std::fs::File::create(&file)?;
        let started = Instant::now();
        let done = self
            .command()
            .args(["-C", &backlog.to_string()])
            .stdout(lines)
            .status()
            .await?;
        let took = started.elapsed();
        ensure!(done.success(), "mosquitto_sub: {done}");
        let text = std::fs::read_to_string(&file)?;
        std::fs::remove_file(&file)?;
        let found = text.lines().count();
        ensure!(found == backlog, "mosquitto_sub read {found} of {backlog}");
        Ok(backlog as f64 / took.as_secs_f64())
    }
}

/// Everything is acknowledged by the broker, and waits there.
async fn publish(port: u16, count: usize) -> Result<()> {
    let address = format!("127.0.0.1:{port}");
    let publishers = rows::clients(PUBLISHERS).into_iter().map(|name| {
        let address = address.clone();
        tokio::spawn(async move {
            let mut client = Client::connect(&address, &name).await?;
            let mut left = count / PUBLISHERS;
            while left > 0 {
                let now = left.min(WINDOW);
                for n in 0..now {
                    let id = u16::try_from(n + 1)?;
                    client.send(id, rows::message(&name, n).as_bytes()).await?;
                }
                for _ in 0..now {
                    client.acknowledged().await?;
                }
                left -= now;
            }
            Ok::<_, anyhow::Error>(())
        })
    });
    for publisher in futures::future::join_all(publishers).await {
        publisher??;
    }
    Ok(())
}
