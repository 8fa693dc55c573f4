//! Measures how long no message is recorded after the active `ingest` process was killed, while clients
//! publish at a constant rate.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::client::MqttClient;
use super::pipeline::distributed_env_vars;
use super::process::{ConnectorProcess, run_command};
use super::rows;
use super::support::report::{Goal, Measurement, median};
use super::support::{Services, env_vars};

/// Number of times that the active process is killed.
const KILL_COUNT: usize = 5;
/// Number of messages in each run. Each message is the first message of another client.
const MESSAGES_PER_RUN: usize = 2000;
const MESSAGE_INTERVAL: Duration = Duration::from_millis(5);
/// Time between the first message of a run and the kill.
const KILL_DELAY: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub async fn measure_takeover(services: &Services) -> Result<Vec<Measurement>> {
    let suffix = uuid::Uuid::new_v4().simple().to_string();
    let database = services.create_database().await?;
    let mut env = distributed_env_vars(services, &suffix);
    env.extend(services.postgres_env_vars(&database));
    env.extend(env_vars(&[
        ("kafka.group", &format!("group-{suffix}")),
        ("kafka.answers_group", &format!("answers-{suffix}")),
    ]));
    run_command(&["migrate", "--topics"], &env).await?;
    let record = ConnectorProcess::start(&["--role", "record"], &env).await?;
    let mut active = ConnectorProcess::start(&["--role", "ingest"], &env).await?;
    record.wait_until_ready().await?;
    active.wait_until_ready().await?;
    let mut gaps = Vec::new();
    let mut published = 0;
    for _ in 0..KILL_COUNT {
        let standby = ConnectorProcess::start(&["--role", "ingest"], &env).await?;
        standby.wait_until_ready().await?;
        let (publish, watch) = (
            publish_messages(services.mosquitto_port),
            longest_gap(services, &database, published + MESSAGES_PER_RUN),
        );
        let kill = async {
            tokio::time::sleep(KILL_DELAY).await;
            active.kill().await
        };
        let ((), gap, ()) = tokio::try_join!(publish, watch, kill)?;
        published += MESSAGES_PER_RUN;
        gaps.push(gap.as_secs_f64());
        active = standby;
    }
    active.kill().await?;
    record.kill().await?;
    MqttClient::delete_session(services.mosquitto_port, &format!("ingest-{suffix}")).await?;
    let longest = gaps.iter().copied().fold(0.0, f64::max);
    Ok(vec![Measurement {
        name: "takeover of ingest after kill -9, longest gap".to_owned(),
        details: format!(
            "{KILL_COUNT} takeovers at 200 messages/s, median {:.1} s; all {published} acknowledged \
             messages were recorded",
            median(&gaps)
        ),
        value: longest,
        unit: "s",
        goal: Goal::AtMost(5.0),
    }])
}

/// Publishes one online message for each of many clients, and waits for the acknowledgements.
async fn publish_messages(mosquitto_port: u16) -> Result<()> {
    let address = format!("127.0.0.1:{mosquitto_port}");
    let started_at = tokio::time::Instant::now();
    let messages = (0..MESSAGES_PER_RUN).map(|n| {
        let address = address.clone();
        async move {
            tokio::time::sleep_until(started_at + MESSAGE_INTERVAL * u32::try_from(n)?).await;
            let client_id = uuid::Uuid::new_v4().to_string();
            let mut client = MqttClient::connect(&address, &client_id).await?;
            let message = rows::online_message(&client_id, 0);
            client.publish(1, message.as_bytes()).await
        }
    });
    futures::future::try_join_all(messages).await?;
    Ok(())
}

/// Waits until `expected_rows` are recorded. Returns the longest time without a new row.
async fn longest_gap(
    services: &Services,
    database: &str,
    expected_rows: usize,
) -> Result<Duration> {
    let mut connection = services.connect(database).await?;
    let mut longest = Duration::ZERO;
    let mut last = (Instant::now(), -1);
    let expected_rows = i64::try_from(expected_rows)?;
    while last.1 < expected_rows {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM connections")
            .fetch_one(&mut connection)
            .await
            .context("count the recorded clients")?;
        ensure!(count <= expected_rows, "more clients than messages");
        let gap = last.0.elapsed();
        ensure!(
            gap < Duration::from_mins(1),
            "{} of {expected_rows} acknowledged messages are not recorded",
            expected_rows - count
        );
        if count > last.1 {
            longest = longest.max(gap);
            last = (Instant::now(), count);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(longest)
}
