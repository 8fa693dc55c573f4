//! Rows that the database rejects: a constraint that rejects every row is an outage, and a single
//! rejected row is a dead letter. Also batches that the recorder retries.

use serde_json::json;

use test_support::deployment::Deployment;
use test_support::mqtt::{Connect, RawClient, control_out_topic, online_message};
use test_support::{each_deployment, eventually};

/// With this timeout, the embedded broker keeps the connections of clients that wait for the
/// database.
const LONG_ACK_TIMEOUT: &[(&str, &str)] = &[("broker.ack_timeout", "1m")];
/// Number of clients whose rows the database rejects. Enough for a batch of at least 20 rows in each
/// of the two writers of distributed mode.
const REJECTED_CLIENTS: usize = 100;
/// Number of clients whose rows the database accepts. Each writer has at least one of them.
const ACCEPTED_CLIENTS: usize = 16;
const COUNT_DEAD_LETTERS: &str = "SELECT count(*) FROM dead_letters";

each_deployment! {
    a_constraint_that_rejects_every_row_is_an_outage_without_dead_letters with LONG_ACK_TIMEOUT,
    many_rejected_rows_of_one_client_do_not_stop_the_next_client,
    a_retried_batch_is_counted_once,
}

/// Connects clients, and each client sends an online message without waiting for the PUBACK.
async fn publish_online_messages(
    deployment: &Deployment,
    id_prefix: &str,
    clients: usize,
) -> Vec<(String, RawClient)> {
    let mut connected_clients = Vec::new();
    for n in 0..clients {
        let client_id = format!("{id_prefix}-{n:03}");
        let mut client =
            RawClient::connect(&deployment.mqtt_address(), &Connect::new(&client_id)).await;
        let payload = online_message().to_string();
        client
            .send_publish(&control_out_topic(&client_id), payload.as_bytes(), false)
            .await;
        connected_clients.push((client_id, client));
    }
    connected_clients
}

async fn wait_until_in_flight(deployment: &Deployment, messages: usize) {
    eventually(&format!("{messages} messages in flight"), || async {
        let in_flight = deployment
            .read_metric("cloud_connector_record_in_flight_messages", "")
            .await;
        (in_flight >= messages as f64).then_some(())
    })
    .await;
}

/// A transaction that locks the table `connections`. The recorder waits until the transaction ends.
enum TableLock {
    Sqlite(sqlx::SqliteConnection),
    Postgres(sqlx::PgConnection),
}

impl TableLock {
    /// Begins a transaction that locks the table and adds a constraint. The constraint rejects all
    /// rows of clients whose id starts with `rejected`.
    async fn begin_with_constraint(deployment: &Deployment) -> Self {
        use sqlx::Connection as _;
        match deployment {
            Deployment::Embedded(connector) => {
                let path = connector.data_dir().join("cloud-connector.db");
                let url = format!("sqlite://{}", path.display());
                let mut database = sqlx::SqliteConnection::connect(&url).await.unwrap();
                for sql in [
                    "BEGIN IMMEDIATE",
                    "CREATE TRIGGER reject_rows BEFORE INSERT ON connections
                     WHEN new.client_id LIKE 'rejected%'
                     BEGIN SELECT RAISE(ABORT, 'rejected by the test'); END",
                ] {
                    sqlx::query(sql).execute(&mut database).await.unwrap();
                }
                Self::Sqlite(database)
            }
            Deployment::Distributed(distributed) => {
                let mut database = distributed.cluster.connect_to_database().await;
                for sql in [
                    "BEGIN",
                    "ALTER TABLE connections ADD CONSTRAINT reject_rows
                     CHECK (client_id NOT LIKE 'rejected%') NOT VALID",
                ] {
                    sqlx::query(sql).execute(&mut database).await.unwrap();
                }
                Self::Postgres(database)
            }
        }
    }

    async fn commit(self) {
        match self {
            Self::Sqlite(mut database) => {
                sqlx::query("COMMIT").execute(&mut database).await.unwrap();
            }
            Self::Postgres(mut database) => {
                sqlx::query("COMMIT").execute(&mut database).await.unwrap();
            }
        }
    }
}

async fn drop_constraint(deployment: &Deployment) {
    let sql = match deployment {
        Deployment::Embedded(_) => "DROP TRIGGER reject_rows",
        Deployment::Distributed(_) => "ALTER TABLE connections DROP CONSTRAINT reject_rows",
    };
    deployment.execute(sql).await;
}

async fn recorder_health(deployment: &Deployment) -> String {
    let (_, body) = deployment.readiness().await;
    body["components"]["recorder"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

async fn a_constraint_that_rejects_every_row_is_an_outage_without_dead_letters(
    deployment: Deployment,
) {
    let lock = TableLock::begin_with_constraint(&deployment).await;
    // Each writer waits for the lock with a batch that starts with accepted rows. Meanwhile all other
    // messages are queued, so each writer then writes them in one batch. Accepted rows that are retried
    // in one batch with rejected rows wait for the end of the outage.
    let accepted = publish_online_messages(&deployment, "accepted", ACCEPTED_CLIENTS).await;
    wait_until_in_flight(&deployment, ACCEPTED_CLIENTS).await;
    let rejected = publish_online_messages(&deployment, "rejected", REJECTED_CLIENTS).await;
    wait_until_in_flight(&deployment, ACCEPTED_CLIENTS + REJECTED_CLIENTS).await;
    lock.commit().await;

    eventually("readiness to report the rejected rows", || async {
        let dead_letters = deployment.count_rows(COUNT_DEAD_LETTERS).await;
        assert_eq!(dead_letters, 0, "rejected rows became dead letters");
        (recorder_health(&deployment).await == "rows rejected").then_some(())
    })
    .await;
    let outages = deployment
        .read_metric("cloud_connector_record_rejection_outage", "")
        .await;
    assert!(outages > 0.5, "the metric reports no outage");

    drop_constraint(&deployment).await;
    for (client_id, _) in accepted.iter().chain(&rejected) {
        deployment.wait_until_connected(client_id).await;
    }
    eventually("readiness after the outage", || async {
        deployment.is_ready().await.then_some(())
    })
    .await;
    assert_eq!(deployment.count_rows(COUNT_DEAD_LETTERS).await, 0);
}

async fn many_rejected_rows_of_one_client_do_not_stop_the_next_client(deployment: Deployment) {
    TableLock::begin_with_constraint(&deployment)
        .await
        .commit()
        .await;
    let address = deployment.mqtt_address();
    let mut client = RawClient::connect(&address, &Connect::new("rejected")).await;
    for n in 1..=20 {
        let mut message = online_message();
        message["message_id"] = json!(format!("00000000-0000-4000-8000-{n:012}"));
        client
            .must_publish(&control_out_topic("rejected"), &message)
            .await;
        eventually(&format!("{n} dead letters"), || async {
            let dead_letters = deployment.count_rows(COUNT_DEAD_LETTERS).await;
            (dead_letters == n).then_some(())
        })
        .await;
    }
    let next_id = "next";
    let mut next_client = RawClient::connect(&address, &Connect::new(next_id)).await;
    next_client
        .must_publish(&control_out_topic(next_id), &online_message())
        .await;
    deployment.wait_until_connected(next_id).await;
    assert!(deployment.is_ready().await);
}

async fn a_retried_batch_is_counted_once(deployment: Deployment) {
    deployment
        .execute("ALTER TABLE dead_letters RENAME TO dead_letters_hidden")
        .await;
    let client_id = "counted-once";
    let mut client = RawClient::connect(&deployment.mqtt_address(), &Connect::new(client_id)).await;
    let topic = control_out_topic(client_id);
    for payload in ["not JSON", r#"{"type":"unknown"}"#] {
        client.send_publish(&topic, payload.as_bytes(), false).await;
    }
    eventually("several failed attempts", || async {
        let attempts = deployment
            .read_metric("cloud_connector_record_batch_retries_total", "")
            .await;
        (attempts > 3.5).then_some(())
    })
    .await;
    deployment
        .execute("ALTER TABLE dead_letters_hidden RENAME TO dead_letters")
        .await;
    deployment.wait_for_dead_letters(client_id, 1).await;
    wait_until_idle(&deployment).await;
    for (metric, label) in [
        ("cloud_connector_dead_letters_total", "invalid_json"),
        ("cloud_connector_messages_ignored_total", "not_presence"),
    ] {
        let count = deployment.read_metric(metric, label).await;
        assert!((count - 1.0).abs() < 0.5, "{metric}: {count}");
    }
}

async fn wait_until_idle(deployment: &Deployment) {
    eventually("no message in flight", || async {
        let in_flight = deployment
            .read_metric("cloud_connector_record_in_flight_messages", "")
            .await;
        (in_flight < 0.5).then_some(())
    })
    .await;
}
